"""The plan of an ablation: arms, control, what cannot differ, what it can see, and its file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from grpo_cli.ablate.checks import arm_warnings
from grpo_cli.ablate.layout import choose_layout
from grpo_cli.ablate.plan import Plan, Request, make_plan
from grpo_cli.ablate.run import Options, batches, missing_cells, run_plan, spread
from grpo_cli.ablate.show import plan_warnings
from grpo_cli.ablate.store import (
    ablation_dir,
    merged,
    plan_hash,
    planned_steps,
    read_outline,
    read_plan,
    write_plan,
)
from grpo_cli.errors import GrpoError
from grpo_cli.mlflow_ablation import parent_run
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from grpo_cli.runlock import claim
from grpo_cli.stats import mde


def plan(root: Path, *axes: str, recipe: str = "dapo", **more: Any) -> Plan:
    return make_plan(Request(recipe, axes, **more), root)


def codes(caught: pytest.ExceptionInfo[GrpoError]) -> list[str]:
    return [problem.code for problem in caught.value.problems]


def test_a_grid_has_every_combination_and_the_recipe_as_its_control(tmp_path: Path) -> None:
    got = plan(tmp_path, "clip", "loss_norm", seeds=2)
    assert len(got.arms) == 9
    assert len(got.cells) == 18
    assert got.control == "clip-higher.loss_norm-token_mean"
    assert got.arm(got.control).recipe.hash == load("dapo").recipe.hash
    assert got.arm(got.control).differs == {}
    assert got.arm("clip-symmetric.loss_norm-token_mean").differs == {"objective.high": 0.2}


def test_one_at_a_time_adds_each_setting_to_the_base(tmp_path: Path) -> None:
    got = plan(tmp_path, "clip", "loss_norm", design="one-at-a-time", seeds=1)
    assert [arm.name for arm in got.arms] == [
        "base",
        "clip-none",
        "clip-symmetric",
        "loss_norm-seq_mean",
        "loss_norm-constant",
    ]
    assert got.control == "base"
    assert all(len(arm.differs) <= 2 for arm in got.arms)


def test_all_arms_of_a_seed_stand_together(tmp_path: Path) -> None:
    got = plan(tmp_path, "std_norm", seeds=2)
    assert [cell.seed for cell in got.cells] == [0, 0, 0, 1, 1, 1]
    assert len({cell.run for cell in got.cells}) == 6


def test_the_control_can_be_named_in_short(tmp_path: Path) -> None:
    assert plan(tmp_path, "std_norm", control="none").control == "std_norm-none"
    assert plan(tmp_path, "std_norm", control="std_norm-batch").control == "std_norm-batch"
    with pytest.raises(GrpoError) as caught:
        plan(tmp_path, "std_norm", control="std_norm-bach")
    assert "did you mean `std_norm-batch`" in (caught.value.problems[0].hint or "")


def test_without_the_recipe_among_its_arms_a_grid_takes_the_first(tmp_path: Path) -> None:
    assert plan(tmp_path, "optim.lr=1e-5,2e-5").control == "lr-1e-5"


def test_the_sanity_arms_are_the_control_with_one_key_changed(tmp_path: Path) -> None:
    got = plan(tmp_path, "std_norm", extra_arms=("random_reward", "no_op"))
    assert got.arm("no_op").differs == {"control.kind": "no_op"}
    assert got.arm("random_reward").recipe.control.kind == "random_reward"
    assert len({arm.recipe.hash for arm in got.arms}) == 5
    assert len(plan(tmp_path, extra_arms=("no_op",)).arms) == 2


@pytest.mark.parametrize(
    ("sets", "refused"),
    [
        (("optim.minibatches=1",), True),
        (("optim.minibatches=1", "optim.epochs_per_batch=2"), False),
        (("optim.minibatches=2",), False),
        (("optim.minibatches=1", "correction={kind: none, bypass: true}"), False),
    ],
)
def test_bounds_on_a_ratio_that_is_always_1_are_refused(
    tmp_path: Path, sets: tuple[str, ...], refused: bool
) -> None:
    if not refused:
        plan(tmp_path, "clip", sets=sets)
        return
    with pytest.raises(GrpoError) as caught:
        plan(tmp_path, "clip", sets=sets)
    assert codes(caught) == ["GR222"]
    message = caught.value.problems[0].message
    assert "one minibatch and one epoch" in message
    assert all(f"`clip-{name}`" in message for name in ("none", "symmetric", "higher"))


def test_other_axes_do_not_need_a_second_minibatch(tmp_path: Path) -> None:
    assert len(plan(tmp_path, "loss_norm", sets=("optim.minibatches=1",)).arms) == 3


def test_two_arms_of_one_recipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GrpoError) as caught:
        plan(tmp_path, "objective.high=0.28,0.280")
    assert codes(caught) == ["GR221"]


def test_a_key_that_is_switched_off_makes_no_arm(tmp_path: Path) -> None:
    with pytest.raises(GrpoError) as caught:
        plan(tmp_path, "kl.kind=k2,k3")
    assert codes(caught) == ["GR222"]
    assert len(plan(tmp_path, "kl.kind=k2,k3", sets=("kl.beta=0.01",)).arms) == 2


@pytest.mark.parametrize(
    ("axes", "code"),
    [
        (("correction",), "GW421"),
        (("temperature",), "GW422"),
        (("eval.samples_per_question=4,8",), "GW422"),
    ],
)
def test_arms_that_mislead_are_flagged(tmp_path: Path, axes: tuple[str, ...], code: str) -> None:
    got = plan(tmp_path, *axes, sets=("engine.kind=transformers",))
    assert code in [p.code for p in arm_warnings([(a.name, a.recipe) for a in got.arms])]


def test_too_few_seeds_are_said_at_plan_time(tmp_path: Path) -> None:
    def warned(seeds: int) -> list[str]:
        return [p.message for p in plan_warnings(plan(tmp_path, "std_norm", seeds=seeds))]

    assert any("anecdote" in m for m in warned(1))
    assert any("without a test" in m for m in warned(2))
    assert math.isnan(plan(tmp_path, "std_norm", seeds=2).estimate.mde)
    assert warned(3) == []


@pytest.mark.parametrize(
    "more",
    [
        {"primary": "eval/acuracy@final"},
        {"primary": "eval/accuracy@7"},
        {"primary": "eval/accuracy@80"},
        {"primary": "eval/accuracy@soon"},
        {"primary": "a//b"},
        {"budget": "tokens"},
        {"budget": "hours=3"},
        {"budget": "steps=0"},
        {"name": "../elsewhere"},
        {"extra_arms": ("random",)},
    ],
)
def test_what_was_asked_for_and_does_not_exist_is_refused(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    with pytest.raises(GrpoError) as caught:
        plan(tmp_path, "std_norm", **more)
    assert codes(caught) == ["GR209"]


def test_nothing_to_compare_and_the_same_axis_twice_are_refused(tmp_path: Path) -> None:
    for axes in ((), ("clip", "clip")):
        with pytest.raises(GrpoError) as caught:
            plan(tmp_path, *axes)
        assert codes(caught) == ["GR209"]


def test_a_budget_sets_the_steps_of_every_arm(tmp_path: Path) -> None:
    assert {a.recipe.optim.steps for a in plan(tmp_path, "clip", budget="steps=7").arms} == {7}
    small = plan(tmp_path, "clip", budget="tokens=3_000_000", extra_arms=("no_op",))
    (steps,) = {arm.recipe.optim.steps for arm in small.arms}
    assert 1 < steps < 60
    assert small.estimate.tokens == pytest.approx(3e6, rel=0.1)
    with pytest.raises(GrpoError, match="does not pay"):
        plan(tmp_path, "clip", budget="tokens=1000")


def test_the_estimate_says_where_it_is_from_and_what_the_design_sees(tmp_path: Path) -> None:
    got = plan(tmp_path, "std_norm", seeds=5).estimate
    assert "default" in got.cost_from
    assert "assumed" in got.seed_sd_from
    assert got.family == 2
    # The comparison pairs the seeds; nothing is known of pairs yet, so as if they were unrelated.
    assert got.paired
    assert got.mde == pytest.approx(mde(math.sqrt(2) * 0.02, 5, paired=True, family=2))
    # Another adapter size starts from another adapter: there is nothing to pair.
    other = plan(tmp_path, "lora.rank=4,8", seeds=5).estimate
    assert not other.paired
    assert other.mde == pytest.approx(mde(0.02, 5))
    # No default is right for the spread of any metric.
    assert math.isnan(plan(tmp_path, "std_norm", primary="eval/mean_length").estimate.mde)
    assert math.isnan(plan(tmp_path, "std_norm", seeds=1).estimate.mde)


def write_done(root: Path, recipe: Recipe, seed: int, accuracy: float) -> None:
    """A run of two steps that is done, as far as planning reads it."""
    folder = root / "dapo" / "tiny" / f"s{seed}-{recipe.hash[:8]}"
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(recipe.tree()))
    info = {"run_id": "x", "recipe": "dapo", "name": "tiny", "seed": seed, "attempt": 1}
    info |= {"recipe_hash": recipe.hash, "status": "done", "step": 2, "reason": None}
    (folder / "run.json").write_text(json.dumps({**info, "started": "", "ended": None}))
    scalars = {"time/step_s": 2.0, "progress/tokens_generated": 200}
    rows = [{"step": 0, "unix_ms": 0, "scalars": {"eval/accuracy": 0.3}}]
    rows.append({"step": 1, "unix_ms": 0, "scalars": {**scalars}})
    last = {**scalars, "eval/accuracy": accuracy, "time/eval_s": 3.0}
    rows.append({"step": 2, "unix_ms": 0, "scalars": last})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_earlier_runs_of_the_setup_replace_the_defaults(tmp_path: Path) -> None:
    recipe = load("dapo").recipe
    for seed, accuracy in enumerate((0.40, 0.42, 0.47)):
        write_done(tmp_path, recipe, seed, accuracy)
    got = plan(tmp_path, "std_norm", seeds=3).estimate
    assert "3 earlier runs" in got.cost_from
    assert got.seconds - got.eval_seconds == pytest.approx(3 * 3 * 60 * 2.0)
    assert got.seed_sd == pytest.approx(0.036055, abs=1e-5)
    assert got.pair_sd == pytest.approx(math.sqrt(2) * got.seed_sd), "no pairs yet"
    other = plan(tmp_path, "std_norm", seeds=3, sets=("sampling.max_tokens=40",)).estimate
    assert "default" in other.cost_from, "another setup says nothing about this one"


def test_the_power_of_a_paired_design_is_that_of_earlier_pairs(tmp_path: Path) -> None:
    grpo = load("dapo", sets=["advantage.scale=none"]).recipe
    for seed, accuracy in enumerate((0.40, 0.42, 0.47)):
        write_done(tmp_path, load("dapo").recipe, seed, accuracy)
        write_done(tmp_path, grpo, seed, accuracy + 0.1 + 0.001 * seed)
    got = plan(tmp_path, "std_norm", seeds=3).estimate
    assert got.pair_sd == pytest.approx(0.001)
    assert got.mde == pytest.approx(mde(0.001, 3, paired=True, family=2))


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = plan(tmp_path, "clip", "std_norm", seeds=2, extra_arms=("no_op",), name="n")
    folder = ablation_dir(tmp_path, "n")
    write_plan(folder, made)
    assert read_plan(folder) == made
    assert read_outline(folder) == made.outline
    document = json.loads((folder / "plan.json").read_text())
    assert document["hash"] == plan_hash(made)
    assert document["primary"] == {"metric": "eval/accuracy", "at": "final"}
    assert {"arm", "seed", "run", "recipe_hash"} == set(document["cells"][0])


def test_a_plan_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    write_plan(folder, plan(tmp_path, "clip", seeds=2))
    file = folder / "plan.json"
    whole = file.read_text()
    file.write_text(whole.replace('"eval/accuracy"', '"eval/mean_length"'))
    with pytest.raises(GrpoError, match="does not match its hash"):
        read_plan(folder)
    file.write_text(whole[:-40])
    with pytest.raises(GrpoError) as caught:
        read_plan(folder)
    assert codes(caught) == ["GR224"]


def test_a_plan_of_another_version_says_so(tmp_path: Path) -> None:
    folder = ablation_dir(tmp_path, "n")
    write_plan(folder, plan(tmp_path, "std_norm", name="n"))
    document = json.loads((folder / "plan.json").read_text())
    document["arms"][0]["recipe_hash"] = "0" * 64
    (folder / "plan.json").write_text(json.dumps(document))
    with pytest.raises(GrpoError, match="made by another version"):
        read_plan(folder)


def test_a_process_that_is_refused_leaves_the_plan_of_the_running_one(tmp_path: Path) -> None:
    folder = ablation_dir(tmp_path, "n")
    write_plan(folder, plan(tmp_path, "std_norm", name="n", seeds=1))
    before = (folder / "plan.json").read_bytes()
    lock = claim(tmp_path, folder)
    options = Options(tmp_path, "none", ["grpo"])
    with pytest.raises(GrpoError, match="in use by") as caught:
        run_plan(
            folder,
            plan(tmp_path, "std_norm", name="n", seeds=3),
            options,
            lambda board, new: None,
            lambda: None,
            lambda text: None,
        )
    lock.release()
    assert "grpo runs watch n" in str(caught.value.problems[0].hint)
    assert (folder / "plan.json").read_bytes() == before


@pytest.mark.parametrize("key", ["hash", "cells", "primary", "arms", "budget"])
def test_a_plan_that_lacks_a_key_is_one_problem(tmp_path: Path, key: str) -> None:
    folder = ablation_dir(tmp_path, "n")
    write_plan(folder, plan(tmp_path, "std_norm", name="n"))
    document = json.loads((folder / "plan.json").read_text())
    del document[key]
    (folder / "plan.json").write_text(json.dumps(document))
    for read in (
        lambda: parent_run(folder, mock.Mock(), "0", "sqlite:///x"),
        lambda: read_plan(folder),
    ):
        with pytest.raises(GrpoError, match=f"it lacks '{key}'") as caught:
            read()
        assert codes(caught) == ["GR224"]


def test_more_seeds_extend_a_plan_and_fewer_do_not_shrink_it(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    three = plan(tmp_path, "clip", seeds=3)
    write_plan(folder, three)
    five = merged(folder, plan(tmp_path, "clip", seeds=5))
    assert five.seeds == (0, 1, 2, 3, 4)
    assert five.seeds_added == ((0, 1, 2), (3, 4))
    assert plan_hash(five) == plan_hash(three)
    assert five.estimate.mde < three.estimate.mde
    assert merged(folder, plan(tmp_path, "clip", seeds=2)) == three


def test_another_plan_under_the_same_name_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    write_plan(folder, plan(tmp_path, "clip"))
    for more, words in (
        ({"sets": ("optim.lr=1e-5",)}, "optim.lr` was 0.0003 and is 1e-05"),
        ({"primary": "eval/mean_length@final"}, "primary.metric"),
        ({"control": "none"}, "control` was"),
    ):
        with pytest.raises(GrpoError) as caught:
            merged(folder, plan(tmp_path, "clip", **more))
        assert codes(caught) == ["GR223"]
        assert words in caught.value.problems[0].message
    # A key without effect on results is no other plan.
    merged(folder, plan(tmp_path, "clip", sets=("checkpoint.every=5",)))


def test_what_a_budget_came_to_is_kept(tmp_path: Path) -> None:
    folder = ablation_dir(tmp_path, "b")
    request = Request("dapo", ("clip",), budget="minutes=5", name="b")
    first = make_plan(request, tmp_path)
    write_plan(folder, first)
    steps = planned_steps(folder, "minutes=5")
    assert steps == first.arms[0].recipe.optim.steps
    again = make_plan(request, tmp_path, lambda name: planned_steps(folder, "minutes=5"))
    assert merged(folder, again) == first
    assert planned_steps(folder, "minutes=6") is None


def test_cells_are_dealt_so_that_every_worker_gets_of_every_arm(tmp_path: Path) -> None:
    got = plan(tmp_path, "optim.lr=1e-5,2e-5", seeds=4)
    hands = spread(got, got.cells, 2)
    assert sorted(len(hand) for hand in hands) == [4, 4]
    assert all({cell.arm for cell in hand} == {"lr-1e-5", "lr-2e-5"} for hand in hands)
    assert {cell for hand in hands for cell in hand} == set(got.cells)
    assert len(spread(got, got.cells[:1], 4)) == 1


def test_cells_with_another_engine_or_task_take_turns(tmp_path: Path) -> None:
    got = plan(tmp_path, "engine.batch_rows=32,64", seeds=3)
    found = list(batches(got, got.cells, 2))
    assert [len(batch) for batch in found] == [2, 1, 2, 1]
    assert all(len({cell.arm for cell in batch}) == 1 for batch in found)
    assert len(list(batches(got, plan(tmp_path, "clip").cells[:0], 2))) == 0


def test_a_plan_that_never_ran_misses_every_cell(tmp_path: Path) -> None:
    got = plan(tmp_path, "clip", seeds=2)
    assert missing_cells(tmp_path / "p", got) == list(got.cells)


def test_the_layout_is_what_was_asked_for_or_what_was_measured(tmp_path: Path) -> None:
    recipe = load("dapo", sets=["device=cpu"]).recipe
    assert choose_layout(recipe, 6, tmp_path, processes=3).processes == 3
    exact = choose_layout(recipe, 6, tmp_path, exact=True)
    assert (exact.processes, exact.threads) == (1, None)
    assert choose_layout(recipe, 1, tmp_path).processes == 1
    assert not (tmp_path / "layout.json").exists()
