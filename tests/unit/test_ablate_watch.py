"""What the live table reads from run folders that another process writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from grpo_cli.ablate.plan import Cell, Outline
from grpo_cli.ablate.watch import Board, Ticker, record_json, record_line
from grpo_cli.rollout.coin import tossed
from grpo_cli.types import Status, Verdict


@pytest.fixture
def board(tmp_path: Path) -> Board:
    cells = tuple(Cell(arm, seed, f"{arm}/s{seed}") for seed in (0, 1) for arm in ("a", "b"))
    return Board(tmp_path, Outline("a", {"a": 20, "b": 20}, cells))


def write(root: Path, run: str, status: str, steps: range, reason: str | None = None) -> None:
    folder = root / run
    folder.mkdir(parents=True, exist_ok=True)
    info = {"run_id": "x", "recipe": "r", "name": "n", "seed": 0, "recipe_hash": "h"}
    info |= {"status": status, "attempt": 1, "step": 0, "started": "", "ended": None}
    (folder / "run.json").write_text(json.dumps({**info, "reason": reason}))
    with open(folder / "metrics.jsonl", "a") as file:
        for step in steps:
            scalars = {"reward/mean": 0.5 + step / 100, "eval/accuracy": 0.25}
            file.write(json.dumps({"step": step, "unix_ms": 0, "scalars": scalars}) + "\n")


def test_only_new_records_are_read_and_a_half_written_one_waits(
    board: Board, tmp_path: Path
) -> None:
    assert board.refresh() == []
    write(tmp_path, "a/s0", "done", range(2))
    assert [record.step for _, record in board.refresh()] == [0, 1]
    with open(tmp_path / "a" / "s0" / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "unix_ms": 0, "sca')
    assert board.refresh() == []
    with open(tmp_path / "a" / "s0" / "metrics.jsonl", "a") as file:
        file.write('lars": {}}\n')
    assert [record.step for _, record in board.refresh()] == [2]


def test_steps_that_a_resume_set_aside_are_forgotten(board: Board, tmp_path: Path) -> None:
    write(tmp_path, "a/s0", "done", range(5))
    board.refresh()
    (tmp_path / "a" / "s0" / "metrics.jsonl").unlink()
    write(tmp_path, "a/s0", "done", range(2))
    board.refresh()
    assert board.cells[0].step == 1


def test_a_row_holds_means_over_the_seeds_and_says_who_failed(board: Board, tmp_path: Path) -> None:
    write(tmp_path, "a/s0", "done", range(21))
    write(tmp_path, "a/s1", "done", range(11))
    write(tmp_path, "b/s0", "failed", range(3), "[GR301] \x1b[2J not finite")
    board.refresh()
    first, second = board.rows()
    assert first[:5] == ("a *", "2/2", "10-20/20", "+0.65", "25.0 %")
    assert second[:3] == ("b", "0/2 1 failed", "0-2/20")
    assert (board.num_done, board.num_open) == (2, 1)


def test_lines_come_for_evaluations_and_for_failures_once(board: Board, tmp_path: Path) -> None:
    ticker = Ticker(board)
    assert list(ticker.lines(board.refresh())) == []
    write(tmp_path, "b/s0", "failed", range(1), "[GR301] \x1b[2J bad")
    lines = list(ticker.lines(board.refresh()))
    assert len(lines) == 2
    assert "b s0  step 0/20" in lines[0]
    assert "failed: [GR301] \\x1b[2J bad" in lines[1]
    assert list(ticker.lines(board.refresh())) == []


def test_json_names_arm_and_seed(board: Board, tmp_path: Path) -> None:
    write(tmp_path, "b/s1", "done", range(1))
    ((cell, record),) = board.refresh()
    found = json.loads(record_json(cell, record))
    assert (found["type"], found["arm"], found["seed"], found["step"]) == ("step", "b", 1, 0)
    assert "held-out 25.0 %" in record_line(cell, record)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(board: Board, tmp_path: Path, width: int) -> None:
    write(tmp_path, "a/s0", "done", range(21))
    board.refresh()
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(board)
    text = console.export_text()
    assert "…" not in text.splitlines()[0]
    assert max(map(len, text.splitlines())) <= width


def test_the_coin_knows_nothing_of_the_text_and_pays_at_its_rate() -> None:
    right, wrong = Verdict(1.0, Status.OK), Verdict(0.0, Status.UNPARSED)
    missing = Verdict(float("nan"), Status.ERROR)
    groups = [tossed([right, wrong, missing, wrong], 0.3, 0, 1, f"p{i}") for i in range(800)]
    assert groups[0] == tossed([right, wrong, missing, wrong], 0.3, 0, 1, "p0")
    scores = [group[k].score for group in groups for k in (0, 1, 3)]
    assert set(scores) == {0.0, 1.0}
    assert sum(scores) / len(scores) == pytest.approx(0.3, abs=0.03)
    assert all(group[2] is missing for group in groups)
    assert groups[0][1].status is Status.UNPARSED
    rates = [sum(group[k].score for group in groups) / len(groups) for k in (0, 1)]
    assert rates == pytest.approx([0.3, 0.3], abs=0.05), "right answers are paid no more often"
    assert all(v.score == 1 for v in tossed([wrong] * 8, 1.0, 0, 1, "p"))
    assert all(v.score == 0 for v in tossed([right] * 8, 0.0, 0, 1, "p"))
