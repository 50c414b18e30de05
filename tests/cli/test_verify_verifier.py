"""`grpo verify-verifier` as a person runs it: real processes, exit codes, files."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo_cli.recipe.locate import verifiers_dir
from tests.e2e.conftest import grpo
from tests.e2e.conftest import whole_run as whole_run

REWARDS = """
import re

def score(text, reference):
    found = re.findall(r"\\\\boxed\\{([^{}]*)\\}", text)
    return float(bool(found) and found[-1].strip() == reference)

def anywhere(text, reference):
    return reference in text

def accuracy(completions, solution, **kwargs):
    return [float(f"boxed{{{s}}}" in c) for c, s in zip(completions, solution)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(f"boxed{{{ground_truth}}}" in solution_str)}
"""
HOSTILE = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with reward functions and labelled cases."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [
        {"id": HOSTILE, "text": "\\boxed{7}", "reference": "7", "label": True, "kind": HOSTILE},
        {"id": "late", "text": "so 7", "reference": "7", "label": True, "question_id": "q1"},
        {"id": "wrong", "text": "\\boxed{8}", "reference": "7", "label": False},
        {"id": "near", "text": "\\boxed{77}", "reference": "7", "label": False},
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_shipped_verifier_on_its_task(tmp_path: Path) -> None:
    done = grpo("verify-verifier", "exact_integer", "--task", "tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head = next(line for line in done.stdout.splitlines() if line.startswith("  FN "))
    assert "FN <= " in head
    assert "ceiling 0 of " in head
    assert "golds 500/500 self-consistent, 0 unparsable" in head
    assert "deterministic" in head
    assert "task arithmetic, 500 held-out questions" in done.stdout
    assert "exploit families ..." in done.stderr, "progress belongs on stderr"


def test_json_holds_every_part_and_the_gate_fails_with_1(here: Path) -> None:
    done = grpo(
        "verify-verifier", "rewards.py:anywhere", "--cases", "cases.jsonl", "--json",
        "--gate", "fn<=0.5 exploits==0", cwd=here,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    assert [term["holds"] for term in found["gate"]] == [True, False]
    assert found["figures"]["exploits"] >= 5
    assert {"near"} <= {line["example"] for line in found["lines"]}
    assert found["relations"]
    assert found["repeats"]


def test_a_gate_that_holds_exits_with_0_and_shows_its_terms(here: Path) -> None:
    done = grpo("verify-verifier", "rewards.py:score", "--gate", "fp<=0.02, j>0", cwd=here)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Gate passed" in done.stdout
    assert "PASS fp<=0.02 (0)" in done.stdout


def test_what_a_case_says_cannot_reach_the_terminal_or_the_page(here: Path) -> None:
    done = grpo(
        "verify-verifier", "rewards.py:anywhere", "--cases", "cases.jsonl", "--html", "a.html",
        cwd=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    page = (here / "a.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page, "the page must not load anything"
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Tags().feed(page)
    assert tags.count("table") >= 5


def test_comparing_shows_the_rows_that_differ(here: Path) -> None:
    done = grpo(
        "verify-verifier", "rewards.py:score", "--cases", "cases.jsonl",
        "--compare", "rewards.py:anywhere", cwd=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Against rewards:anywhere" in done.stdout
    assert "exact binomial p = " in done.stdout
    rows = [line.split()[:3] for line in done.stdout.splitlines() if line.startswith("  near ")]
    assert ["near", "reject", "rewards:score"] in rows


@pytest.mark.parametrize(
    ("arguments", "convention"),
    [
        (("--trl", "rewards:accuracy"), "TRL: "),
        (("--verl", "rewards.py:compute_score"), "verl: "),
    ],
)
def test_other_libraries_functions(here: Path, arguments: tuple[str, str], convention: str) -> None:
    done = grpo("verify-verifier", *arguments, cwd=here)
    assert done.returncode == 0, done.stderr
    assert f"called as {convention}" in done.stdout
    assert "a guess" in done.stdout
    assert "answer, then another answer" in done.stdout


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(verifiers_dir() / "exact_integer", folder)
    (folder / "audit.json").unlink(missing_ok=True)
    first = grpo("verify-verifier", "./mine", "--write", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    written = (folder / "audit.json").read_bytes()
    second = grpo("verify-verifier", "./mine", "--write", cwd=tmp_path, PYTHONHASHSEED="7")
    assert "unchanged" in second.stderr
    assert (folder / "audit.json").read_bytes() == written
    record = json.loads(written)
    assert record["verifier"]["name"] == "mine"
    assert record["headline"]["fp"]["k"] == 0
    assert str(tmp_path) not in written.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no verifier was named"),
        (("exact_integer", "--trl", "a:b"), "name one verifier"),
        (("exact_integre",), "did you mean 'exact_integer'?"),
        (("exact_integer", "--gate", "fpp<=0.1"), "figures: fn, "),
        (("exact_integer", "--cases", "missing.jsonl"), "cannot read missing.jsonl"),
        (("exact_integer", "--task", "nothing-of-the-kind"), "tasks: arithmetic, gsm8k, math"),
        (("exact_integer", "--task", __file__), "--task cannot read"),
        (("exact_integer", "--option", "percent"), "write KEY=VALUE"),
        (("exact_integer", "--html", "no/such/a.html"), "no folder"),
        (("exact_integer", "--from-run", "nothing"), "no run"),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = grpo("verify-verifier", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_bad_row_is_shown_with_its_line(here: Path) -> None:
    (here / "bad.jsonl").write_text('{"text": "a", "reference": "b", "label": "maybe"}\n')
    done = grpo("verify-verifier", "rewards.py:score", "--cases", "bad.jsonl", cwd=here)
    assert done.returncode == 2
    assert "bad.jsonl:1:1" in done.stderr
    assert "not true or false" in done.stderr


def test_a_sheet_of_a_run_is_written_and_read_back(whole_run: Path, tmp_path: Path) -> None:
    runs = str(whole_run / "runs")
    done = grpo("verify-verifier", "--from-run", "dapo", "--runs-dir", runs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sheet = tmp_path / done.stdout.strip()
    rows = [json.loads(line) for line in sheet.read_text().splitlines()]
    assert len(rows) >= 50
    for row in rows:
        row["label"] = f"#{row['reference']}" in row["text"].splitlines()[-1:]
    sheet.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = grpo("verify-verifier", "exact_integer", "--cases", sheet.name, cwd=tmp_path)
    assert read.returncode == 0, read.stderr
    assert "labelled completions (--cases)" in read.stdout
    again = grpo("verify-verifier", "--from-run", "dapo", "--runs-dir", runs, cwd=tmp_path)
    assert again.returncode == 2
    assert "there already" in again.stderr
