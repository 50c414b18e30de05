"""Next-token accuracy of a `next_token` run, with and without reasoning, before and after.

    python benchmarks/next_token.py RUN

RUN is the folder of a finished run with one sample per held-out position. With reasoning: the run's
own held-out answers, from its eval files. Without: the likeliest token at the same positions. 95 %
Wilson intervals; `paired` is McNemar's table, positions right only before and only after.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from grpo_cli.checkpoint import latest
from grpo_cli.next_token_direct import direct_hits
from grpo_cli.policy.policy import load_policy
from grpo_cli.policy.state import load_adapter
from grpo_cli.recipe.schema import Recipe
from grpo_cli.runfiles import eval_steps, read_eval
from grpo_cli.stats.interval import wilson
from grpo_cli.tasks import load_task
from grpo_cli.tasks.next_token import NextToken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    recipe = Recipe.model_validate_json((run / "recipe.json").read_text())
    task = load_task(recipe.task, train=False)
    assert isinstance(task, NextToken), "the run's task is not next_token"
    assert recipe.eval.samples_per_question == 1, "the intervals are for one sample a position"
    prompts = task.held_out(recipe.eval.num_questions)
    policy = load_policy(recipe.model, recipe.device, recipe.learner)
    policy.add_adapter("trained", recipe.lora, 0)
    checkpoint = latest(run)
    assert checkpoint is not None, "the run has no checkpoint"
    load_adapter(checkpoint.path / "adapter", policy, "trained")

    steps = eval_steps(run)
    reasoned = []
    for step in (steps[0], steps[-1]):
        right = {row.question_id: row.score >= 1 for row in read_eval(run, step)}
        reasoned.append([right[prompt.id] for prompt in prompts])
    direct = [direct_hits(policy, adapter, task, prompts) for adapter in (None, "trained")]
    print(f"{len(prompts)} held-out positions, steps {steps[0]} and {steps[-1]}")
    for name, (before, after) in (("with reasoning", reasoned), ("without", direct)):
        pairs = [(b, a) for b, a in zip(before, after, strict=True) if None not in (b, a)]
        shown = []
        for side in zip(*pairs, strict=True):
            share = wilson(sum(side), len(side))
            shown.append(f"{share.mean:6.1%} [{share.low:.1%}, {share.high:.1%}]")
        lost = sum(b and not a for b, a in pairs)
        won = sum(a and not b for b, a in pairs)
        print(f"{name:15} before {shown[0]}  after {shown[1]}  paired -{lost} +{won}")


if __name__ == "__main__":
    main()
