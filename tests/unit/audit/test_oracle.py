"""The oracle, and that variants made with it are right answers or wrong answers as they claim."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cli.audit.exploits import distractor
from grpo_cli.audit.golds import _OWN
from grpo_cli.audit.oracle import (
    Letter,
    Listed,
    Number,
    Polynomial,
    Range,
    answer_part,
    choice_reference,
    decimal_text,
    parse_value,
)
from grpo_cli.audit.variants import is_same, positives
from grpo_cli.audit.wrong import negatives


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", Number(Fraction(16))),
        ("-1,234.50", Number(Fraction(-2469, 2))),
        ("1{,}234", Number(Fraction(1234))),
        ("\N{MINUS SIGN}7", Number(Fraction(-7))),
        (".5", Number(Fraction(1, 2))),
        ("\\frac{-1}{2}", Number(Fraction(-1, 2))),
        ("-2\\frac{1}{3}", Number(Fraction(-7, 3))),
        ("1 1/2", Number(Fraction(3, 2))),
        ("\uff11\uff16", Number(Fraction(16))),
        ("$\\text{16}$", Number(Fraction(16))),
        ("(1, 2)", Listed((Fraction(1), Fraction(2)), is_set=False)),
        ("\\{3, 1, 1\\}", Listed((Fraction(1), Fraction(3)), is_set=True)),
        ("[0, 1)", Range(Fraction(0), Fraction(1), True, False)),
        ("0 \\le x < 1", Range(Fraction(0), Fraction(1), True, False)),
        ("3 - x^2", Polynomial("x", (3, 0, -1))),
        ("12,34", None),
        ("1/0", None),
        ("\\sqrt{2}", None),
        ("x", None),
        ("2x + 3y", None),
        ("sixteen", None),
        ("", None),
        ("7" * 300, None),
    ],
)
def test_exact_values(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_a_letter_is_a_choice_only_where_letters_are_choices() -> None:
    assert parse_value("(B)", letters=True) == Letter("B")
    assert parse_value("\\text{B}", letters=True) == Letter("B")
    assert parse_value("AB", letters=True) is None
    assert parse_value("B") is None


numbers = st.fractions(min_value=-10_000, max_value=10_000, max_denominator=200)


@settings(max_examples=150, deadline=None)
@given(numbers)
def test_every_variant_of_a_number_keeps_or_loses_its_value_as_it_says(value: Fraction) -> None:
    answer = f"{value.numerator}/{value.denominator}" if value.denominator != 1 else str(value)
    gold = parse_value(answer)
    assert gold == Number(value)
    for variant in positives(answer, gold, "math"):
        if variant.exact:
            assert parse_value(variant.answer) == gold, f"not the gold {answer}: {variant}"
    wrong = negatives(answer, gold, "math", ["17", "18"])
    assert len(wrong) >= 4
    for variant in wrong:
        read = parse_value(variant.answer)
        assert read is not None, variant
        assert read != gold, f"{variant} equals the gold {answer}"


@pytest.mark.parametrize("kind", ["integer", "number", "math", "choice"])
def test_variants_of_the_audits_own_golds(kind: str) -> None:
    for answer in _OWN[kind]:
        gold = parse_value(answer, letters=kind == "choice")
        assert gold is not None, answer
        right, wrong = positives(answer, gold, kind), negatives(answer, gold, kind, _OWN[kind])
        assert [v for v in right if v.exact and not is_same(v, gold, kind)] == []
        assert len(wrong) >= 2, answer
        assert not {v.answer for v in right if v.exact} & {v.answer for v in wrong}


def test_zero_with_a_zero_appended_is_no_wrong_answer() -> None:
    made = {v.answer for v in negatives("0", parse_value("0"), "number", ["0", "00", "5"])}
    assert "00" not in made
    assert "0" not in made
    assert "-0" not in made
    assert "5" in made


def test_a_gold_of_unknown_value_gets_no_wrong_answers() -> None:
    assert negatives("\\sqrt{4}", None, "math", ["2"]) == []


def test_an_integer_verifier_may_refuse_decimals_and_latex() -> None:
    gold = parse_value("1234")
    exact = {v.kind for v in positives("1234", gold, "integer") if v.exact}
    assert "thousands comma" in exact
    assert "trailing .0" not in exact
    assert "\\text{}" not in exact
    assert "trailing .0" in {v.kind for v in positives("1234", gold, "math") if v.exact}


def test_units_percent_and_rounding_are_policy() -> None:
    kinds = {v.kind: v.exact for v in positives("0.5", parse_value("0.5"), "math")}
    assert not kinds["percent: 100 times with %"]
    assert not kinds["units: cm"]
    third = {v.kind: v.exact for v in positives("1/3", parse_value("1/3"), "math")}
    assert not third["rounding: 3 decimals"]


def test_a_distractor_equals_no_gold_of_the_set() -> None:
    # Fixed distractors once made a right verifier look gameable: 321 was one user's gold.
    taken = {Number(Fraction(n)) for n in range(0, 50)}
    assert Number(Fraction(distractor(Number(Fraction(3)), taken))) not in taken
    assert distractor(Letter("D"), set(), 4) == "A"


def test_decimal_text() -> None:
    assert decimal_text(Fraction(-1, 8)) == "-0.125"
    assert decimal_text(Fraction(20)) == "20"
    with pytest.raises(ValueError, match="no finite decimal"):
        decimal_text(Fraction(1, 3))


def test_the_answer_of_a_reference_that_is_more_than_an_answer() -> None:
    assert answer_part("6 * 3 = 18\n#### 18") == "18"
    assert answer_part('{"letter": "B", "options": {"B": "two", "A": "one"}}') == "B"
    assert choice_reference('{"letter": "B", "options": {"B": "two", "A": "one"}}') == (
        "B",
        ("one", "two"),
    )
    assert answer_part("{1, 2}") == "{1, 2}"
    assert choice_reference('["B"]') is None


def test_another_gold_that_may_be_this_one_rounded_is_no_wrong_answer() -> None:
    made = negatives("3.14", parse_value("3.14"), "math", ["\\frac{22}{7}", "5"])
    assert {v.answer for v in made if v.kind == "another question's gold"} == {"5"}
