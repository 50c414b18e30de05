"""Wrong answers close to a gold, made by exact rules. One that equals the gold is never made.

The values are compared by the oracle, so `00` is no wrong answer to `0`, and 1/2 with its digits
swapped is none when it comes out as the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from grpo_cli.audit.oracle import (
    Letter,
    Listed,
    Number,
    Polynomial,
    Range,
    Value,
    decimal_text,
    is_terminating,
    parse_value,
)
from grpo_cli.audit.variants import Variant, number_text, polynomial_text


def negatives(answer: str, value: Value | None, kind: str, others: Sequence[str]) -> list[Variant]:
    """Wrong answers near `answer`; none when its value is unknown.

    Args:
        answer: the gold.
        value: its exact value.
        kind: the verifier's KIND.
        others: golds of other questions; the first of another value is one more wrong answer.
    """
    if value is None or kind in ("format", "code"):
        return []
    letters = kind == "choice"
    found: dict[str, Variant] = {}
    for name, text in _near(answer, value, others, letters):
        read = parse_value(text, letters=letters)
        # What the oracle cannot read is kept only where its rule says that it is no answer at all.
        if (read != value and read is not None) or (read is None and name in _NO_VALUE):
            found.setdefault(text, Variant(name, text))
    return list(found.values())


_NO_VALUE = {"none of the above"}


def _near(
    answer: str, value: Value, others: Sequence[str], letters: bool
) -> Iterator[tuple[str, str]]:
    if isinstance(value, Number):
        yield from _number(answer, value.value)
    elif isinstance(value, Letter):
        yield "next letter", chr(ord(value.letter) + 1) if value.letter < "D" else "A"
        yield "none of the above", "None of the above"
    elif isinstance(value, Listed):
        yield from _listed(value)
    elif isinstance(value, Range):
        yield from _range(value)
    elif isinstance(value, Polynomial):
        yield from _polynomial(value)
    for other in others:
        read = parse_value(other, letters=letters)
        if read is not None and read != value and not _near_by_rounding(read, value):
            yield "another question's gold", other
            break


def _near_by_rounding(a: Value, b: Value) -> bool:
    """Whether two numbers may be one rounded: whether 22/7 answers 3.14 is a matter of policy."""
    if not isinstance(a, Number) or not isinstance(b, Number):
        return False
    return abs(a.value - b.value) <= abs(b.value) / 50


def _number(answer: str, value: Fraction) -> Iterator[tuple[str, str]]:
    yield "plus one", number_text(value + 1)
    yield "minus one", number_text(value - 1)
    yield "sign flipped", number_text(-value)
    yield "ten times", number_text(value * 10)
    yield "a tenth", number_text(value / 10)
    yield "ten percent more", number_text(value * Fraction(11, 10))
    if value:
        yield "reciprocal", number_text(1 / value)
    if value.denominator != 1:
        top, bottom = value.numerator, value.denominator
        yield "denominator plus one", number_text(Fraction(top, bottom + 1))
        yield "numerator plus one", number_text(Fraction(top + 1, bottom))
    if is_terminating(value):
        text = decimal_text(value)
        sign, digits = ("-", text[1:]) if value < 0 else ("", text)
        yield "one hundredth more", decimal_text(value + Fraction(1, 100))
        yield "digit appended", f"{text}9"
        yield "digit prefixed", f"{sign}1{digits}"
        if len(digits.replace(".", "")) > 1:
            yield "last digit dropped", text[:-1].rstrip(".")
            yield "first digit dropped", sign + digits[1:]
            yield "digits swapped", sign + digits[::-1]
    else:
        yield "digit appended", f"{answer}9"


def _listed(value: Listed) -> Iterator[tuple[str, str]]:
    opening, closing = ("\\{", "\\}") if value.is_set else ("(", ")")

    def write(items: Sequence[Fraction]) -> str:
        return f"{opening}{', '.join(number_text(i) for i in items)}{closing}"

    items = list(value.items)
    if len(items) > 2:
        yield "element dropped", write(items[:-1])
    yield "element added", write([*items, max(items) + 1])
    yield "element changed", write([*items[:-1], items[-1] + 1])


def _range(value: Range) -> Iterator[tuple[str, str]]:
    def write(r: Range) -> str:
        opening, closing = "(["[r.low_closed], ")]"[r.high_closed]
        return f"{opening}{number_text(r.low)}, {number_text(r.high)}{closing}"

    yield "endpoint changed", write(replace(value, high=value.high + 1))
    # Turning both keeps one bracket square and one round, so that it is still an interval.
    swapped = replace(value, low_closed=value.high_closed, high_closed=value.low_closed)
    yield "endpoints opened and closed", write(swapped)


def _polynomial(value: Polynomial) -> Iterator[tuple[str, str]]:
    low, *rest = value.coefficients
    yield (
        "constant changed",
        polynomial_text(replace(value, coefficients=(low + 1, *rest)), rising=False),
    )
    lead = value.coefficients[-1]
    yield (
        "coefficient changed",
        polynomial_text(
            replace(value, coefficients=(*value.coefficients[:-1], lead + 1 or 2)), rising=False
        ),
    )
    first = next(i for i, c in enumerate(value.coefficients) if c)
    turned = list(value.coefficients)
    turned[first] = -turned[first]
    yield (
        "sign of a term flipped",
        polynomial_text(replace(value, coefficients=tuple(turned)), rising=False),
    )
