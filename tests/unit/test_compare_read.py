"""Targets of `compare`: folders, globs, ablations, and the same table from MLflow."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_cli import track
from grpo_cli.compare import Comparison, compare
from grpo_cli.compare.mlflow_store import read_experiment
from grpo_cli.compare.read import Found, question_scores, read_targets
from grpo_cli.compare.text import as_text
from grpo_cli.errors import GrpoError
from grpo_cli.evaluate import scores_by_question
from grpo_cli.mlflow_ablation import parent_run, send_plan
from grpo_cli.mlflow_run import connect, settings, shown_uri
from grpo_cli.runfiles import read_eval
from grpo_cli.types import RunStatus
from tests.compare_runs import write_arm, write_plan, write_run

HIGH = {"objective": {"high": 0.28}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two recipes with two seeds each."""
    root = tmp_path / "runs"
    write_arm(root, "grpo", [0.4, 0.5])
    write_arm(root, "dapo", [0.5, 0.6], recipe_name="dapo", changes=HIGH)
    return root


def places(found: Found, root: Path) -> list[str]:
    return [Path(run.place).relative_to(root).parent.as_posix() for run in found.runs]


def test_every_kind_of_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = (root / "dapo" / "dapo").glob("s1-*")
    dapo = ["dapo/dapo"]
    assert places(read_targets([str(run)], root), root) == dapo
    assert places(read_targets([str(root / "dapo")], root), root) == dapo * 2
    assert places(read_targets([str(root)], root), root) == [*dapo * 2, *["grpo/grpo"] * 2]
    assert places(read_targets([f"{root}/*/*/s1-*"], root), root) == [*dapo, "grpo/grpo"]
    # By name, below the runs folder, in the order of the targets, each run once.
    monkeypatch.chdir(root.parent)
    found = read_targets(["grpo", "dapo", "dapo/dapo/s1"], root)
    assert places(found, root) == [*["grpo/grpo"] * 2, *dapo * 2]
    assert places(read_targets(["dapo/s1"], root), root) == dapo


def test_what_a_restart_set_aside_is_left_out(root: Path) -> None:
    (run,) = (root / "dapo" / "dapo").glob("s1-*")
    shutil.copytree(run, run.with_name(f"{run.name}.superseded-1"))
    assert len(read_targets([str(root / "dapo")], root).runs) == 2


def test_what_is_not_there_has_a_hint(root: Path) -> None:
    with pytest.raises(GrpoError, match="no runs in 'dappo'") as caught:
        read_targets(["dappo"], root)
    assert caught.value.problems[0].code == "GR206"
    assert "did you mean `dapo`?" in str(caught.value.problems[0].hint)
    empty = root / "empty"
    empty.mkdir()
    with pytest.raises(GrpoError, match="no runs in"):
        read_targets([str(empty)], root)


def test_a_damaged_run_is_an_error_that_names_the_file(root: Path) -> None:
    (run,) = (root / "dapo" / "dapo").glob("s1-*")
    (run / "recipe.json").write_text("{")
    with pytest.raises(GrpoError, match=r"recipe\.json is damaged") as caught:
        read_targets([str(root)], root)
    assert caught.value.problems[0].code == "GR204"


def test_question_scores_are_those_of_the_rows(tmp_path: Path) -> None:
    """The fast reader, against the one that the trainer's own summary uses."""
    run = write_run(tmp_path, "grpo", 0, 0.45, unparsed=0.2)
    file = run / "eval" / "step-000008.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0] |= {"status": "timeout", "score": None}
    lines[1] |= {"status": "error", "score": None}  # the only other answer to this question
    lines[2]["score"] = 0.25
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = question_scores(run, 8)
    rows = scores_by_question(read_eval(run, 8))
    assert found == {q: sum(s) / len(s) for q, s in rows.items() if s}
    assert found is not None
    assert len(found) == 39
    assert question_scores(run, 7) is None
    file.write_text(file.read_text() + "{\n")
    with pytest.raises(GrpoError, match=r"step-000008\.jsonl:81 is not a row"):
        question_scores(run, 8)


def ablation(root: Path) -> Path:
    folder = root / "ablations" / "clip"
    arms = {
        name: write_arm(folder.parent, name, scores, recipe_name="clip", changes=changes)
        for name, scores, changes in (
            ("low", [0.4, 0.45, 0.5], {"objective": {"high": 0.1}}),
            ("high", [0.5, 0.6, 0.55], HIGH),
        )
    }
    arms["low"].append(folder / "low" / "s3-00000000")
    primary = {"metric": "eval/pass_at_2", "at": "final"}
    write_plan(folder, arms, "high", primary=primary)
    return folder


