"""Exact values of answers, by the audit's own arithmetic. Never the verifier's, never a float.

A value knows its type: `1/2` and `0.5` are the same number, `(1, 2)` is a pair and not an interval.
What has no exact value here (roots, prose, matrices) gives None, and no variant is made from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

_SIGN = r"[+\-\N{MINUS SIGN}]?"
_WHOLE = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+|\d+)"
_DECIMAL = re.compile(rf"({_SIGN})\s*((?:{_WHOLE})(?:\.\d*)?|\.\d+)")
_SLASH = re.compile(rf"({_SIGN})\s*(\d+)\s*/\s*({_SIGN}\d+)")
_FRAC = re.compile(
    rf"({_SIGN})\s*(\d*)\s*\\[dt]?frac\s*\{{\s*({_SIGN}\d+)\s*\}}\s*\{{\s*({_SIGN}\d+)\s*\}}"
)
_MIXED = re.compile(rf"({_SIGN})\s*(\d+)\s+(\d+)/(\d+)")
_TERM = re.compile(r"([+\-]?)(\d*)\*?(?:([a-zA-Z])(?:\^(?:\{(\d+)\}|(\d+)))?)?")
_LETTER = re.compile(
    r"[\s*$\[(]*(?:\\(?:text|mathrm|textbf|mathbf)\{)?\(?([A-Z])\)?\}?[\s*$.\]):]*"
)
_MAX_CHARS = 200
_MAX_DEGREE = 20


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Listed:
    """A tuple in round brackets, or a set in braces (its elements sorted, each once)."""

    items: tuple[Fraction, ...]
    is_set: bool


@dataclass(frozen=True, slots=True)
class Range:
    """An interval that cannot be mistaken for a pair: one bracket at least is square."""

    low: Fraction
    high: Fraction
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Whole coefficients by rising degree, the last one not zero; at least degree 1."""

    variable: str
    coefficients: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Letter:
    """The letter of a multiple choice option."""

    letter: str


Value = Number | Listed | Range | Polynomial | Letter


def answer_part(reference: str) -> str:
    """The final answer of a reference.

    It may be a worked solution with `####` at its end, or JSON of a multiple choice question
    (`{"letter": "B", "options": {"A": "ovary", ...}}`).
    """
    if (choice := choice_reference(reference)) is not None:
        return choice[0]
    return re.split(r"(?m)^\s*####", reference)[-1].strip() if "####" in reference else reference


def choice_reference(reference: str) -> tuple[str, tuple[str, ...]] | None:
    """The letter and the texts of the options of a JSON reference; None for any other."""
    if not reference.lstrip().startswith("{"):
        return None
    try:
        fields = json.loads(reference)
    except (ValueError, RecursionError):
        return None
    letter = fields.get("letter") if isinstance(fields, dict) else None
    if not isinstance(letter, str):
        return None
    options = fields.get("options")
    texts = [str(text) for _, text in sorted(options.items())] if isinstance(options, dict) else []
    return letter, tuple(texts)


def parse_value(text: str, *, letters: bool = False) -> Value | None:
    """The exact value of an answer, or None.

    With `letters` a single capital letter is a choice, else it is nothing.
    """
    if len(text) > _MAX_CHARS:
        return None
    if letters:
        match = _LETTER.fullmatch(text)
        return Letter(match[1]) if match else None
    plain = _plain(text)
    number = parse_number(plain)
    if number is not None:
        return Number(number)
    return _parse_listed(plain) or _parse_inequality(plain) or _parse_polynomial(plain)


def parse_number(text: str) -> Fraction | None:
    """The rational number that `text` writes: integer, decimal, fraction or mixed number."""
    text = text.strip()
    if match := _MIXED.fullmatch(text):
        sign, whole, top, bottom = match.groups()
        return _signed(sign, int(whole) + _ratio(top, bottom)) if int(bottom) else None
    if match := _SLASH.fullmatch(text):
        sign, top, bottom = match.groups()
        return _signed(sign, _ratio(top, bottom)) if _int(bottom) else None
    if match := _FRAC.fullmatch(text):
        sign, whole, top, bottom = match.groups()
        return _signed(sign, int(whole or 0) + _ratio(top, bottom)) if _int(bottom) else None
    if match := _DECIMAL.fullmatch(text):
        sign, digits = match.groups()
        return _signed(sign, Fraction(digits.replace("{,}", "").replace(",", "").rstrip(".")))
    return None


