"""`grpo eval` on a real run of the tiny world."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.e2e.conftest import grpo, only_run

pytestmark = pytest.mark.slow  # a training and several evaluations


def evaluate(cwd: Path, *args: str) -> dict[str, Any]:
    done = grpo("eval", *args, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows_of(cwd: Path, document: dict[str, Any]) -> list[dict[str, Any]]:
    text = (cwd / document["out"] / "rows.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def recorded(run: Path, step: int) -> float:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[step])["scalars"]["eval/accuracy"])


def test_the_last_step_scores_exactly_what_the_run_recorded(whole_run: Path) -> None:
    run = only_run(whole_run)
    ours = evaluate(whole_run, "dapo/tiny", "--k", "2", "--vs", "dapo/tiny@0")
    last, base = ours["policies"]
    assert last["step"] == 6
    assert last["figures"]["avg@2"]["mean"] == recorded(run, 6)
    assert base["figures"]["avg@2"]["mean"] == recorded(run, 0)
    difference = ours["vs"]["differences"]["own"]
    assert difference["mean"] == pytest.approx(recorded(run, 6) - recorded(run, 0))
    assert "not about a method" in ours["vs"]["note"]
    assert ours["contamination"][0]["count"] == 0
    texts = {json.loads(text)["text"] for text in (run / "eval/step-000006.jsonl").open()}
    assert texts == {r["text"] for r in rows_of(whole_run, ours) if r["policy"] == last["policy"]}


def test_an_adapter_folder_is_the_run_it_came_from(whole_run: Path, tmp_path: Path) -> None:
    run = only_run(whole_run)
    shutil.copytree(run / "checkpoints/step-000003/adapter", tmp_path / "mine")
    args = ("--num-questions", "6", "--k", "2", "--out", str(tmp_path / "out"))
    moved = evaluate(whole_run, str(tmp_path / "mine"), "--vs", "dapo/tiny@3", *args)
    ours, theirs = moved["policies"]
    assert ours["figures"] == theirs["figures"]
    assert evaluate(whole_run, str(run / "checkpoints/step-000003"), "--k", "2")["policies"][0][
        "policy"
    ].endswith("@3")


def test_avg_and_pass_can_be_recomputed_from_the_rows(tmp_path: Path) -> None:
    found = evaluate(tmp_path, "tiny", "--num-questions", "8", "--k", "4")
    scores: dict[str, list[float]] = {}
    for row in rows_of(tmp_path, found):
        scores.setdefault(row["question_id"], []).append(row["score"])
    figures = found["policies"][0]["figures"]
    assert len(scores) == 8
    assert figures["avg@4"]["mean"] == pytest.approx(mean(mean(s) for s in scores.values()))
    for size in (1, 2, 4):
        want = mean(mean(map(max, itertools.combinations(s, size))) for s in scores.values())
        assert figures[f"pass@{size}"]["mean"] == pytest.approx(want)
    summary = (tmp_path / found["out"] / "summary.json").read_text()
    assert json.loads(summary) == found


def test_the_same_command_uses_its_rows_again_and_makes_the_same_bits(tmp_path: Path) -> None:
    args = ("eval", "tiny", "--num-questions", "10", "--k", "2", "--out", "out", "--json",
            "--set", "engine.batch_rows=8")  # fmt: skip
    first = grpo(*args, cwd=tmp_path)
    rows = (tmp_path / "out/rows.jsonl").read_bytes()
    again = grpo(*args, cwd=tmp_path)
    assert "20 finished rows used again" in again.stderr
    assert "loading" not in again.stderr
    assert again.stdout == first.stdout
    # As an interrupted command leaves it: a block and a half, and half a line.
    lines = rows.splitlines(keepends=True)
    (tmp_path / "out/rows.jsonl").write_bytes(b"".join(lines[:13]) + lines[13][:20])
    resumed = grpo(*args, cwd=tmp_path)
    assert "8 finished rows used again" in resumed.stderr
    assert (tmp_path / "out/rows.jsonl").read_bytes() == rows
    assert resumed.stdout == first.stdout
    other = grpo(*args, "--seed", "1", cwd=tmp_path)
    assert other.returncode == 2
    assert "holds another evaluation: seed" in other.stderr
    restarted = grpo(*args, "--seed", "1", "--restart", cwd=tmp_path)
    assert restarted.returncode == 0, restarted.stderr
    assert (tmp_path / "out/rows.jsonl").read_bytes() != rows


def test_templates_bring_the_base_and_name_the_best_one(whole_run: Path) -> None:
    found = evaluate(
        whole_run, "dapo/tiny", "--k", "2", "--templates", "own,boxed", "--templates", "{question}="
    )
    names = [(p["kind"], p["template"]) for p in found["policies"]]
    assert names == [(kind, t) for kind in ("run", "base") for t in ("own", "boxed", "text1")]
    for entry in found["templates"]:
        own = {
            p["template"]: p["figures"]["avg@2"]["mean"]
            for p in found["policies"]
            if p["policy"] == entry["policy"]
        }
        assert entry["spread"] == pytest.approx(max(own.values()) - min(own.values()))
        assert own[entry["best"]] == max(own.values())
    assert "gain_over_best_of_base" in found["templates"][0]


def test_questions_that_were_trained_on_are_counted_with_their_files(
    whole_run: Path, tmp_path: Path
) -> None:
    import gzip

    rollouts = sorted((only_run(whole_run) / "rollouts").glob("*"))
    with gzip.open(rollouts[1], "rt") as file:
        asked = json.loads(file.readline())["prompt"][-1]["content"]
    lines = [{"question": f" {asked} ", "answer": "1"}, {"question": "no one asked", "answer": "2"}]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = evaluate(whole_run, "dapo/tiny", "--task", f"jsonl:{file}", "--verifier", "gsm8k",
                     "--k", "1", "--out", str(tmp_path / "out"))  # fmt: skip
    (leak,) = found["contamination"]
    assert (leak["count"], leak["total"]) == (1, 2)
    assert f"rollouts/{rollouts[1].name}" in leak["where"]


def test_training_questions_can_be_asked(tmp_path: Path) -> None:
    found = evaluate(tmp_path, "tiny", "--split", "train", "--num-questions", "4", "--k", "1")
    assert found["split"] == "train"
    held_out = evaluate(tmp_path, "tiny", "--num-questions", "4", "--k", "1")
    ids = [{row["question_id"] for row in rows_of(tmp_path, d)} for d in (found, held_out)]
    assert len(ids[0]) == 4
    assert not ids[0] & ids[1]


def test_a_verifier_that_always_fails_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def verify(text, reference):\n    raise KeyError('gone')\n")
    done = grpo("eval", "tiny", "--num-questions", "3", "--k", "1", "--verifier", "./bad.py",
                cwd=tmp_path)  # fmt: skip
    assert done.returncode == 3
    assert "GR304" in done.stderr
    assert "gone" in done.stderr
