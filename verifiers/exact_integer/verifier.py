"""Exact match of one integer after the answer marker `#`.

The answer is the rest of the line after `#` (or a run of them, as in GSM8K's `####`), with the
whitespace around it removed. It must be one integer and nothing else:

- a sign may be `+`, `-` or the Unicode minus, and leading zeros do not count;
- digits are Unicode decimal digits, such as the full-width ones; `1²` is no integer;
- commas may group thousands (`1,234`) and one full stop may end it (`16.`); `16.0` is no integer.

Everything else is UNPARSED with score 0: no marker, a marker without an integer (also when another
marker has one: the marker is for the answer only), several different answers, a completion that
was cut before its answer. Integers outside the marker are never looked at, and no integer is ever
picked out of a sentence, so listing several candidates does not pay.
"""

from __future__ import annotations

import re
import unicodedata

from grpo_cli.types import Status, Verdict

KIND = "integer"

# Not int(): it refuses long numbers, accepts `1_000` and costs quadratic time.
_INTEGER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)\.?")
_MARKER = re.compile(r"#+")
_SIGNS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{FULLWIDTH HYPHEN-MINUS}": "-",
                        "\N{FULLWIDTH PLUS SIGN}": "+"})  # fmt: skip


def verify(text: str, reference: str) -> Verdict:
    """Score 1.0 when the one marked integer of `text` equals `reference`, else 0.0.

    Raises ValueError when `reference` is not an integer.
    """
    wanted = canonical_integer(reference)
    if wanted is None:
        raise ValueError(f"the reference {reference!r} is not an integer")
    marked = _MARKER.split(text)[1:]
    if not marked:
        return _unparsed("no answer marker '#'")
    answers = {canonical_integer((part.splitlines() or [""])[0]) for part in marked}
    if None in answers:
        return _unparsed("a marker '#' is not followed by one integer alone")
    if len(answers) > 1:
        return _unparsed(f"{len(answers)} different answers")
    (answer,) = answers
    assert answer is not None
    return Verdict(score=float(answer == wanted), status=Status.OK, parsed=answer)


def answer(reference: str) -> str:
    """The shortest completion that answers `reference`: `#16`.

    Raises ValueError when `reference` is not an integer.
    """
    wanted = canonical_integer(reference)
    if wanted is None:
        raise ValueError(f"the reference {reference!r} is not an integer")
    return f"#{wanted}"


def canonical_integer(text: str) -> str | None:
    """The integer as ASCII without `+` or leading zeros, or None when `text` is not one integer."""
    match = _INTEGER.fullmatch(text.strip().translate(_SIGNS))
    if match is None:
        return None
    sign, digits = match.groups()
    ascii_digits = "".join(str(unicodedata.decimal(d)) for d in digits.replace(",", ""))
    magnitude = ascii_digits.lstrip("0") or "0"
    return f"-{magnitude}" if sign == "-" and magnitude != "0" else magnitude


def _unparsed(detail: str) -> Verdict:
    return Verdict(score=0.0, status=Status.UNPARSED, detail=detail)
