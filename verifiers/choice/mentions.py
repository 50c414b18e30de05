"""Which option letters a short piece of text picks, and which it denies.

A capital letter is a mention only where it can be an option: in brackets, bold or quotes, labelled
(`B:`, `B)`), at the start, or behind a word such as `option` or `is`. The article "a", the pronoun
I, initials of words, compounds (`X-ray`), abbreviations (`U.S.`) and letters of formulas are not.
"""
# The signs of other scripts are the point of the patterns below.

from __future__ import annotations

import re
from dataclasses import dataclass

_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mathsf|mbox|bf|rm|boxed|fbox|bm"
    r"|boldsymbol|underline|emph|left|right|displaystyle)(?![A-Za-z])\s*"
)
_DELIMITER = re.compile(r"\\[()\[\],;:! ]|\\q?quad(?![a-z])|~")
_MARKED_LETTER = re.compile(
    r"(?:\*\*|__|[*_`\"'$]|\{|\*\*\()\s*[({\[]?\s*([A-Za-z])\s*[)}\].:]?\s*(?:\*\*|__|[*_`\"'$]|\})"
)
_JOINED = re.compile(r"\b(option|choice|answer|letter)[_\-](?=[A-Za-z]\b)", re.IGNORECASE)


def clean(slot: str) -> str:
    """A slot without markup; a letter that was bold, quoted or in math mode stands in brackets."""
    if "\\" in slot:
        slot = _DELIMITER.sub(" ", _WRAPPER.sub("", slot))
    slot = _JOINED.sub(r"\1 ", _MARKED_LETTER.sub(r"(\1)", slot))
    slot = slot.replace("**", "").replace("__", "").replace("`", "").replace("$", "")
    return re.sub(r"[{}\"\u201c\u201d]", " ", slot).strip(" \t*_'")


_LETTER = r"A-Za-z0-9\u00c0-\u024f\u0400-\u04ff"
_MENTION = re.compile(
    rf"(?<![{_LETTER}_'\u2019\u00b0.&\\])"
    rf"(?:[(\[]\s?(?P<inside>[A-Za-z])\s?[)\]]|(?P<bare>[A-Za-z])(?![{_LETTER}_])(?!['\u2019][A-Za-z]))"
)
# Formulas and compounds: `A = 2`, `B(x)`, `X-ray`, `C++`, `A/B`, `U.S.`, `T-1`.
_AFTER_FORMULA = re.compile(
    r"\s*(?:[=+*/^<>|\u00d7\u22c5\u2208\u2264\u2265\u2260\u2248\u221a#]|\\[a-z])"
    r"|[-\u2010-\u2014][A-Za-z0-9]|\s*[-\u2212]\s*(?:\d|[A-Za-z](?![A-Za-z]))|\(\w?\)|\.[A-Za-z]"
)
_BEFORE_FORMULA = re.compile(
    r"[=+*/^<>|\u00d7\u22c5\u221a]\s*$|\d$|(?:^|[^A-Za-z])[A-Za-z][(\[]\s*$|\\[A-Za-z]+\s*[({\[]?\s*$|[A-Za-z0-9]\s*[-\u2010-\u2014]\s*$|\b[A-Za-z]\s[-\u2212]\s$"
)
_LABEL = re.compile(r"\s?[):.]|\s[-\u2013\u2014]\s")
_AFTER_A = re.compile(
    r"\s*(?:$|[^\s\w]|[^\x00-\x7f])|\s+(?:because|since|as|is|are|was|for|due|given|based|so|which"
    r"|and|or|not|but|with|if|rather|over|instead|option|choice|[B-Z]\b)"
)
_AFTER_I = re.compile(
    r"\s*(?:$|[^\s\w'\u2019]|[^\x00-\x7f])|\s+(?:because|since|is|as|and|or|[A-HJ-Z]\b)"
)
_CUE = re.compile(
    r"(?:\b(?:option|choice|letter|answer|alternative|is|be|are|it's|only|either|both|or|and|nor|not"
    r"|than|of|out|go\s+with|went\s+with|pick|choose|select|leaving|leaves|leave|remains|eliminates?|eliminating|exclude"
    r"|excludes|therefore|thus|so|hence|definitely|clearly|probably|likely|certainly|indeed|to|for|non"
    r"|nicht|est|es|ist|opci[o\u00f3]n|l'option|letr\w|lettre|lettera|buchstabe|la|to|vs|against|[A-Z])|[:,;(\[\u2192>]|[\u0400-\uffff])\s*$",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"\b(?:not|never|neither|nor|cannot|isn't|excluding|except|eliminat\w+|ruled?\s+out|rules\s+out"
    r"|ruling\s+out|exclud\w+|reject\w*|rather\s+than|instead\s+of|anything\s+but|against|unlike|wrong"
    r"|incorrect|non|nicht|kein\w*|pas|no\s+es|\w+n't)\b|n['\u2019]t\b|\u4e0d\u662f|\u5e76\u975e|не\b",
    re.IGNORECASE,
)
_BOUNDARY = re.compile(
    r"[,;:.!?\n]|\b(?:but|leaving|leaves|so|therefore|thus|hence|it's|it\s+is|it\s+must|answer\s+is"
    r"|remains|sondern|sino|mais)\b|\u800c",
    re.IGNORECASE,
)
_JOIN = re.compile(r"[\s,/&;|()\[\]+]*(?:(?:and/or|or|and|nor|und|oder|et|ou|y|o|e|и|или|和|或|、)"
                   r"(?![A-Za-z]))?[\s,()\[\]]*(?:(?:option|choice|maybe|perhaps|also|even)\s+)*",
                   re.IGNORECASE)  # fmt: skip
