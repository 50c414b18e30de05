"""`grpo eval --task reasoning_gym/NAME` and `grpo tasks show` as real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import grpo


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("reasoning_gym", "write --task reasoning_gym/NAME"),
        ("reasonin_gym/leg_counting", "did you mean `reasoning_gym/NAME`?"),
    ],
)
def test_a_task_that_is_not_named_rightly(tmp_path: Path, task: str, says: str) -> None:
    done = grpo("eval", "tiny", "--task", task, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_an_unknown_data_set_gets_the_nearest_name(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    done = grpo("eval", "tiny", "--task", "reasoning_gym/leg_count", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean `leg_counting`?" in done.stderr
    assert "loading" not in done.stderr


def test_eval_asks_its_own_verifier(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    args = ("--task", "reasoning_gym/leg_counting", "--num-questions", "2", "--k", "2")
    done = grpo("eval", "tiny", *args, "--out", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["task"], found["verifier"]) == ("reasoning_gym", "reasoning_gym")
    rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").open()]
    assert len({row["question_id"] for row in rows}) == 2
    assert [row["score"] for row in rows] == [0.0] * 4
    # The tiny model knows neither tags nor boxes, but may write many a `#`.
    statuses = [(row["status"], row["parsed"] is None) for row in rows]
    answered = [bool(row["text"].rpartition("####")[1]) for row in rows]
    assert statuses == [("ok", False) if said else ("unparsed", True) for said in answered]


def test_show_checks_the_golds(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    task = "task={kind: reasoning_gym, name: spell_backward, size: 30}"
    sets = ("--set", task, "--set", "verifier.name=reasoning_gym")
    done = grpo("tasks", "show", "tiny", *sets, "--prompts", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["golds refused"] == "0 of 30 checked"
    assert "<answer>...</answer>" in found["prompts"][0]["messages"][0]["content"]