def is_terminating(value: Fraction) -> bool:
    """Whether the decimal of `value` ends."""
    bottom = value.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    return bottom == 1


def decimal_text(value: Fraction) -> str:
    """The whole decimal of a value whose decimal ends, such as `-0.125`.

    Raises:
        ValueError: it does not end.
    """
    if not is_terminating(value):
        raise ValueError(f"{value} has no finite decimal")
    places = 0
    scaled = abs(value)
    while scaled.denominator != 1:
        scaled *= 10
        places += 1
    digits = str(scaled.numerator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"


def _plain(text: str) -> str:
    """Without dress: dollar signs, `\\text{}`, LaTeX spaces, full-width digits."""
    text = text.strip().strip("$").strip()
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:left|right)(?![a-zA-Z])|\\[,!;: ]", "", text)
    text = "".join(chr(ord(c) - 0xFEE0) if "\uff01" <= c <= "\uff5e" else c for c in text)
    return text.replace("\N{MINUS SIGN}", "-").strip()


def _int(text: str) -> int:
    return int(text.replace("\N{MINUS SIGN}", "-"))


def _ratio(top: str, bottom: str) -> Fraction:
    return Fraction(_int(top), _int(bottom))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign and sign in "-\N{MINUS SIGN}" else value


def _parse_listed(text: str) -> Listed | Range | None:
    match = re.fullmatch(r"(\\\{|\{|[(\[])(.*?)(\\\}|\}|[)\]])", text)
    if match is None:
        return None
    opening, inside, closing = match.groups()
    numbers = _numbers(re.split(r",\s*", inside))
    if numbers is None:
        return None
    if opening.endswith("{") and closing.endswith("}"):
        return Listed(tuple(sorted(set(numbers))), is_set=True)
    if opening == "(" and closing == ")":
        return Listed(tuple(numbers), is_set=False) if len(numbers) > 1 else None
    if opening in "([" and closing in ")]" and len(numbers) == 2 and opening + closing != "[]":
        low, high = numbers
        return Range(low, high, opening == "[", closing == "]") if low < high else None
    return None


def _parse_inequality(text: str) -> Range | None:
    sign = r"\s*(<|\\leq?(?![a-zA-Z])|\N{LESS-THAN OR EQUAL TO}|<=)\s*"
    match = re.fullmatch(rf"(.+?){sign}[a-z]{sign}(.+)", text)
    if match is None:
        return None
    numbers = _numbers((match[1], match[4]))
    if numbers is None or numbers[0] >= numbers[1]:
        return None
    return Range(numbers[0], numbers[1], match[2] != "<", match[3] != "<")


def _numbers(parts: Sequence[str]) -> list[Fraction] | None:
    found = [parse_number(part) for part in parts]
    return [n for n in found if n is not None] if None not in found else None


def _parse_polynomial(text: str) -> Polynomial | None:
    """Sums of `coefficient * variable ^ power` in one variable."""
    rest = re.sub(r"\s|\\cdot(?![a-zA-Z])", "", text)
    coefficients: dict[int, int] = {}
    variables: set[str] = set()
    while rest:
        match = _TERM.match(rest)
        if match is None or not match[0].strip("+-*") or (coefficients and not match[1]):
            return None
        sign, digits, variable, long_power, short_power = match.groups()
        power = int(long_power or short_power or 1) if variable else 0
        if power > _MAX_DEGREE:
            return None
        variables.update(variable or "")
        value = int(digits or 1) * (-1 if sign == "-" else 1)
        coefficients[power] = coefficients.get(power, 0) + value
        rest = rest[match.end() :]
    degree = max((p for p, c in coefficients.items() if c), default=0)
    if len(variables) != 1 or degree < 1 or len(text.strip()) == 1:  # a lone letter is a name
        return None
    return Polynomial(variables.pop(), tuple(coefficients.get(p, 0) for p in range(degree + 1)))
