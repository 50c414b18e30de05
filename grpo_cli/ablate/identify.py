"""What the arms depend on besides their recipes, known before anything runs. No torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from grpo_cli.ablate.plan import Plan
from grpo_cli.prepare import Judge, identity, open_judge


def identified(plan: Plan) -> tuple[Plan, list[str]]:
    """The plan with hashes of model and verifier in every arm, and what to know of the audits.

    Raises:
        GrpoError: GR205 for a verifier that cannot be loaded, GR213 for one whose audit forbids
            training.
    """
    judges: dict[str, Judge] = {}
    arms = []
    plugins = {f"plugin_{Path(file).stem}": sha for file, sha in plan.plugins.items()}
    for arm in plan.arms:
        tree = arm.recipe.tree()
        key = json.dumps([tree["verifier"], tree.get("audit"), tree["task"]], sort_keys=True)
        if key not in judges:
            judges[key] = open_judge(arm.recipe)
        arms.append(replace(arm, identity=identity(arm.recipe, judges[key].verifier, plugins)))
    notes = [judge.note for judge in judges.values() if judge.note is not None]
    return replace(plan, arms=tuple(arms)), list(dict.fromkeys(notes))
