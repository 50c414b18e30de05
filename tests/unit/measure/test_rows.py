"""The rows of an evaluation on disk after a crash, and under another ask."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.measure.leak import find_leaks
from grpo_cli.measure.rows import ROWS, Cell, Sampled, Store
from grpo_cli.recipe.load import load
from grpo_cli.types import Finish, Message, Prompt, Status

CELL = Cell("tiny", "own")
ANSWERS = [Sampled("q", "q", i, 1.0, Status.OK, "1", 3, Finish.STOP, "#1") for i in range(4)]
WANTED = [("q", i) for i in range(4)]


@pytest.mark.parametrize("bad", [b"5", b"null", b"[]", b"{}", b'"x"', b"\xff\xfe", b'{"policy'])
def test_rows_after_a_damaged_line_are_made_again(tmp_path: Path, bad: bytes) -> None:
    Store(tmp_path, {"k": 4}, restart=False).append(CELL, ANSWERS)
    lines = (tmp_path / ROWS).read_bytes().splitlines()
    (tmp_path / ROWS).write_bytes(b"\n".join([*lines[:2], bad, *lines[3:]]) + b"\n")
    store = Store(tmp_path, {"k": 4}, restart=False)
    assert store.finished(CELL, WANTED) == ANSWERS[:2]
    store.keep({CELL: ANSWERS[:2]})
    assert (tmp_path / ROWS).read_bytes().splitlines() == lines[:2]


def test_a_folder_that_was_asked_more_is_another_evaluation(tmp_path: Path) -> None:
    Store(tmp_path, {"k": 4, "newer": 1}, restart=False)
    with pytest.raises(GrpoError, match=r"\[GR208\].*newer differ"):
        Store(tmp_path, {"k": 4}, restart=False)


@pytest.mark.parametrize("bent", [False, True])
def test_damaged_rollouts_do_not_cost_the_scores(tmp_path: Path, bent: bool) -> None:
    (tmp_path / "rollouts").mkdir()
    line = b'{"prompt_id": "other", "prompt": [{"role": "user", "content": "2+3"}]}\n'
    data = gzip.compress(line * 200)
    data = data[:20] + b"\xff" * 12 + data[32:] if bent else data[:-9]
    (tmp_path / "rollouts" / "step-000001.jsonl.gz").write_bytes(data)
    asked = [Prompt("a", (Message("user", "1+1"),), "2", "arithmetic")]
    (leak,) = find_leaks(asked, tmp_path, load("grpo", setup="tiny").recipe)
    assert leak.count == 0
    assert leak.unread is not None
    assert "step-000001.jsonl.gz" in leak.unread