_DENIED_AFTER = re.compile(
    r"[)\]]?,?\s*(?:which\s+|that\s+)?(?:(?:is|are|was|were|can\s+be|must\s+be|looks?|seems?)\s+(?:\w+ly\s+)?(?:not\b|wrong"
    r"|incorrect|false|ruled|eliminated|excluded|out\b|impossible|rejected)|(?:is|are|ca|does|do|wo|would)"
    r"n['\u2019]t\b|[(\[]\s*(?:wrong|incorrect|false|not)\b|cannot\b|(?:does|do|can|will)\s+not\b|fails?\b|\u4e0d\u5bf9|\u9519)",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\b(?:because|since|as|for|due|given|while|whereas|unlike|where|which|based|by|after|although"
    r"|though|when|if|weil|car|porque|perch\u00e9|parce|denn|\u043f\u043e\u0442\u043e\u043c\u0443)\b"
    r"|\u56e0\u4e3a|\u56e0\u70ba",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A letter that the text names as an option, `labelled` when in brackets or as `B:`."""

    letter: str
    start: int
    end: int
    labelled: bool


def mentions(slot: str, letters: frozenset[str], *, strict: bool = False) -> list[Mention]:
    """The options a cleaned slot names, in order.

    `strict` is for text without an answer marker: there a bare letter followed by a word is none.
    """
    found: list[Mention] = []
    for match in _MENTION.finditer(slot):
        inside, bare = match["inside"], match["bare"]
        letter = (inside or bare).upper()
        if letter not in letters:
            continue
        start, end = match.span()
        before = slot[max(0, start - 20) : start]
        if inside is None and not _is_option(slot, bare, before, end, strict=strict):
            continue
        after_pick = bool(found) and _JOIN.fullmatch(slot, found[-1].end, start) is not None
        labelled = inside is not None or _LABEL.match(slot, end) is not None
        if not (before.strip(" ([*") == "" or labelled or after_pick or _CUE.search(before)):
            continue
        found.append(Mention(letter, start, end, labelled))
    return found


def _is_option(slot: str, letter: str, before: str, end: int, *, strict: bool) -> bool:
    """Whether a bare letter can be an option where it stands."""
    if _AFTER_FORMULA.match(slot, end) or _BEFORE_FORMULA.search(before):
        return False
    rest = slot[end : end + 20]
    if letter.islower():
        # Only as the whole slot, or as a label at its start: "b", "b.", "option b", "b) the tube".
        lead = re.sub(r"\b(?:option|choice|letter)\s*$", "", before, flags=re.IGNORECASE)
        return not lead.strip(" (") and re.match(r"\s*[.!,;]?\s*$|\s?[):]", rest) is not None
    if strict and not re.match(
        r"\s*(?:$|[^\s\w]|[^\x00-\x7f]|(?:or|and|not|because|nor|[A-Z])\b)", rest
    ):
        return False
    if re.search(r"\b(?:option|choice|letter)\s*$", before, re.IGNORECASE):
        return True
    if letter == "A":
        return _AFTER_A.match(rest) is not None
    return letter != "I" or _AFTER_I.match(rest) is not None


def picks(slot: str, letters: frozenset[str], *, strict: bool = False) -> list[str]:
    """The different letters a cleaned slot picks, in order; those it denies are left out."""
    chosen: list[str] = []
    named = mentions(slot, letters, strict=strict)
    denied: list[bool] = []
    end = 0
    for index, mention in enumerate(named):
        gap = slot[end : mention.start]
        end = mention.end
        negations, bounds = list(_NOT.finditer(gap)), list(_BOUNDARY.finditer(gap))
        joined = index > 0 and _JOIN.fullmatch(gap) is not None
        if negations and (not bounds or negations[-1].start() > bounds[-1].start()):
            denied.append(True)
        else:
            denied.append(joined and denied[-1])
        if _DENIED_AFTER.match(slot, mention.end):
            denied[index] = True
            back = index
            while back > 0 and _JOIN.fullmatch(slot, named[back - 1].end, named[back].start):
                back -= 1
                denied[back] = True
    pick_end = -1
    for mention, is_denied in zip(named, denied, strict=True):
        if is_denied:
            continue
        if chosen:
            between = slot[pick_end : mention.start]
            option_text = _LABEL.match(between) and re.search(r"[^\W\d_]{2}", between)
            if _REASON.search(between) or (option_text and not mention.labelled):
                continue
        pick_end = mention.end
        if mention.letter not in chosen:
            chosen.append(mention.letter)
    refused = {m.letter for m, is_denied in zip(named, denied, strict=True) if is_denied}
    return [letter for letter in chosen if letter not in refused]  # "B or not B" is no pick
