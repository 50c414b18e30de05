"""The exact_integer verifier against its own labelled cases, and properties of its parsing."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli.types import Status
from grpo_cli.verify.load import load_verifier

VERIFIERS = Path(__file__).parents[3] / "verifiers"
VERIFY = load_verifier("exact_integer", VERIFIERS)
CASES = [
    json.loads(line) for line in (VERIFIERS / "exact_integer" / "cases.jsonl").read_text(
        encoding="utf-8"
    ).splitlines()
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['kind']}-{c['note'][:40]}")
def test_bundled_case(case: dict) -> None:
    verdict = VERIFY(case["text"], case["reference"])
    assert not verdict.missing, verdict.detail
    assert (verdict.score == 1.0) == case["label"]


def test_the_cases_are_well_formed() -> None:
    assert len(CASES) >= 40
    assert all(set(c) == {"text", "reference", "label", "kind", "note"} for c in CASES)
    assert min(Counter(c["label"] for c in CASES).values()) >= 20
    assert len({(c["text"], c["reference"]) for c in CASES}) == len(CASES)


@given(st.integers(), st.text(alphabet="0123456789+-=;* waitcheck"))
def test_the_marked_integer_counts_whatever_comes_before(n: int, work: str) -> None:
    assert VERIFY(f"{work}#{n}", str(n)).score == 1.0
    assert VERIFY(f"{work}#{n + 1}", str(n)).score == 0.0
    assert VERIFY(work, str(n)).status is Status.UNPARSED


@given(st.text(), st.integers(-100, 100))
def test_any_text_gets_a_binary_verdict(text: str, n: int) -> None:
    verdict = VERIFY(text, str(n))
    assert verdict.score in (0.0, 1.0)
    assert verdict.status in (Status.OK, Status.UNPARSED)
    assert verdict.score == 0.0 or "#" in text


@given(st.lists(st.integers(0, 99), min_size=2, max_size=5, unique=True))
def test_listing_candidates_never_pays(candidates: list[int]) -> None:
    text = "".join(f"#{n}" for n in candidates)
    verdict = VERIFY(text, str(candidates[-1]))
    assert (verdict.score, verdict.status) == (0.0, Status.UNPARSED)
    assert "different answers" in (verdict.detail or "")


@pytest.mark.parametrize("reference", ["", "1.5", "sixteen", "#16"])
def test_a_bad_reference_is_an_error_not_a_wrong_answer(reference: str) -> None:
    assert VERIFY("#16", reference).status is Status.ERROR
