"""The byte-prefix reward of RPT: exact bytes, whole tokens, the last box."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.types import Status
from grpo_cli.verify.load import load_verifier

VERIFIER = load_verifier("next_token", verifiers_dir())
# Characters of one to four bytes in UTF-8, two that look alike, white space; no braces, no marker.
LETTERS = "ab \n1.ée\u0301ß中🙂\u200b"
TOKENS = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=5)


def reference(tokens: list[str], marker: str | None = None) -> str:
    ends = list(accumulate(len(token.encode()) for token in tokens))
    return json.dumps({"text": "".join(tokens), "ends": ends, "marker": marker})


@settings(deadline=None)
@given(TOKENS, st.data())
def test_a_start_is_paid_at_token_ends_and_nowhere_else(tokens: list[str], data) -> None:
    text = "".join(tokens)
    length = data.draw(st.integers(0, len(text)))
    wholes = {"".join(tokens[: k + 1]) for k in range(len(tokens))}
    for marker, said in ((None, f"\\boxed{{{text[:length]}}}"), ("#", f"#{text[:length]}")):
        verdict = VERIFIER(said, reference(tokens, marker))
        assert verdict.status is Status.OK
        assert verdict.score == (text[:length] in wholes)


@settings(deadline=None)
@given(TOKENS, st.text(LETTERS, max_size=8))
def test_any_other_prediction_is_not_paid(tokens: list[str], said: str) -> None:
    wholes = {"".join(tokens[: k + 1]) for k in range(len(tokens))}
    assert VERIFIER(f"\\boxed{{{said}}}", reference(tokens)).score == (said in wholes)


@settings(deadline=None)
@given(TOKENS, st.text(LETTERS + "{}\\#", max_size=12))
def test_what_stands_before_the_last_box_changes_nothing(tokens: list[str], before: str) -> None:
    gold, said = reference(tokens), f"\\boxed{{{tokens[0]}}}"
    assert VERIFIER(f"{before}</think>{said}", gold).score == 1
    assert VERIFIER(f"{said}</think>{before}", gold).score == 0
    assert VERIFIER(f"{before}#{tokens[0]}", reference(tokens, "#")).score == 1


@settings(deadline=None)
@given(
    st.lists(st.text("a{}\\ é#", min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from([None, "#"]),
)
def test_its_own_answer_is_right_or_refused(tokens: list[str], marker: str | None) -> None:
    gold, frame = reference(tokens, marker), "#%s" if marker else "\\boxed{%s}"
    assert VERIFIER.answer is not None
    if not any(VERIFIER(frame % whole, gold).score == 1 for whole in accumulate(tokens)):
        with pytest.raises(ValueError, match="no start"):
            VERIFIER.answer(gold)
        return
    assert VERIFIER(VERIFIER.answer(gold), gold).score == 1


def test_a_half_of_a_character_is_no_prediction() -> None:
    """Ends inside a character can never be met by text, and do not disturb the others."""
    gold = json.dumps({"text": "🙂a", "ends": [2, 4, 5]})
    assert [VERIFIER(f"\\boxed{{{said}}}", gold).score for said in ("🙂", "🙂a", "a")] == [1, 1, 0]


@pytest.mark.parametrize(
    "bad",
    [
        *("42", "", "[1]", '{"text": "a"}', '{"text": "", "ends": [1]}'),
        *('{"text": "a", "ends": []}', '{"text": "a", "ends": [2]}', '{"text": "a", "ends": [0]}'),
        *('{"text": "a", "ends": [true]}', '{"text": "a", "ends": "1"}'),
        '{"text": "a", "ends": [1], "marker": ""}',
    ],
)
def test_a_reference_of_another_shape_is_an_error_not_a_wrong_answer(bad: str) -> None:
    assert VERIFIER("\\boxed{a}", bad).status is Status.ERROR
