"""The panel: it covers what the code writes, and its page is current."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import grpo_cli
from grpo_cli.arm import Progress
from grpo_cli.cli.app import app
from grpo_cli.errors import GrpoError
from grpo_cli.health.panel import AREAS, PANEL, describe
from grpo_cli.objective.base import clip_metrics
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.recipe.load import load
from grpo_cli.recipe.locate import recipe_names
from grpo_cli.types import EvalRow, Finish, Status, Tokens
from grpo_cli.update_result import UpdateResult

ROOT = Path(grpo_cli.__file__).parent
GROUPS = "|".join(sorted({info.name.split("/")[0] for info in PANEL}))


def test_every_metric_that_the_code_spells_out_is_described() -> None:
    spelled = {
        name
        for path in ROOT.rglob("*.py")
        for name in re.findall(rf'"((?:{GROUPS})/[a-z0-9_]*[a-z0-9])"', path.read_text())
    }
    assert len(spelled) > 100
    for name in spelled:
        describe(name)


def test_names_are_unique_legal_in_mlflow_and_every_entry_is_filled() -> None:
    names = [info.name for info in PANEL]
    assert len(set(names)) == len(names)
    for info in PANEL:
        assert re.fullmatch(r"[a-z]+/[a-z0-9_{}]+", info.name)
        assert info.area in AREAS
        assert info.formula
        assert info.unit
        assert info.why


def test_a_pattern_describes_its_names_and_no_others() -> None:
    assert describe("eval/pass_at_8").name == describe("eval/pass_at_128").name
    for wrong in ("eval/pass_at_", "eval/pass_at_x", "eval/pass_at_8x", "reward/pass_at_8"):
        with pytest.raises(GrpoError):
            describe(wrong)


def test_the_page_in_docs_is_current() -> None:
    shown = CliRunner().invoke(app, ["metrics", "--md"])
    assert shown.exit_code == 0
    assert (ROOT.parent / "docs" / "metrics.md").read_text() == shown.stdout, (
        "run `grpo metrics --md > docs/metrics.md`"
    )


def test_the_command_shows_what_is_asked_for() -> None:
    shown = CliRunner().invoke(app, ["metrics", "eval/pass_at_4", "ratio/p1", "--json"])
    document = json.loads(shown.stdout)
    assert document["schema_version"] == 1
    assert [m["name"] for m in document["metrics"]] == ["eval/pass_at_{k}", "ratio/p1"]
    shown = CliRunner().invoke(app, ["metrics", "--area", "reflection"])
    assert shown.exit_code == 0
    assert "completion/reflection_right_frac" in shown.stdout
    assert "ratio/" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["ratio/p98"], "`ratio/p99`"), (["--area", "reflexion"], "`reflection`"), (["q"], "lists")],
)
def test_an_unknown_name_or_area_says_what_was_meant(arguments: list[str], hint: str) -> None:
    shown = CliRunner().invoke(app, ["metrics", *arguments])
    assert isinstance(shown.exception, GrpoError)
    assert shown.exception.exit_code == 2
    assert hint in (shown.exception.problems[0].hint or "")


def test_markers_change_no_hash_and_are_checked() -> None:
    for name in recipe_names():
        recipe = load(name).recipe
        other = load(name, sets=["health.reflection_markers=[zz]"]).recipe
        assert other.health.reflection_markers == ("zz",)
        tree = recipe.tree()
        # As it was before recipes had `health`.
        for key in ("summary", "setup", "checkpoint", "audit", "health"):
            del tree[key]
        del tree["learner"]["micro_batch_tokens"], tree["verifier"]["workers"]
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
        assert recipe.hash == other.hash == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(GrpoError) as caught:
        load("dapo", sets=['health.reflection_markers=[""]'])
    assert caught.value.exit_code == 2


def test_a_checkpoint_from_before_the_length_gap_still_loads() -> None:
    old = {"step": 3, "version": 6, "tokens_generated": 9, "prompts_seen": 2, "nonfinite": 0}
    assert Progress(**old).length_gaps == []


def tokens(logp: list[float], old: list[float], adv: list[float]) -> Tokens:
    """Sequences of two tokens each."""
    adv_N = torch.tensor(adv)
    return Tokens(
        torch.tensor(logp),
        torch.tensor(old),
        adv_N,
        torch.arange(len(adv)).repeat_interleave(2),
        torch.full((len(adv),), 2),
    )


def test_clipped_low_prob_counts_rare_tokens_that_the_advantage_pushes_up() -> None:
    rare, common = math.log(0.05), math.log(0.5)
    x = tokens([0.0] * 6, [rare, common, rare, rare, rare, rare], [1.0, 2.0, -1.0])
    high = torch.tensor([True, True, False, True, True, False])
    found = clip_metrics(torch.zeros(6, dtype=torch.bool), high, x)["ratio/clipped_low_prob_frac"]
    # Rare with A > 0: tokens 0, 2 and 3, of which 0 and 3 are clipped.
    assert (found.total, found.count) == (2, 3)


@pytest.mark.parametrize("kind", objective_kinds(), ids=lambda k: k.model_fields["kind"].default)
def test_every_shipped_objective_reports_the_clipped_rare_tokens(kind: type) -> None:
    objective = kind(delta=0.1) if kind.model_fields["kind"].default == "drpo" else kind()
    rare = math.log(0.02)
    # A ratio of 50 is beyond every bound that a kind may have.
    found = objective(tokens([-1e-4] * 4, [rare] * 4, [1.0, -1.0])).metrics
    never = kind.model_fields["kind"].default in ("dro", "drpo", "reinforce", "sapo", "vespo")
    metric = found["ratio/clipped_low_prob_frac"]
    assert metric.count == 2
    assert metric.value == (0 if never else 1)


def test_quantiles_of_ratio_and_probability_are_the_values_at_the_rounded_index() -> None:
    rng = np.random.default_rng(0)
    ratios, logp = rng.normal(0, 0.2, 1003), -rng.exponential(1.0, 57)
    result = UpdateResult(
        log_ratios=[torch.tensor(part) for part in np.split(ratios, [10, 500])],
        learner_logp={n: torch.tensor(p) for n, p in enumerate(np.split(logp, [30]))},
    )
    found, ordered = result.scalars(), np.sort(np.exp(ratios))
    assert found["ratio/min"] == pytest.approx(ordered[0])
    assert found["ratio/p1"] == pytest.approx(ordered[10])
    assert found["ratio/p99"] == pytest.approx(ordered[992])
    assert found["policy/prob_mean"] == pytest.approx(np.exp(logp).mean())
    assert found["policy/prob_p10"] == pytest.approx(np.sort(np.exp(logp))[6])


def test_held_out_metrics_leave_out_answers_without_a_verdict() -> None:
    from grpo_cli.evaluate import summarise

    def row(score: float, status: Status, length: int, text: str) -> EvalRow:
        return EvalRow("q", "q", 0, score, status, length, Finish.STOP, text)

    found = summarise(
        [
            row(1.0, Status.OK, 10, "Wait, 4"),
            row(1.0, Status.OK, 20, "4"),
            row(0.0, Status.OK, 7, "hmm 5"),
            row(0.0, Status.UNPARSED, 8, "?"),
            row(math.nan, Status.ERROR, 1000, "wait"),
        ],
        ("wait", "hmm"),
    )
    assert found["eval/format_frac"] == pytest.approx(3 / 4)
    assert found["eval/mean_length_right"] == 15
    assert found["eval/mean_length_wrong"] == 7.5
    assert found["eval/reflection_right_frac"] == found["eval/reflection_wrong_frac"] == 0.5
