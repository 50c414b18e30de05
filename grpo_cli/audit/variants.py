"""Right answers in other spellings, made from a gold by exact rules.

Every variant that the oracle can read must have the gold's value: `check` holds that, so a wrong
rule here shows in the tests and not as a false negative of a verifier.

Which spellings a verifier must accept depends on what it says it reads (its KIND). The others are
notation, reported as policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Variant:
    """One spelling of an answer; `exact` is False for a matter of policy."""

    kind: str
    answer: str
    exact: bool = True


_ALWAYS = {"as given", "spaces around"}
_INTEGER = _ALWAYS | {"plus sign", "leading zeros", "thousands comma", "Unicode minus"}
_NUMBER = _INTEGER | {"trailing .0", "trailing zero"}
_MUST: dict[str, set[str] | None] = {
    "integer": _INTEGER,
    "number": _NUMBER,
    "math": None,  # None: all that are not policy by nature
    "choice": None,
    "format": _ALWAYS,
    "code": _ALWAYS,
}


def positives(answer: str, value: Value | None, kind: str) -> list[Variant]:
    """Spellings of `answer`, `as given` first. Those of unknown value get the plain ones only."""
    must = _MUST[kind]
    found = [Variant("as given", answer), Variant("spaces around", f" {answer} ")]
    if kind not in ("format", "code"):
        found += [v for v in _spellings(answer, value) if v.answer != answer]
    kept: dict[str, Variant] = {}
    for variant in found:
        exact = variant.exact and (must is None or variant.kind in must)
        kept.setdefault(variant.kind, Variant(variant.kind, variant.answer, exact))
    return list(kept.values())


def is_same(variant: Variant, value: Value | None, kind: str) -> bool:
    """Whether the oracle reads an exact variant as the gold's value (True where it reads none)."""
    read = parse_value(variant.answer, letters=kind == "choice")
    return read is None or value is None or read == value


def _spellings(answer: str, value: Value | None) -> Iterator[Variant]:
    if isinstance(value, Number):
        yield from _of_number(value.value)
        yield from _dressed(answer)
        yield from _number_policy(value.value)
    elif isinstance(value, Letter):
        yield from _of_letter(value.letter)
    elif isinstance(value, Listed):
        yield from _of_listed(value)
    elif isinstance(value, Range):
        yield from _of_range(value)
    elif isinstance(value, Polynomial):
        yield from _of_polynomial(value)


def _of_number(value: Fraction) -> Iterator[Variant]:
    sign = "-" if value < 0 else ""
    size = abs(value)
    if is_terminating(value):
        plain = decimal_text(value)
        if value > 0:
            yield Variant("plus sign", f"+{plain}")
        if value < 0:
            yield Variant("Unicode minus", f"\N{MINUS SIGN}{decimal_text(size)}")
        if value.denominator == 1:
            yield Variant("leading zeros", f"{sign}00{size}")
            yield Variant("trailing .0", f"{plain}.0")
        else:
            yield Variant("trailing zero", f"{plain}0")
        if size >= 1000:
            whole, _, places = decimal_text(size).partition(".")
            tail = f".{places}" if places else ""
            yield Variant("thousands comma", f"{sign}{int(whole):,}{tail}")
            latex = f"{int(whole):,}".replace(",", "{,}")
            yield Variant("thousands {,}", f"{sign}{latex}{tail}")
        full = "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in plain)
        yield Variant("full-width digits", full)
    if value.denominator != 1:
        top, bottom = size.numerator, size.denominator
        yield Variant("slash fraction", f"{sign}{top}/{bottom}")
        yield Variant("\\frac", f"{sign}\\frac{{{top}}}{{{bottom}}}")
        yield Variant("\\dfrac", f"{sign}\\dfrac{{{top}}}{{{bottom}}}")
        yield Variant("unreduced", f"{sign}\\frac{{{3 * top}}}{{{3 * bottom}}}")
        if is_terminating(value):
            yield Variant("as decimal", decimal_text(value))
        if top > bottom:
            units, rest = divmod(top, bottom)
            yield Variant("mixed number", f"{sign}{units}\\frac{{{rest}}}{{{bottom}}}")