def test_an_ablation_by_name_by_folder_and_by_its_parent(root: Path) -> None:
    folder = ablation(root)
    stray = write_run(root / "ablations", "stray", 0, 0.4, recipe_name="clip")
    for target in ("clip", str(folder), str(folder.parent)):
        found = read_targets([target], root)
        assert [run.arm for run in found.runs] == ["high"] * 3 + ["low"] * 3, target
        assert found.plans[0].missing == (("low", 3),)
    # The stray run is no cell, so it comes only when it is asked for.
    assert read_targets([str(stray)], root).runs[0].arm is None
    # Of a part of an ablation nothing is missing.
    part = read_targets([str(folder / "low")], root)
    assert [run.arm for run in part.runs] == ["low"] * 3
    assert part.plans[0].missing == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": [{}]}', '{"cells": 3}'])
def test_a_damaged_plan_is_an_error(root: Path, text: str) -> None:
    folder = ablation(root)
    (folder / "plan.json").write_text(text)
    with pytest.raises(GrpoError, match=r"plan\.json") as caught:
        read_targets(["clip"], root)
    assert caught.value.problems[0].code == "GR204"


# --- MLflow --------------------------------------------------------------------------------------


def same_but_for_places(result: Comparison) -> str:
    arms = tuple(
        replace(arm, seeds=tuple(replace(s, place="") for s in arm.seeds)) for arm in result.arms
    )
    return repr(replace(result, arms=arms))


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An ablation and two plain arms of one recipe, all in one MLflow store."""
    root = tmp_path_factory.mktemp("mlflow") / "runs"
    write_arm(root, "grpo", [0.4, 0.5, 0.45], scalars={"policy/entropy": float("nan")})
    write_arm(root, "grpo", [0.5, 0.65, 0.55], changes=HIGH)
    write_run(root, "grpo", 3, 0.4, status=RunStatus.FAILED, reason="not finite", stop_at=5)
    folder = ablation(root)
    uri = track.default_uri(root)
    for run in [*root.glob("grpo/*/s*"), *folder.glob("*/s*")]:
        track.sync(run, uri)
    return root, uri


def test_the_store_and_the_folders_give_the_same_table(mirrored: tuple[Path, str]) -> None:
    root, uri = mirrored
    for experiment, target in (("grpo", root / "grpo"), ("clip", root / "ablations" / "clip")):
        folders = read_targets([str(target)], root)
        store = read_experiment(experiment, uri, ["eval/accuracy"])
        one = compare(folders.runs, folders.plans)
        other = compare(store.runs, store.plans)
        assert as_text(one) == as_text(other)
        assert same_but_for_places(one) == same_but_for_places(other)
        assert one.metric == ("eval/accuracy" if experiment == "grpo" else "eval/pass_at_2")
        for result in (one, other):
            # Only the mean score of a question can be resampled.
            assert (result.arms[1].versus.bootstrap is not None) == (experiment == "grpo")


def test_without_the_folders_only_the_bootstrap_is_lost(
    mirrored: tuple[Path, str], tmp_path: Path
) -> None:
    root, uri = mirrored
    before = compare(read_experiment("grpo/grpo", uri, ["eval/accuracy"]).runs)
    moved = root / "grpo"
    moved.rename(tmp_path / "grpo")
    try:
        after = compare(read_experiment("grpo", uri, ["eval/accuracy"]).runs)
    finally:
        (tmp_path / "grpo").rename(moved)
    (one, other) = (next(a.versus for a in c.arms if a.versus) for c in (before, after))
    assert replace(one, bootstrap=None) == other
    assert one.bootstrap is not None
    assert any("no crossed bootstrap" in note for note in after.notes)


def test_an_experiment_that_is_not_there(mirrored: tuple[Path, str], tmp_path: Path) -> None:
    _, uri = mirrored
    with pytest.raises(GrpoError, match="no experiment 'clp'") as caught:
        read_experiment("clp", uri, [])
    assert "did you mean `clip`?" in str(caught.value.problems[0].hint)
    missing = tmp_path / "none.db"
    with pytest.raises(GrpoError, match="no MLflow store") as caught:
        read_experiment("clip", f"sqlite:///{missing}", [])
    assert caught.value.problems[0].code == "GR207"
    assert not missing.exists()  # asking must not make one
    with pytest.raises(GrpoError, match="cannot be used") as caught:
        read_experiment("clip", "http://127.0.0.1:9", [])
    assert caught.value.problems[0].code == "GR207"


def test_an_ablation_without_its_folder_has_the_plan_of_its_parent_run(
    mirrored: tuple[Path, str], tmp_path: Path
) -> None:
    root, uri = mirrored
    folder = root / "ablations" / "clip"
    with settings():
        client = connect(uri)
        experiment = client.get_experiment_by_name("grpo/clip").experiment_id
        send_plan(folder, client, parent_run(folder, client, experiment, shown_uri(uri)), uri)
    before = read_experiment("clip", uri, ["eval/accuracy"])
    folder.rename(tmp_path / "clip")
    try:
        after = read_experiment("clip", uri, ["eval/accuracy"])
    finally:
        (tmp_path / "clip").rename(folder)
    assert after.plans[0].control == "high"
    assert after.plans[0].missing == before.plans[0].missing == (("low", 3),)
    one, other = compare(before.runs, before.plans), compare(after.runs, after.plans)
    assert as_text(one) == as_text(other)
