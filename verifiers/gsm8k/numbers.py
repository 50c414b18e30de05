"""One number in a text: which characters count as digits and separators, and its exact value.

The value is a Fraction, never a float, and long runs of digits are refused before they become one.
"""
# The signs below are the point of the file.
# ruff: noqa: RUF001

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_MAX_DIGITS = 60  # a longer number is no answer, and big integers cost quadratic time
_SCALES = {"k": 3, "K": 3, "M": 6, "B": 9, "bn": 9, "hundred": 2, "thousand": 3, "million": 6,
           "billion": 9, "trillion": 12}  # fmt: skip

_CHARS: dict[int, str] = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full-width ASCII
    **dict.fromkeys((0x2212, *range(0x2010, 0x2016), 0xFE63), "-"),
    **dict.fromkeys((0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "),
    **dict.fromkeys((0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF), ""),
    **dict.fromkeys((0x2018, 0x2019, 0x2032), "'"),
    **dict.fromkeys((0x201C, 0x201D), '"'),
    **{0x66A: "%", 0x66B: ".", 0x66C: ",", 0x2044: "/"},
    **{0xBD: " 1/2", 0xBC: " 1/4", 0xBE: " 3/4", 0x2153: " 1/3", 0x2154: " 2/3"},
}
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


def plain_characters(text: str) -> str:
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda m: str(unicodedata.decimal(m[0])), text.translate(_CHARS))


# One run of digits with everything that may group it; number_value decides what it means. Taking
# the whole run at once keeps `149` from matching 49, `1,2,3` from being 1, and the scan linear.
_RUN = r"\d++(?:(?:[.,:]|['\ ](?=\d{3}(?!\d)))\d++)*+"
NUMBER = re.compile(
    rf"""(?<![A-Za-z_\d])(?<!\d\.)
    (?P<sign>[+-]\ *+)?+
    (?P<run>{_RUN}|\.\d++)
    (?:\ ?/\ ?(?P<below>{_RUN})|\ (?P<num>\d++)/(?P<den>\d++)(?!\d))?+
    (?P<exp>[eE][+-]?\d{{1,2}}(?!\w)|\ *+[*×x]\ *+10\ ?\^\ *+[+-]?\d{{1,2}}(?!\d))?+
    (?:(?P<suffix>[kKMB]|bn)(?!\w)|\ (?P<word>hundred|thousand|million|billion|trillion)\b)?+""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"\d*\.?\d+")
_GROUPED = re.compile(r"\d{1,3}(?:(?:,\d{3})+|(?:'\d{3})+|(?: \d{3})+|(?:,\d\d)*,\d{3})(?:\.\d+)?")
_EUROPEAN = re.compile(r"\d{1,3}(?:\.\d{3})+,\d{1,2}|\d{1,3}(?:\.\d{3}){2,}")
_DECIMAL_COMMA = re.compile(r"\d+,\d{1,2}")
# What may not stand right after a number: it would be part of an expression or a range.
_ATTACHED = re.compile(
    r"\s*(?:[\^√π∙⋅*±\u00b2\u00b3\u2074-\u2079\u00b9\u2070]|\\(?!\s|$)"
    r"|_\s*\d|[-+]\s*\d*[b-hj-zB-HJ-Z](?![\w'])"
    r"|/(?!\s?[A-Za-z])|\+(?!\s?\d)|or\s+(?:more|less|fewer|greater|higher|lower)\b"
    r"|and\s+(?:a|one)\s+(?:half|third|quarter))"
    r"|[a-z](?![\w'])(?<![gmlhscdytkp])|\s+[xyzn](?![\w'])"
)
# And right before it: -(5), 2^5, \sqrt 5, 0..5, > 5, "over 5".
_BEFORE = re.compile(
    r"-\s?[(\[]\s?$|[\^√_±∓<>≤≥]\s*$|\.\.\.?\s*$|\\[A-Za-z]+\s*$"
    r"|\b(?:under|over|above|below|beyond|hardly|no\s+longer|other\s+than|differ(?:s|ent)\s+from)\s+$",
    re.IGNORECASE,
)


def _decimal(run: str) -> Fraction | None:
    """The value of one run of digits and separators, None when it is not one number."""
    if len(run) > _MAX_DIGITS:
        return None
    if _PLAIN.fullmatch(run):
        return Fraction(run)
    if _GROUPED.fullmatch(run):
        return Fraction(re.sub("[,' ]", "", run))
    if _EUROPEAN.fullmatch(run):
        return Fraction(run.replace(".", "").replace(",", "."))
    return Fraction(run.replace(",", ".")) if _DECIMAL_COMMA.fullmatch(run) else None


def number_value(match: re.Match[str], text: str) -> Fraction | None:
    """The exact value of a `NUMBER` match in `text`, None when it is not one number."""
    value = _decimal(match["run"])
    for above, below in (("1", match["below"]), (match["num"], match["den"])):
        if below is None or value is None:
            continue
        part, whole = _decimal(above), _decimal(below)
        if not whole or part is None:
            return None
        value = value / whole if match["below"] else value + part / whole
    if value is None or _ATTACHED.match(text, match.end()) or _BEFORE.search(
        text[max(0, match.start() - 20) : match.start()]
    ):  # fmt: skip
        return None
    if exp := match["exp"]:
        power = int(re.sub(r"^.*[\^eE]\s*", "", exp))
        value *= Fraction(10) ** power
    if scale := match["suffix"] or match["word"]:
        value *= 10 ** _SCALES[scale]
    return -value if _is_negative(match, text) else value


def _is_negative(match: re.Match[str], text: str) -> bool:
    """True for a sign, False for a subtraction (`10 - 3`) or a hyphen (`a 2-3`)."""
    sign = match["sign"]
    if sign is None or sign[0] != "-":
        return False
    start = match.start()
    before = text[max(0, start - 12) : start]
    spaced = before.rstrip()
    if spaced[-1:].isdigit() or spaced[-1:] in (")", "%", "]"):
        return False
    if before == spaced and spaced[-1:].isalpha():
        return False
    return len(sign) == 1 or not spaced or spaced[-1] in "=:(≈" or spaced.endswith(" is")


def canonical(value: Fraction) -> str:
    """An integer or a terminating decimal where there is one, else `a/b`."""
    below, places = value.denominator, 0
    for prime in (2, 5):
        power = 0
        while below % prime == 0:
            below, power = below // prime, power + 1
        places = max(places, power)
    if below != 1 or places > _MAX_DIGITS:
        return str(value)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"