def _dressed(answer: str) -> Iterator[Variant]:
    if "\\" not in answer:
        yield Variant("\\text{}", f"\\text{{{answer}}}")
    if "$" not in answer:
        yield Variant("dollar maths", f"${answer}$")


def _number_policy(value: Fraction) -> Iterator[Variant]:
    """Questions that a verifier answers by policy, not by arithmetic."""
    if is_terminating(value):
        plain = decimal_text(value)
        if value:
            yield Variant("percent: 100 times with %", f"{decimal_text(value * 100)}%", exact=False)
            yield Variant("percent: same digits with %", f"{plain}%", exact=False)
        yield Variant("units: cm", f"{plain} cm", exact=False)
        yield Variant("units: money", f"\\${plain}", exact=False)
    else:
        rounded = f"{float(value):.3f}"
        yield Variant("rounding: 3 decimals", rounded, exact=False)


def _of_letter(letter: str) -> Iterator[Variant]:
    yield Variant("(B)", f"({letter})")
    yield Variant("**B**", f"**{letter}**")
    yield Variant("B.", f"{letter}.")
    yield Variant("B)", f"{letter})")
    yield Variant("\\text{B}", f"\\text{{{letter}}}")
    yield Variant("$B$", f"${letter}$")
    yield Variant("letter case", letter.lower(), exact=False)


def _of_listed(value: Listed) -> Iterator[Variant]:
    opening, closing = ("\\{", "\\}") if value.is_set else ("(", ")")
    texts = [number_text(item) for item in value.items]
    yield Variant("spaces inside", f"{opening} {' , '.join(texts)} {closing}")
    yield Variant("no spaces", f"{opening}{','.join(texts)}{closing}")
    yield Variant("\\left \\right", f"\\left{opening}{', '.join(texts)}\\right{closing}")
    if len(set(texts)) > 1:
        turned = ", ".join(reversed(texts))
        yield Variant("order: reversed" if not value.is_set else "set permuted",
                      f"{opening}{turned}{closing}", exact=value.is_set)  # fmt: skip


def _of_range(value: Range) -> Iterator[Variant]:
    low, high = number_text(value.low), number_text(value.high)
    opening, closing = "(["[value.low_closed], ")]"[value.high_closed]
    yield Variant("no spaces", f"{opening}{low},{high}{closing}")
    yield Variant("\\left \\right", f"\\left{opening}{low}, {high}\\right{closing}")
    left, right = (
        " \\le " if closed else " < " for closed in (value.low_closed, value.high_closed)
    )
    yield Variant("as inequality", f"{low}{left}x{right}{high}")


def _of_polynomial(value: Polynomial) -> Iterator[Variant]:
    yield Variant("terms by rising power", polynomial_text(value, rising=True))
    yield Variant("terms by falling power", polynomial_text(value, rising=False))
    yield Variant("powers in braces", polynomial_text(value, rising=False, braces=True))


def polynomial_text(value: Polynomial, *, rising: bool, braces: bool = False) -> str:
    """A polynomial as LaTeX, such as `-1 + 2x^2`."""
    powers = [p for p, c in enumerate(value.coefficients) if c]
    parts: list[str] = []
    for power in powers if rising else reversed(powers):
        coefficient = value.coefficients[power]
        size = "" if abs(coefficient) == 1 and power else str(abs(coefficient))
        exponent = f"{{{power}}}" if braces or power > 9 else str(power)
        tail = "" if not power else value.variable + (f"^{exponent}" if power > 1 else "")
        sign = "-" if coefficient < 0 else "+"
        parts.append(f"{sign} {size}{tail}" if parts else f"{sign.strip('+')}{size}{tail}")
    return " ".join(parts)


def number_text(value: Fraction) -> str:
    """The shortest exact spelling: an integer, a finite decimal, or a `\\frac`."""
    if is_terminating(value):
        return decimal_text(value)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
