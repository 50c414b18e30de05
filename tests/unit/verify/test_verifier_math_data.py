"""The math verifier's error rates on labelled answers, by problem. Skipped without the data."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

import pytest

from grpo_cli.types import Status
from grpo_cli.verify.load import load_verifier

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT.parent / "shared" / "data"
pytestmark = [
    pytest.mark.skipif(not DATA.is_dir(), reason="the labelled sets are not here"),
]
Row = dict[str, str | bool]
# Prose with a bare number is what the gsm8k verifier is for, letters are for choice.
NUMBERS_IN_PROSE = {
    "currency-trailing-zeros",
    "negative-with-trailing-text",
    "thousands-separator-prose",
    "run-on-after-marker",
}


@pytest.fixture(scope="module")
def math():
    pytest.importorskip("math_verify")
    return load_verifier("math", ROOT / "verifiers")


def rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def rates(math, found: list[Row], label: str, *, box: bool) -> tuple[float, float, list[str]]:
    """False-negative and false-positive rate, each problem weighing 1, and the ids of the errors.

    `box` puts a bare answer into a box, as the prompt would ask for.
    """
    wrong: dict[bool, dict[str, list[bool]]] = {True: defaultdict(list), False: defaultdict(list)}
    errors = []
    for row in found:
        text = f"\\boxed{{{row['response']}}}" if box else row["response"]
        verdict = math(text, row["gold"])
        right = verdict.status is Status.OK and verdict.score == 1.0
        bad = right is not row[label]
        problem = str(row.get("question") or row["id"])
        wrong[bool(row[label])][problem].append(bad)
        if bad:
            errors.append(f"{row['id']}: {row['gold']!r} against {row['response'][-60:]!r}")
    by_label = []
    for kind in (True, False):
        per_problem = [sum(v) / len(v) for v in wrong[kind].values()]
        by_label.append(sum(per_problem) / max(1, len(per_problem)))
    return by_label[0], by_label[1], errors


def test_full_completions(math) -> None:
    fn, fp, errors = rates(math, rows("qwen_math_cot"), "label", box=False)
    assert fn <= 0.01, errors
    assert fp == 0, errors


def test_answers_that_rule_verifiers_got_wrong(math) -> None:
    fn, fp, errors = rates(math, rows("hardverify_math"), "label", box=True)
    assert fn <= 0.30, errors
    assert fp <= 0.01, errors


def test_reported_bugs(math) -> None:
    found = [
        r
        for r in rows("bug_cases")
        if not str(r["kind"]).startswith(("mcq", "code")) and r["kind"] not in NUMBERS_IN_PROSE
    ]
    _, _, errors = rates(math, found, "expected", box=False)
    assert len(errors) <= 0.1 * len(found), errors
    wrongly_accepted = [
        r["id"]
        for r in rows("bug_cases")
        if not r["expected"] and math(r["response"], r["gold"]).score == 1.0
    ]
    assert wrongly_accepted == []


def test_upstream_test_files(math) -> None:
    # Upstream expects 1 - 1/e to equal 1 + 1/e, and both orders of percent: 13 % are policy.
    for name, box, limit in (("math_verify_tests", False, 0.14), ("small_test_corpora", True, 0.1)):
        found = [r for r in rows(name) if "\\boxed" not in str(r["response"]) or not box]
        fn, _, errors = rates(math, found, "label", box=box)
        assert fn <= limit, errors


def test_golds_equal_themselves(math) -> None:
    golds = [str(r["answer"]) for r in rows("math500_test")]
    unequal = [g for g in golds if math(f"\\boxed{{{g}}}", g).score != 1.0]
    assert unequal == []


def test_a_problem_said_back_is_no_answer(math) -> None:
    paid = [
        said
        for r in rows("math500_test")
        for said in (str(r["problem"]), str(r["problem"]).rstrip(".?"))
        if math(said, r["answer"]).score == 1.0
    ]
    assert paid == []


def test_worked_solutions_are_accepted(math) -> None:
    refused = [
        r["answer"] for r in rows("math500_test") if math(r["solution"], r["answer"]).score != 1
    ]
    # Two solutions box a value of their own on the way.
    assert len(refused) <= 2, refused


def test_simple_answers_are_fast(math) -> None:
    golds = [str(r["answer"]) for r in rows("math500_test")]
    for gold in golds:
        math(f"\\boxed{{{gold}}}", gold)
    begun = time.perf_counter()
    for gold in golds:
        math(f"So it is $\\boxed{{{gold} }}$.", gold)
    assert (time.perf_counter() - begun) / len(golds) < 0.01
