"""What `compare` concludes from run folders whose differences are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_cli import stats
from grpo_cli.compare import Comparison, RunRecord, compare
from grpo_cli.compare.model import ArmResult, Verdict
from grpo_cli.compare.read import read_targets
from grpo_cli.compare.score import is_validation
from grpo_cli.errors import GrpoError
from grpo_cli.types import RunStatus, StepRecord
from tests.compare_runs import write_arm, write_plan, write_run

HIGH = {"objective": {"high": 0.28}}
LOW = {"objective": {"high": 0.1}}
BASE = [0.40, 0.45, 0.475, 0.3875, 0.4375]


def judge(root: Path, **more: Any) -> Comparison:
    found = read_targets([str(root)], root)
    return compare(found.runs, found.plans, **more)


def arm(comparison: Comparison, name: str) -> ArmResult:
    return next(a for a in comparison.arms if a.name == name)


def plus(values: Sequence[float], *shift: float) -> list[float]:
    return [value + shift[i % len(shift)] for i, value in enumerate(values)]


def code_of(caught: pytest.ExceptionInfo[GrpoError]) -> str:
    return caught.value.problems[0].code


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


# --- verdicts ------------------------------------------------------------------------------------


def test_a_known_gain_a_known_loss_and_a_known_null(root: Path) -> None:
    write_arm(root, "grpo", BASE)
    write_arm(root, "dapo", plus(BASE, 0.15, 0.1625), recipe_name="dapo", changes=HIGH)
    write_arm(root, "bad", plus(BASE, -0.15, -0.1625), recipe_name="bad", changes=LOW)
    noise = plus(BASE, 0.025, -0.025, 0.0125, -0.0125, 0.0125)
    write_arm(root, "null", noise, recipe_name="null", changes={"kl": {"beta": 0.01}})
    result = judge(root)
    assert result.control == "grpo"
    assert result.arms[0].name == "grpo"
    words = {a.name: a.verdict for a in result.arms}
    assert words == {
        "grpo": Verdict.CONTROL,
        "dapo": Verdict.BETTER,
        "bad": Verdict.WORSE,
        "null": Verdict.NONE,
    }
    assert "better than grpo by 15.5 points" in arm(result, "dapo").sentence
    null = arm(result, "null")
    assert "no difference detected" in null.sentence
    assert f"could detect {100 * null.versus.mde:.1f} points" in null.sentence


def test_the_numbers_are_those_of_seed_scores(root: Path) -> None:
    better = plus(BASE, 0.0, 0.05, 0.025)
    write_arm(root, "grpo", BASE)
    write_arm(root, "dapo", better, recipe_name="dapo", changes=HIGH)
    dapo = arm(judge(root), "dapo")
    assert dapo.score == stats.mean_interval(better)
    assert dapo.sd == pytest.approx(np.std(better, ddof=1))
    want = stats.paired_t(better, BASE)
    assert dapo.versus.difference.p == pytest.approx(want.p)
    assert dapo.versus.difference.low == pytest.approx(want.low)
    assert dapo.versus.mde == pytest.approx(stats.detectable(want.se, 4))
    assert dapo.versus.correlation == pytest.approx(np.corrcoef(better, BASE)[0, 1])
    assert dapo.versus.p_permutation == pytest.approx(stats.sign_flip_p(better, BASE))


def test_one_seed_is_an_anecdote_however_many_questions(root: Path) -> None:
    write_arm(root, "grpo", [0.3])
    write_arm(root, "dapo", [0.9], recipe_name="dapo", changes=HIGH)
    result = judge(root)
    dapo = arm(result, "dapo")
    assert dapo.verdict is Verdict.ANECDOTE
    assert math.isnan(dapo.versus.difference.p)
    assert dapo.versus.bootstrap is None
    assert "one seed per arm: this is an anecdote" in dapo.sentence


def test_two_seeds_have_an_interval_and_no_test(root: Path) -> None:
    write_arm(root, "grpo", [0.3, 0.35])
    write_arm(root, "dapo", [0.9, 0.9375], recipe_name="dapo", changes=HIGH)
    dapo = arm(judge(root), "dapo")
    assert dapo.verdict is Verdict.INTERVAL_ONLY
    assert math.isnan(dapo.versus.difference.p)
    assert math.isnan(dapo.versus.p_holm)
    assert not math.isnan(dapo.versus.difference.low)


def test_no_spread_is_no_test(root: Path) -> None:
    write_arm(root, "grpo", [0.5] * 3)
    write_arm(root, "same", [0.5] * 3, recipe_name="same", changes=LOW)
    write_arm(root, "more", [0.6] * 3, recipe_name="more", changes=HIGH)
    result = judge(root)
    assert arm(result, "same").verdict is Verdict.IDENTICAL
    assert arm(result, "more").verdict is Verdict.NO_SPREAD
    assert result.family == 0


def test_a_lower_truncation_is_better_and_a_length_is_neither(root: Path) -> None:
    write_arm(root, "grpo", BASE, truncated=0.3)
    for seed, value in enumerate(BASE):
        write_run(
            root,
            "dapo",
            seed,
            value,
            recipe_name="dapo",
            changes=HIGH,
            truncated=0.05 + 0.0125 * (seed % 2),
            scalars={"completion/mean_length": 5.0 + seed % 2},
        )
    assert arm(judge(root, metric="eval/truncated_frac"), "dapo").verdict is Verdict.BETTER
    result = judge(root, metric="completion/truncated_frac")
    assert arm(result, "dapo").verdict is Verdict.IDENTICAL
    assert judge(root, metric="eval/mean_length").direction == "none"


def test_a_p_that_does_not_stand_in_the_family_is_said(root: Path) -> None:
    write_arm(root, "grpo", BASE)
    near = plus(BASE, 0.05, 0.0125, 0.0625, 0.0, 0.0375)
    write_arm(root, "near", near, recipe_name="near", changes=HIGH)
    alone = arm(judge(root), "near")
    assert 0.02 < alone.versus.difference.p < 0.05
    assert alone.verdict is Verdict.BETTER
    for i in range(4):
        noise = plus(BASE, 0.025, -0.025, 0.0125, -0.0125, 0.0)
        change = {"kl": {"beta": 0.01 * (i + 1)}}
        write_arm(root, f"n{i}", noise, recipe_name=f"n{i}", changes=change)
    result = judge(root)
    assert result.family == 5
    among = arm(result, "near")
    assert among.versus.p_holm == pytest.approx(5 * among.versus.difference.p)
    assert among.verdict is Verdict.NONE
    assert "does not stand among 5 comparisons" in among.sentence
    assert among.versus.mde > alone.versus.mde


# --- pairing -------------------------------------------------------------------------------------


def test_shared_seeds_are_paired_and_others_are_not(root: Path) -> None:
    write_arm(root, "grpo", BASE)
    write_arm(root, "dapo", plus(BASE, 0.1, 0.11), recipe_name="dapo", changes=HIGH)
    for seed, value in enumerate(plus(BASE, 0.1, 0.11), start=3):
        write_run(root, "late", seed, value, recipe_name="late", changes=LOW)
    result = judge(root)
    assert arm(result, "dapo").versus.difference.method == "paired"
    late = arm(result, "late").versus
    assert late.difference.method == "welch"
    assert late.num_seeds == (5, 5)
    assert math.isnan(late.correlation)


def test_arms_with_other_adapters_are_not_paired(root: Path) -> None:
    """Another rank has another initialisation: equal seeds then share nothing."""
    write_arm(root, "grpo", BASE)
    write_arm(root, "rank", plus(BASE, 0.1, 0.11), changes={"lora": {"rank": 4}})
    result = judge(root)
    assert arm(result, "grpo lora.rank=4").versus.difference.method == "welch"


def test_a_failed_seed_leaves_the_pairs_of_the_others(root: Path) -> None:
    write_arm(root, "grpo", BASE)
    write_arm(root, "dapo", plus(BASE[:4], 0.1, 0.11), recipe_name="dapo", changes=HIGH)
    write_run(
        root,
        "dapo",
        4,
        0.1,
        recipe_name="dapo",
        changes=HIGH,
        status=RunStatus.FAILED,
        reason="loss was not finite",
        stop_at=5,
    )
    dapo = arm(judge(root), "dapo")
    assert dapo.versus.difference.method == "paired"
    assert dapo.versus.num_seeds == (4, 4)
    assert len(dapo.seeds) == 5
    assert dapo.score.n == 4
    text = " ".join(dapo.remarks)
    assert "seed 4 failed (loss was not finite)" in text
    assert "without them" in text
    assert dapo.versus.with_unfinished.mean < dapo.versus.difference.mean


def test_one_seed_that_is_left_is_compared_with_the_same_seed(root: Path) -> None:
    write_arm(root, "grpo", [0.3, 0.5])
    write_run(root, "dapo", 0, 0.3, recipe_name="dapo", changes=HIGH)
    write_run(
        root, "dapo", 1, 0.5, recipe_name="dapo", changes=HIGH, status=RunStatus.FAILED, stop_at=3
    )
    dapo = arm(judge(root), "dapo")
    assert dapo.verdict is Verdict.ANECDOTE
    # Against the mean of both seeds it would be 10 points below.
    assert dapo.versus.difference.mean == 0
    assert "dapo is level with grpo" in dapo.sentence


def test_a_run_that_nobody_finished_does_not_count_at_the_end(root: Path) -> None:
    write_arm(root, "grpo", BASE[:3])
    write_arm(root, "dapo", BASE[:3], recipe_name="dapo", changes=HIGH, status=None, stop_at=4)
    result = judge(root)
    assert arm(result, "dapo").verdict is Verdict.NO_SCORE
    assert {s.state for s in arm(result, "dapo").seeds} == {"interrupted"}
    at_4 = judge(root, at="4")
    assert arm(at_4, "dapo").score.n == 3
    assert arm(at_4, "dapo").versus.with_unfinished is None


# --- what else explains it -----------------------------------------------------------------------


def test_unequal_budgets_are_said(root: Path) -> None:
    write_arm(root, "grpo", BASE)
    write_arm(root, "near", BASE, recipe_name="near", changes=LOW, tokens_per_step=105)
    write_arm(root, "dapo", BASE, recipe_name="dapo", changes=HIGH, tokens_per_step=180)
    result = judge(root)
    assert "1.80 times the control's tokens sampled" in " ".join(arm(result, "dapo").remarks)
    assert not any("budget" in line for line in arm(result, "near").remarks)
    # The same curve over more tokens is lower at the same number of tokens.
    areas = {a.name: a.health["area"] for a in result.arms}
    assert areas["dapo"] < areas["near"] < areas["grpo"]


@pytest.mark.parametrize(
    ("share", "what"), [("truncated", "truncated"), ("unparsed", "could not be read")]
)
def test_a_gain_that_is_a_drop_in_truncation_or_parsing_is_said(
    root: Path, share: str, what: str
) -> None:
    write_arm(root, "grpo", BASE, **{share: 0.25})
    write_arm(
        root, "dapo", plus(BASE, 0.2, 0.21), recipe_name="dapo", changes=HIGH, **{share: 0.05}
    )
    write_arm(root, "real", plus(BASE, 0.2, 0.21), recipe_name="real", changes=LOW, **{share: 0.25})
    result = judge(root)
    remark = next(line for line in arm(result, "dapo").remarks if what in line)
    assert "20.0 points fewer" in remark
    assert "25.0 % to 5.0 %" in remark
    assert not any(what in line for line in arm(result, "real").remarks)


# --- which step ----------------------------------------------------------------------------------


def test_the_score_is_taken_where_it_was_said(root: Path) -> None:
    write_arm(root, "grpo", [0.4, 0.5, 0.6])
    assert judge(root).arms[0].score.mean == pytest.approx(0.5)
    assert judge(root, at="4").arms[0].score.mean == pytest.approx(0.35)
    assert judge(root, at="0").arms[0].score.mean == pytest.approx(0.2)
    with pytest.raises(GrpoError, match="step 5") as caught:
        judge(root, at="5")
    assert code_of(caught) == "GR233"
    assert "0, 4, 8" in str(caught.value.problems[0].hint)
    with pytest.raises(GrpoError) as caught:
        judge(root, at="best")
    assert code_of(caught) == "GR209"
    with pytest.raises(GrpoError) as caught:
        judge(root, metric="eval/acuracy")
    assert "eval/accuracy" in str(caught.value.problems[0].hint)


def record(seed: int, scores: dict[int, dict[str, float]], **more: Any) -> RunRecord:
    """A run in memory with these question scores at these steps."""
    fields: dict[str, Any] = {
        "place": f"run {seed}",
        "run_id": str(seed),
        "recipe_name": "grpo",
        "name": "grpo",
        "recipe_hash": "h",
        "state": "done",
        "reason": None,
        "leaves": {"objective.high": 0.2},
        "facts": {},
        "records": tuple(
            StepRecord(step, step, {"eval/accuracy": float(np.mean(list(row.values())))})
            for step, row in scores.items()
        ),
        "scores_at": scores.get,
        **more,
    }
    return RunRecord(seed=seed, **fields)


def test_best_on_val_is_judged_on_questions_that_did_not_choose() -> None:
    """Step 4 is best where it is chosen and worst where it is judged: luck must not count."""
    names = [f"q{i}" for i in range(40)]
    picks = {q for q in names if is_validation(q)}
    assert 10 < len(picks) < 30
    scores = {
        0: dict.fromkeys(names, 0.5),
        4: {q: 1.0 if q in picks else 0.25 for q in names},
        8: {q: 0.75 if q in picks else 0.9 for q in names},
    }
    found = compare([record(0, scores)], at="best-on-val").arms[0].seeds[0]
    assert (found.step, found.score) == (4, 0.25)
    with pytest.raises(GrpoError, match="best-on-val") as caught:
        compare([record(0, scores)], at="best-on-val", metric="reward/mean")
    assert code_of(caught) == "GR209"


def test_the_bootstrap_has_every_seed_and_question(root: Path) -> None:
    write_arm(root, "grpo", BASE[:3])
    (dapo, *_) = write_arm(root, "dapo", plus(BASE[:3], 0.1), recipe_name="dapo", changes=HIGH)
    found = arm(judge(root), "dapo").versus
    assert found.bootstrap.n == 40
    assert found.bootstrap.mean == pytest.approx(found.difference.mean)
    assert found.bootstrap == arm(judge(root), "dapo").versus.bootstrap  # the generator is fixed
    assert arm(judge(root, metric="eval/pass_at_2"), "dapo").versus.bootstrap is None
    (dapo / "eval" / "step-000008.jsonl").unlink()
    without = judge(root)
    assert arm(without, "dapo").versus.bootstrap is None
    assert any("no crossed bootstrap" in note for note in without.notes)


# --- the level of the whole procedure ------------------------------------------------------------


def test_four_null_arms_are_rarely_called_anything() -> None:
    """The level itself is measured in test_stats_coverage.py; here it is the whole way there."""
    rng = np.random.default_rng(11)
    studies, wrong = 300, 0
    for _ in range(studies):
        shared = rng.normal(0.4, 0.03, 5)
        runs = []
        for a in range(5):
            for seed in range(5):
                score = shared[seed] + rng.normal(0, 0.02)
                last = StepRecord(8, 8, {"eval/accuracy": score})
                runs.append(
                    record(
                        seed,
                        {},
                        recipe_name=f"arm{a}",
                        recipe_hash=f"h{a}",
                        leaves={"objective.high": 0.2 + a},
                        records=(last,),
                    )
                )
        words = {a.verdict for a in compare(runs).arms}
        wrong += bool(words & {Verdict.BETTER, Verdict.WORSE})
    assert wrong / studies <= 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5


# --- plans ---------------------------------------------------------------------------------------


@pytest.fixture
def ablation(root: Path) -> Path:
    folder = root / "ablations" / "clip"
    arms = {
        "clip-symmetric": write_arm(folder.parent, "clip-symmetric", BASE, recipe_name="clip"),
        "clip-higher": write_arm(
            folder.parent, "clip-higher", plus(BASE, 0.1, 0.11), recipe_name="clip", changes=HIGH
        ),
    }
    arms["clip-higher"].append(folder / "clip-higher" / "s5-00000000")
    write_plan(folder, arms, "clip-symmetric")
    return folder


def test_an_ablation_names_its_arms_control_and_primary(ablation: Path) -> None:
    result = judge(ablation)
    assert [a.name for a in result.arms] == ["clip-symmetric", "clip-higher"]
    assert (result.control, result.control_why) == ("clip-symmetric", "the plan's control")
    assert not result.exploratory
    higher = arm(result, "clip-higher")
    assert higher.missing == (5,)
    assert "seed 5 was planned and not run" in " ".join(higher.remarks)
    assert higher.verdict is Verdict.BETTER


def test_another_metric_than_the_planned_is_exploratory(ablation: Path) -> None:
    result = judge(ablation, metric="eval/pass_at_2")
    assert result.exploratory
    assert any("exploratory" in note for note in result.notes)
    assert judge(ablation, at="4").exploratory


def test_the_plan_decides_what_is_primary(ablation: Path) -> None:
    plan = ablation / "plan.json"
    text = plan.read_text()
    plan.write_text(text.replace('"at": "final"', '"at": 4'))
    result = judge(ablation)
    assert (result.metric, result.at, result.exploratory) == ("eval/accuracy", "4", False)


def test_a_difference_outside_the_planned_axis_is_refused(ablation: Path) -> None:
    plan = ablation / "plan.json"
    plan.write_text(plan.read_text().replace('"keys": ["objective"]', '"keys": ["kl"]'))
    with pytest.raises(GrpoError, match=r"objective\.high") as caught:
        judge(ablation)
    assert code_of(caught) == "GR231"
    result = judge(ablation, allow_diff=True)
    assert any("objective.high is 0.28, not 0.2" in line for line in result.differences)


# --- fairness without a plan ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"changes": {**HIGH, "sampling": {"group_size": 4}}},
        {"changes": {"eval": {"num_questions": 20}}},
        {"changes": {"task": {"max_level": 2}}},
        {"changes": HIGH, "identity": {"model": "m1", "verifier": "v2"}},
        {"changes": HIGH, "device": "cuda:0"},
    ],
    ids=["algorithm-and-setup", "evaluation", "task", "verifier", "device"],
)
def test_arms_that_differ_in_more_than_one_thing_are_refused(
    root: Path, more: dict[str, Any]
) -> None:
    write_arm(root, "grpo", BASE[:3])
    write_arm(root, "other", BASE[:3], recipe_name="other", **more)
    with pytest.raises(GrpoError) as caught:
        judge(root)
    assert code_of(caught) == "GR231"
    assert "--allow-diff" in str(caught.value.problems[0].hint)
    assert judge(root, allow_diff=True).differences


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"high": 0.28}, "kl": {"beta": 0.01}, "optim": {"lr": 0.1}},
        {"sampling": {"group_size": 4}},
        {"eval": {"every": 2}},
    ],
    ids=["algorithm", "one-setup-key", "how-often-evaluated"],
)
def test_one_thing_may_differ(root: Path, changes: dict[str, Any]) -> None:
    write_arm(root, "grpo", BASE[:3])
    write_arm(root, "other", BASE[:3], recipe_name="other", changes=changes)
    assert judge(root).differences == ()


def test_a_sampling_axis_changes_the_evaluation_too(root: Path) -> None:
    write_arm(root, "grpo", BASE[:3])
    write_arm(root, "long", BASE[:3], changes={"sampling": {"max_tokens": 16}})
    assert any("sampling.max_tokens" in note for note in judge(root).notes)


def test_seeds_of_one_arm_must_be_alike(root: Path) -> None:
    write_run(root, "grpo", 0, 0.4)
    write_run(root, "grpo", 1, 0.4, identity={"model": "m1", "verifier": "v2"})
    with pytest.raises(GrpoError, match="verifier: v1"):
        judge(root)


# --- arms ----------------------------------------------------------------------------------------


def test_arms_are_named_by_recipe_and_what_differs(root: Path) -> None:
    write_arm(root, "grpo", BASE[:3])
    write_arm(root, "other", BASE[:3], changes=HIGH)
    write_arm(root, "dapo", BASE[:3], recipe_name="dapo", changes={"objective": {"high": 0.3}})
    names = [a.name for a in judge(root).arms]
    assert sorted(names) == ["dapo", "grpo objective.high=0.2", "grpo objective.high=0.28"]


def test_a_seed_counts_once(root: Path) -> None:
    write_run(root, "one", 0, 0.4)
    write_run(root, "two", 0, 0.4)
    with pytest.raises(GrpoError, match="two runs of seed 0") as caught:
        judge(root)
    assert code_of(caught) == "GR232"
    assert [a.name for a in judge(root, group_by="name").arms] == ["one", "two"]


def test_the_baseline_may_be_a_part_of_a_name(root: Path) -> None:
    write_arm(root, "grpo", BASE[:3])
    write_arm(root, "dapo", BASE[:3], recipe_name="dapo", changes=HIGH)
    assert judge(root, baseline="dap").control == "dapo"
    with pytest.raises(GrpoError, match="more than one") as caught:
        judge(root, baseline="po")
    with pytest.raises(GrpoError) as caught:
        judge(root, baseline="dappo")
    assert "did you mean `dapo`?" in str(caught.value.problems[0].hint)


def test_group_by_a_recipe_key(root: Path) -> None:
    write_arm(root, "a", BASE[:3], recipe_name="a")
    write_arm(root, "b", BASE[:3], recipe_name="b", changes=HIGH)
    result = judge(root, group_by="objective.high")
    assert [a.name for a in result.arms] == ["objective.high=0.2", "objective.high=0.28"]
    with pytest.raises(GrpoError) as caught:
        judge(root, group_by="objective.hihg")
    assert "objective.high" in str(caught.value.problems[0].hint)


def test_one_arm_stands_alone(root: Path) -> None:
    write_arm(root, "grpo", BASE)
    result = judge(root)
    assert result.control is None
    assert "only arm" in result.arms[0].sentence
