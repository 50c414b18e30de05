"""What `--axis` means: shipped axes, files, recipe keys, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe import locate
from grpo_cli.recipe.axes import load_arm, load_axis
from grpo_cli.recipe.load import load

SHIPPED = {
    "clip": ["none", "symmetric", "higher"],
    "std_norm": ["group", "batch", "none"],
    "loss_norm": ["seq_mean", "token_mean", "constant"],
    "overlong": ["none", "hard", "mask", "soft"],
    "ratio": ["token", "gspo", "gmpo", "cispo"],
    "correction": ["none", "tis_token", "tis_seq", "mis", "icepop"],
    "kl": ["none", "weak", "grpo"],
    "filter": ["none", "zero_variance", "dynamic_sampling"],
    "group_size": ["4", "8", "16"],
    "temperature": ["0.6", "1.0", "1.2"],
    "vapo": [
        *("vapo", "no_pretraining", "one_lambda", "fixed_lambda", "symmetric_clip"),
        *("seq_mean", "no_positive_nll", "pairs"),
    ],
    "method": ["grpo", "dapo", "dr_grpo", "gspo", "gmpo", "cispo", "vapo"],
}


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("base", ["dapo", "grpo", "cispo"])
def test_every_shipped_axis_gives_arms_that_differ(name: str, base: str) -> None:
    axis = load_axis(name, 1)
    assert [arm.name for arm in axis.arms] == SHIPPED[name]
    assert axis.summary
    hashes = [load_arm(base, None, [], [(axis, arm)]).recipe.hash for arm in axis.arms]
    assert len(set(hashes)) == len(hashes)


def test_the_list_of_shipped_axes_is_whole() -> None:
    assert locate.axis_names() == sorted(SHIPPED)


def test_an_arm_changes_what_its_axis_says_and_knows_where_it_stands() -> None:
    axis = load_axis("std_norm", 1)
    loaded = load_arm("dapo", None, ["optim.lr=1e-5"], [(axis, axis.arms[2])])
    assert loaded.recipe.advantage.scale == "none"
    assert loaded.recipe.optim.lr == 1e-5
    assert loaded.origins["advantage.scale"].startswith("recipes/axes/std_norm.yaml:")
    assert "recipes/axes/std_norm.yaml" in loaded.sources


def test_an_axis_wins_over_a_set_so_that_its_arms_stay_apart() -> None:
    axis = load_axis("clip", 1)
    highs = [
        load_arm("dapo", None, ["objective.high=0.5"], [(axis, arm)]).recipe.objective.high
        for arm in axis.arms
    ]
    assert highs == [1e6, 0.2, 0.28]


def test_an_arm_may_be_another_recipe_on_the_same_setup(tmp_path: Path) -> None:
    axis = load_axis("method", 1)
    arm = next(arm for arm in axis.arms if arm.name == "dr_grpo")
    got, want = load_arm("dapo", None, [], [(axis, arm)]).recipe, load("dr_grpo").recipe
    assert got.hash == want.hash


@pytest.mark.parametrize(
    ("typed", "names", "values"),
    [
        ("optim.lr=1e-5,2e-5", ["1e-5", "2e-5"], [1e-5, 2e-5]),
        (
            "optim.betas=[0.9, 0.99],[0.9, 0.999]",
            ["0.9-0.99", "0.9-0.999"],
            [(0.9, 0.99), (0.9, 0.999)],
        ),
    ],
)
def test_any_recipe_key_is_an_axis(typed: str, names: list[str], values: list[object]) -> None:
    axis = load_axis(typed, 1)
    assert [arm.name for arm in axis.arms] == names
    key = typed.split("=")[0].split(".")[1]
    found = [load_arm("dapo", None, [], [(axis, arm)]).recipe.optim for arm in axis.arms]
    assert [getattr(optim, key) for optim in found] == values


def test_whole_nodes_are_values_too() -> None:
    axis = load_axis("overlong={kind: none},{kind: hard, penalty: 0.5}", 1)
    kinds = [load_arm("dapo", None, [], [(axis, a)]).recipe.overlong.kind for a in axis.arms]
    assert kinds == ["none", "hard"]
    assert len({arm.name for arm in axis.arms}) == 2


@pytest.mark.parametrize(
    ("typed", "code", "hint"),
    [
        ("clpi", "GR107", "did you mean `clip`?"),
        ("lr", "GR107", "`--axis optim.lr=A,B`"),
        ("nothing_like_it", "GR107", "shipped axes: clip"),
        ("optim.lrr=1,2", "GR101", "did you mean `optim.lr`?"),
        ("optim.lr=1", "GR111", "--axis optim.lr=A,B"),
        ("optim.lr=1,", "GR111", "--axis optim.lr=A,B"),
        ("nowhere/axis.yaml", "GR107", ""),
    ],
)
def test_what_cannot_be_an_axis_is_refused_with_a_hint(typed: str, code: str, hint: str) -> None:
    with pytest.raises(GrpoError) as caught:
        load_axis(typed, 1)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert hint in (problem.hint or "")


def test_a_bad_value_is_shown_at_its_place() -> None:
    axis = load_axis("optim.lr=1e-5,fast", 2)
    with pytest.raises(GrpoError) as caught:
        load_arm("dapo", None, [], [(axis, axis.arms[1])])
    (problem,) = caught.value.problems
    assert problem.span is not None
    assert (problem.span.path, problem.span.text) == ("--axis #2", "optim.lr=fast")


def test_a_file_of_ones_own_is_checked_like_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("arms:\n  a: {objectiv: {kind: clip}}\n  b: {kl: {beta: 0.1}}\n  c: 3\n")
    with pytest.raises(GrpoError) as caught:
        load_axis(str(file), 1)
    found = [(p.code, p.span.line, p.hint) for p in caught.value.problems if p.span]
    assert found[0] == ("GR101", 2, "did you mean `objective`?")
    assert found[1][:2] == ("GR102", 4)
    file.write_text("arms:\n  a: {kl: {beta: 0.1}}\n  b: {kl: {beto: 0.2}}\n")
    axis = load_axis(str(file), 1)
    with pytest.raises(GrpoError) as caught:
        load_arm("dapo", None, [], [(axis, axis.arms[1])])
    (problem,) = caught.value.problems
    assert problem.code == "GR101"
    assert problem.span is not None
    assert problem.span.line == 3


def test_one_arm_is_no_axis(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("summary: x\narms:\n  a: {kl: {beta: 0.1}}\n")
    with pytest.raises(GrpoError, match="at least two"):
        load_axis(str(file), 1)
