"""One answer slot: the few words behind a marker or in a box, and the one number they state.

A slot that denies its number (`not 42`), offers several (`5 or 6`) or holds an expression without a
result raises Refused.
"""
# The signs below are the point of the file.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from .numbers import NUMBER, number_value

SLOT = 300
"""Characters read after a marker; an answer is shorter."""
_FRAC = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]{1,60})\}|(\d))\s*(?:\{([^{}]{1,60})\}|(\d))")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|bf|rm|boxed|fbox"
                      r"|bm|boldsymbol|underline|emph)(?![A-Za-z])\s*")  # fmt: skip
_SPACE = re.compile(r"\\(?:[,;: ]|q?quad(?![a-z]))|~")
_DELIMITER = re.compile(
    r"\\[()\[\]!]|\\(?:left|right)(?![a-z])|[*_`]{2,}|`|\^\s*\{?\s*\\circ\s*\}?|°"
)
_MONEY = re.compile(
    r"\b(?:US|AU|CA|HK|NZ|[ACS])\\?\$|\b(?:Rs\.?|USD|EUR|GBP|INR|CAD|AUD)\s?(?=[\d.$-])"
    r"|\\(?:textdollar|dollar|pounds|euro|texteuro)(?![a-z])\s?|\\?[$€£¥₹₩]\s?|\\(?=[%#&])"
)
_MINUS = re.compile(r"\b(?:negative|minus)\s+(?=[\d.])", re.IGNORECASE)
_ITALIC = re.compile(r"(?<![\w*)])\*(?=[^\s*])([^*\n]{1,80})(?<=\S)\*(?![\w*(])")
_UNIT_POWER = re.compile(
    r"\b(mm|cm|km|m|ft|in|yd|mi|feet|foot|met(?:er|re)s?|inch(?:es)?|miles?|units?|yards?)\s*\^\s*[23]\b"
)
_COMMANDS = {r"\approx": "≈", r"\times": "*", r"\cdot": "*", r"\div": "/", r"\pm": "±",
             r"\ldots": "...", r"\dots": "...", r"\simeq": "≈"}  # fmt: skip
