"""Labelled cases and sheets: what is read, and how a bad row is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_cli.audit.cases import read_cases
from grpo_cli.audit.golds import choices_in, golds_of_task, top_up
from grpo_cli.audit.rows import Gold, Stratum
from grpo_cli.audit.sheet import write_sheet
from grpo_cli.audit.template import Template, Wrapper
from grpo_cli.errors import GrpoError


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return path


def read(path: Path):
    return read_cases(path, Stratum.LABELLED)


def test_names_that_other_people_use(tmp_path: Path) -> None:
    found = read(
        write(
            tmp_path / "c.jsonl",
            {"completion": "#1", "gold": 1, "label": 1, "question_id": 7},
            {"response": "#2", "answer": "1", "expected": False, "question": "one?"},
        )
    )
    first, second = found.rows
    assert (first.text, first.reference, first.accept, first.problem) == ("#1", "1", True, "7")
    assert (second.accept, second.problem) == (False, "one?")


def test_rows_without_a_question_are_problems_of_their_own(tmp_path: Path) -> None:
    row = {"text": "#1", "reference": "1", "label": True}
    found = read(write(tmp_path / "c.jsonl", row, row))
    assert len({r.problem for r in found.rows}) == 2


def test_bad_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    good = {"text": "#1", "reference": "1", "label": True}
    path = write(
        tmp_path / "c.jsonl",
        good,
        "{oops",
        {"text": "#1", "label": True},
        {**good, "label": "yes"},
        {**good, "text": ["#1"]},
        [1],
    )
    with pytest.raises(GrpoError) as caught:
        read(path)
    problems = caught.value.problems
    assert [p.span.line for p in problems if p.span] == [2, 3, 4, 5, 6]
    assert all(p.code == "GR211" for p in problems)
    assert 'no "reference"' in problems[1].message


def test_unlabelled_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    good = {"text": "#1", "reference": "1", "label": True}
    found = read(write(tmp_path / "c.jsonl", good, {**good, "label": None}))
    assert (len(found.rows), found.unlabelled) == (1, 1)
    with pytest.raises(GrpoError, match="the label of all 1 is null"):
        read(write(tmp_path / "d.jsonl", {**good, "label": None}))


def test_a_missing_file_is_an_error_of_the_person(tmp_path: Path) -> None:
    with pytest.raises(GrpoError, match="cannot read"):
        read(tmp_path / "none.jsonl")


def rollouts(run: Path, accepted: int, rejected: int) -> None:
    import gzip

    (run / "rollouts").mkdir(parents=True)
    rows = [
        {
            "prompt_id": f"p{i // 4}",
            "prompt": [{"role": "user", "content": f"{i}?"}],
            "reference": "1",
            "completion": f"#{i}",
            "score": 1.0 if i < accepted else 0.0,
        }
        for i in range(accepted + rejected)
    ]
    rows.append({**rows[0], "score": None})
    with gzip.open(run / "rollouts" / "step-000001.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_sheet_draws_both_sides_and_remembers_their_weight(tmp_path: Path) -> None:
    rollouts(tmp_path / "run", accepted=90, rejected=10)
    target = tmp_path / "sheet.jsonl"
    assert write_sheet(tmp_path / "run", target, rows=40) == 40
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    weights = [row["weight"] for row in rows]
    assert weights.count(3.0) == 30, "90 accepted rows, 30 drawn"
    assert weights.count(1.0) == 10, "all 10 rejected rows"
    assert all(row["label"] is None for row in rows)
    assert not {"score", "status"} & rows[0].keys(), "who labels must not see the verdict"
    again = tmp_path / "again.jsonl"
    write_sheet(tmp_path / "run", again, rows=40)
    assert again.read_bytes() == target.read_bytes()


def test_a_sheet_is_never_overwritten(tmp_path: Path) -> None:
    rollouts(tmp_path / "run", accepted=5, rejected=5)
    target = write(tmp_path / "sheet.jsonl", {"label": True})
    with pytest.raises(GrpoError, match="there already"):
        write_sheet(tmp_path / "run", target)


def test_a_labelled_sheet_is_read_back(tmp_path: Path) -> None:
    rollouts(tmp_path / "run", accepted=5, rejected=5)
    target = tmp_path / "sheet.jsonl"
    write_sheet(tmp_path / "run", target)
    rows = [json.loads(line) | {"label": True} for line in target.read_text().splitlines()]
    found = read(write(target, *rows))
    assert len(found.rows) == 10
    assert {row.problem for row in found.rows} == {"p0", "p1", "p2"}


def test_few_golds_are_topped_up_and_marked() -> None:
    golds = [Gold("a", "16"), Gold("b", "17")]
    found = top_up(golds, "integer")
    assert found[:2] == golds
    assert len(found) == 60
    assert all(gold.own for gold in found[2:])
    words = [Gold("a", "sixteen"), Gold("b", "seventeen")]
    assert top_up(words, "number") == words, "a verifier of words may not read our numbers"


def test_golds_of_a_setup_come_with_its_group_size() -> None:
    found = golds_of_task("tiny", 20)
    assert (len(found.golds), found.task, found.group_size) == (20, "arithmetic", 8)


def test_golds_of_a_file_keep_the_part_after_the_marker(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"question": "2+2?", "answer": "It is\n#### 4"})
    (gold,) = golds_of_task(str(path), 20).golds
    assert gold.reference == "4"


def test_options_are_read_from_the_question() -> None:
    assert choices_in("Which?\nA: one\nB: two\nC. three") == ("one", "two", "three")
    assert choices_in("A: only one") == ()
    assert choices_in("Which?\nB: two\nC: three") == ()


def test_a_template_is_found_as_text_so_that_variants_reach_the_verifier_as_they_are() -> None:
    tidy = Template(lambda reference: f"#### {int(reference.replace(',', ''))}", "")
    assert tidy.wrapper("1,234") == Wrapper("#### ", "")
    assert tidy.wrapper("sixteen") is None