_COMMAND = re.compile(r"\\(?:approx|times|cdot|div|pm|ldots|dots|simeq)(?![a-zA-Z])")
NOT = (
    r"\b(?:not|never|neither|nor|cannot|excluding|except|non|nicht|kein|keine|pas|ne|no es|не|nie"
    r"|não|niet|inte|ikke|ليس|ليست)"
    r"\b|n't\b|\bno\s+means\b|\banything\s+but\b|\bfar\s+from\b|\brather\s+than\b|\binstead\s+of\b"
    r"|\b(?:more|less|greater|fewer|larger|smaller|higher|lower)\s+than\s*$"
    r"|(?<![\w)\]])[!¬](?=$)|≠|\\neq?\b|不是|并非|不等于"
)
_NEAR_NOT = re.compile(rf"(?:{NOT})\W*(?:\w+\W+){{0,2}}$", re.IGNORECASE)
_FIRST_NOT = re.compile(
    rf"\W*(?:(?:a|the|it|is|it's|that|definitely|certainly|clearly|probably|surely)\W+){{0,4}}(?:{NOT})",
    re.IGNORECASE,
)
_WRONG = re.compile(
    r"\b(?:is|are|was|'s|seems|looks)\s+(?:\w+ly\s+)?(?:wrong|incorrect|false|mistaken|impossible"
    r"|not\s+(?:right|correct|true|it|the\s+(?:final\s+|correct\s+)?answer))\b"
    r"|[(\[]\s*(?:this\s+is\s+)?(?:wrong|incorrect|false|mistaken|not\s+(?:right|correct|true|it))\b"
    r"|\b(?:isn't|wasn't)\s+(?:right|correct|true|it|the\s+(?:final\s+|correct\s+)?answer)\b"
    r"|\b(?:can't|cannot|can\s+not|couldn't)\s+be\s+(?:right|correct|true|it)\b"
    r"|(?:では|じゃ)(?:ない|ありません)|不对|不正确",
    re.IGNORECASE,
)
RETRACTED = re.compile(
    _WRONG.pattern + r"|\bscratch\s+that\b|\bon\s+second\s+thou|\bjust\s+kidding\b"
    r"|\bI\s+(?:made|was)\s+(?:a\s+|an\s+)?(?:mistake|error|mistaken|wrong)"
    r"|\b(?:ignore|disregard)\s+(?:that|this\s+answer|my\s+answer|the\s+above)\b"
    r"|(?:^|[.!?,;:\n-])\s*(?:wait\b(?:\s*[,.!:\u2026-]|\s+(?:no|that|let|I|actually)\b)|nope\b|oops\b"
    r"|no\s*[,.!:-]|no\s+(?:that|it|wait)\b|actually\s*,"
    r"|(?:hm+|er+|uh|um)\b[\s,.…]*(?:actually|no|wait)\b|actually\s+(?:it|no|the)\b)"
    r"|(?:\.{2,}|…)\s*(?:or|maybe|perhaps)\b",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(
    r"(?:\b(?:or|and|and/or|to|through|until|till|maybe|perhaps|possibly|alternatively|else|oder"
    r"|und|ou|et|o|y|или|и|bis)\b|[,;|&~±/+*:-]|\.{2,}|或|和|、)[\s\"'(\[]*(?:\b(?:maybe|perhaps"
    r"|possibly|else|also|even|it|is|x|y|be|could|might|otherwise)\b[\s=(]*){0,4}$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"[^=≈]{0,60}?(?:\(|\s(?:because|since|as|which|where|when|for|in|per|after|on|at|by|every|each"
    r"|over|within|from|out|of|if|than|given|so|that|with|left|during|,)\s)",
    re.IGNORECASE,
)
# "half of 42", "42 squared": what is stated is still to be worked out.
_SCALED = re.compile(
    r"\b(?:twice|thrice|double|triple|quadruple|(?:half|third|quarter|fifth|tenth|root|square|cube"
    r"|multiple|factor|divisor|reciprocal|opposite|inverse|one|any|some)s?\s+of)\s+(?:the\s+)?$",
    re.IGNORECASE,
)
_POWERED = re.compile(
    r"\s*(?:squared\b|cubed\b|factorial\b|(?:less|more|fewer)\s+than\s+-?\d)", re.IGNORECASE
)
_OTHERWISE = re.compile(r"\b(?:otherwise|or\s+else)\b", re.IGNORECASE)
# `int('42')`, `f(3)`: only an interpreter or a reader of formulas knows what it means.
CALL = re.compile(r"[A-Za-z_]\w*\(\s*['\"\d)]|\blambda\b|__\w")
EQUALS = re.compile(r"[=≈]")
OPERATOR = re.compile(r"\s*\w*\s*[-+*/×÷x]\s*")
_WORD = re.compile(r"[^\W\d_]+")
# Words that may stand before a number which is the answer directly, not part of a sentence.
_FILLERS = frozenset({
    "a", "an", "the", "is", "are", "be", "to", "equal", "equals", "about", "approximately",
    "approx", "around", "roughly", "exactly", "simply", "just", "therefore", "thus", "so", "then",
    "indeed", "clearly", "obviously", "definitely", "certainly", "total", "of", "only", "number",
    "value", "result", "final", "answer", "it", "that", "given", "by", "at", "least", "most",
    "nearly", "almost", "precisely", "still", "now", "also", "rs", "usd", "x", "n", "y"
})  # fmt: skip


class Refused(Exception):
    """The text states something at a marker that is not one answer; the message says what."""


def clean(slot: str) -> str:
    """A slot without markup, LaTeX wrappers and money signs; a fraction as `(a)/(b)` or `a/b`."""
    slot = slot.replace("**", "").replace("__", "").replace("~~", " not ")
    if "\\" in slot:
        slot = slot.replace("{,}", ",").replace(r"\!", "")
        slot = _FRAC.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]} ", slot)
        slot = _COMMAND.sub(lambda m: _COMMANDS[m[0]], slot)
        slot = _SPACE.sub(" ", _WRAPPER.sub(" ", slot))
    slot = _ITALIC.sub(r"\1", _DELIMITER.sub("", slot.replace("{,}", ",")))
    slot = _MINUS.sub("-", _MONEY.sub("", slot)).rstrip("\\")
    slot = slot.replace("{", " ").replace("}", " ").replace("*", " * ")
    return _UNIT_POWER.sub(r"\1", slot).strip(" \t\"'_*")


def numbers_in(slot: str) -> Iterator[tuple[re.Match[str], Fraction | None, bool]]:
    """Every number in a cleaned slot: the match, its value, whether the words before deny it."""
    end = 0
    for match in NUMBER.finditer(slot):
        gap = slot[end : match.start()]
        denied = _NEAR_NOT.search(gap[-60:]) or (end == 0 and _FIRST_NOT.match(gap))
        yield match, number_value(match, slot), denied is not None and denied is not False
        end = match.end()


def read(slot: str) -> tuple[Fraction, bool] | None:
    """The one number a slot states, and whether it stands there directly (not inside a sentence).

    None when the slot has no number or is a sentence with several; raises Refused when it denies
    its number or offers several.
    """
    slot = clean(slot[:SLOT])
    found = list(numbers_in(slot))
    if not found:
        return None
    if "=" not in slot and CALL.search(slot):
        raise Refused("a call, not a number")
    kept = [(match, value) for match, value, denied in found if not denied]
    if not kept:
        raise Refused("the answer is denied, not given")
    first = kept[0][0]
    words = _WORD.findall(slot[: first.start()].lower())
    direct = all(word in _FILLERS or len(word) == 1 for word in words)
    if found[0][2] and not direct:
        direct = True  # "not 41 but 42"
    if _WRONG.search(slot, first.end()):
        raise Refused("the answer is called wrong")
    signs = list(EQUALS.finditer(slot))
    if not signs and (_SCALED.search(slot[: first.start()]) or _POWERED.match(slot, first.end())):
        raise Refused("a number that is still to be worked with")
    if len(kept) > 1 and _OTHERWISE.search(slot, first.end()):
        raise Refused("several different answers")
    for (one, _), (two, _) in pairwise(kept):
        if not signs and OPERATOR.fullmatch(slot, one.end(), two.start("run")):
            return None
    if len({value for _, value in kept}) == 1:
        value = kept[0][1]
        if value is None:
            if direct:
                raise Refused(f"{first[0]!r} is not one plain number")
            return None
        return value, direct
    for match, _ in kept[1:]:
        if direct and re.search(r"\bor\b[^.]{0,20}$", slot[first.end() : match.start()]):
            raise Refused("several different answers")
    if signs:
        return right_side(slot, signs, direct)
    if not direct:
        return None
    cut = _REASON.match(slot, first.end())
    if cut is None or (len(kept) > 1 and kept[1][0].start() < cut.end()):
        raise Refused("several different answers")
    if any(_ALTERNATIVE.search(slot[first.end() : m.start()][-40:]) for m, v in kept[1:]
           if _WORD.search(slot, cut.end(), m.start()) is None):  # fmt: skip
        raise Refused("several different answers")
    if kept[0][1] is None:
        raise Refused(f"{first[0]!r} is not one plain number")
    return kept[0][1], True


def right_side(slot: str, signs: list[re.Match[str]], direct: bool) -> tuple[Fraction, bool] | None:
    """The number right of the last `=` of a chain of equal things."""
    left, right = slot[: signs[-1].start()], slot[signs[-1].end() :]
    if re.search(r"[,;]\s|\b(?:or|and)\b", left) and direct:
        raise Refused("several different answers")
    values = [(match, value) for match, value, denied in numbers_in(right) if not denied]
    if not values:
        return None
    match, value = values[0]
    if value is None or _WORD.search(right[: match.start()]):
        return None
    rest = right[match.end() :]
    others = {v for _, v in values[1:]} - {value}
    if others and (_REASON.match(right, match.end()) is None or _ALTERNATIVE.search(
        right[match.end() : values[1][0].start()][-40:]
    )):  # fmt: skip
        if direct:
            raise Refused("several different answers")
        return None
    return None if rest.lstrip()[:1] in ("+", "*", "/") else (value, direct)
