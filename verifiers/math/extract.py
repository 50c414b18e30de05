r"""Find the final answers that a completion states; see the verifier's docstring for the order."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from .grammar import read
from .notation import FUNCTIONS, GREEK, MAX_CHARS, UNITS, TooBig

MAX_TEXT = 1_000_000  # characters; no completion is longer
MAX_BOXES = 200
MAX_ANCHORS = 50


class Refused(Exception):
    """The completion states no single answer; the message says why."""


def undelimited(text: str) -> str:
    text = text.strip(" \r\n")  # a tab or form feed may be what is left of \text or \frac
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(left) : -len(right)]
        if (
            len(text) > len(left) + len(right)
            and text.startswith(left)
            and text.endswith(right)
            and left not in inner
            and not text.endswith("\\$")
        ):
            return inner.strip()
    return text


_DENIED = re.compile(
    r"(?:\bnot|n't|\bnever|\bcannot|\brather than|\binstead of|\bneither|\bexcept|\bunlike)"
    r"(?:\s+(?:be|equal|equal to|simply|just|the answer))*[\s:$(\\*\[]*$",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"^[\s$.)\\\]*]*(?:,|\.)?\s*(?:(?:but|which|this|that|it|no|wait|hmm|oh)\b[\s,.]*){0,3}"
    r"(?:is|was|would be|seems|looks|'s)?\s*"
    r"(?:wrong|incorrect|not (?:the |a )?(?:correct|right|final|valid|answer)"
    r"|a mistake|an error|too (?:large|small|big|high|low|many|few))\b",
    re.IGNORECASE,
)
_ANCHOR = re.compile(r"(?P<strong>final\s+answer)|(?P<marker>####)|\banswer\b", re.IGNORECASE)
_AFTER_ANCHOR = re.compile(
    r"[*_\s]{0,4}(?:(?:to|of|for)\b[^.\n:=]{0,80}?\s)?"
    r"(?:is\s*:|is\b|are\b|=|:|should be\b|would be\b|must be\b|equals\b|comes to\b|#{0,4}\s*\n)"
    r"[*_\s]{0,6}(?:(?:therefore|thus|then|simply|just|clearly|indeed)\b,?\s*)?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[^\d\s])[.!?。](?=\s|$)|(?<=\d)[.!?。](?=\s+[A-Z]|\s*$)|\n")
_MATH = re.compile(
    r"\$\$(?P<a>[^$]+)\$\$|(?<!\\)\$(?P<b>(?:[^$\\]|\\.)+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]",
    re.DOTALL,
)
_HEDGE = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|alternatively|either|not|neither|wrong|incorrect)\b",
    re.IGNORECASE,
)


# "What is", "Simplify", "Let f be": the sentence asks or supposes.
_TASK = re.compile(
    r"\b(?:what|whose|how|why|who|task|question|problem|exercise|asked|asks|wonder|need|must(?! be)"
    r"|given (?:expression|equation|formula|value))\b|\?"
    r"|^\W*(?:(?:please|now|first|next|then|and|so|we (?:must|need to|have to|want to|can)"
    r"|to|let us|let's)\b,?\s*)*"
    r"(?:let|if|suppose|assume|given|consider|when|where|which|is|are|does|do|can|find|compute"
    r"|calculate|evaluate|simplify|determine|solve|factor\w*|expand|express|write|rewrite|convert"
    r"|show|prove|verify|check|give|state|name|list|round|estimate|add|subtract|multiply|divide"
    r"|rationali[sz]e|reduce|complete|graph|plot|differentiate|integrate|question|problem|task"
    r"|exercise|prompt|input|expression|equation|formula|hint|note|example|step|case)\b",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\W*(?:(?:and|but)\s+)?(?:so|thus|hence|therefore|consequently|finally|in conclusion"
    r"|in total|altogether|overall|as a result|here (?:is|are))\b",
    re.IGNORECASE,
)
_UNLIKE = re.compile(
    r"\b(?:cannot|can't|\w+n't|never|at (?:most|least)|exceeds?|(?:more|less|greater|smaller"
    r"|fewer|larger|other) than|below|above|under|between|nearly|almost|wrong|incorrect|false"
    r"|mistaken)\b",
    re.IGNORECASE,
)
_ASSERTS = re.compile(
    r"(?:=|\\approx|\b(?:is|are|was|were|be|equals?|equal\s+to|becomes?|gives?|gave|yields?|gets?|got"
    r"|obtains?|obtained|have|has|had|find|found|finds|conclude|simplifies\s+to|reduces\s+to"
    r"|comes?\s+to|amounts?\s+to|evaluates\s+to|leaves?|answer|result|solution|solutions|answers))"
    r"(?:\s+(?:that|us|simply|just|exactly|precisely|then|therefore|thus|indeed|of|the|value))*"
    r"[\s:,*_]*$",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\W*(?:[^\W\d_][\w'-]*\s+){0,3}[\w'-]+\s*:[*_\s]*$")  # "Total area: "
_INNER_TEXT = re.compile(r"\\(?:begin|end|text|mathrm|mbox|textbf|operatorname)\w*\s*\{[^{}]*\}")
_EXPRESSION_WORDS = (
    ({"abs", "floor", "ceil", "mod", "inf", "infinity", "and", "union", "asin", "acos", "atan"})
    | FUNCTIONS
    | GREEK
)


class _Box(tuple[int, int, "str | None"]):
    """(start, end, body); the body is None when the box is never closed."""

    @property
    def body(self) -> str | None:
        return self[2]


_BOX = re.compile(r"(?:\\|\x08)(?:boxed|fbox|framebox|beginboxed)(?![a-zA-Z])|\x08oxed(?![a-zA-Z])")
_BARE_BOX = re.compile(r"\s*(-?[\w.,/]+%?)")


def boxes_in(text: str) -> list[_Box]:
    """Every box that is not inside another, in order."""
    boxes: list[_Box] = []
    at = 0
    while (match := _BOX.search(text, at)) is not None:
        if len(boxes) >= MAX_BOXES:
            raise Refused(f"more than {MAX_BOXES} boxes")
        start = match.end()
        while start < len(text) and text[start].isspace():
            start += 1
        if start < len(text) and text[start] == "{":
            end = _closing(text, start)
            boxes.append(
                _Box((match.start(), end or len(text), text[start + 1 : end - 1] if end else None))
            )
            at = end or len(text)
        else:
            bare = _BARE_BOX.match(text, match.end())
            boxes.append(
                _Box((match.start(), bare.end() if bare else match.end(), bare[1] if bare else ""))
            )
            at = max(match.end(), bare.end() if bare else 0)
    return boxes


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _closing(text: str, start: int) -> int | None:
    """Where the brace group that opens at `start` ends, or None."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.end()
    return None


def answers_in(text: str) -> list[str]:
    """The final answers that a completion states. Raises Refused when it states none."""
    if len(text) > MAX_TEXT:
        raise Refused(f"a completion of {len(text)} characters")
    opened, closed = text.rfind("<think>"), text.rfind("</think>")
    if opened > closed:
        raise Refused("the thinking never ends")
    if closed >= 0:
        text = text[closed + len("</think>") :]
    tagged = list(_tagged(text))
    if tagged:
        if not all(tagged):
            raise Refused("an empty <answer>")
        return [a for part in dict.fromkeys(tagged) for a in _stated(part, whole=True)]
    return _stated(text, whole=False)


def _tagged(text: str) -> Iterator[str]:
    """What stands inside each <answer>...</answer>."""
    at = 0
    while (start := text.find("<answer>", at)) >= 0:
        at = text.find("</answer>", start)
        if at < 0:
            return
        yield text[start + len("<answer>") : at].strip()


def _stated(text: str, *, whole: bool) -> list[str]:
    boxes = boxes_in(text)
    filled = [b for b in boxes if b.body is None or b.body.strip()]
    if filled:
        if boxes[-1].body is not None and not boxes[-1].body.strip():
            raise Refused("an empty box after the answer")
        return _boxed(text, filled)
    if boxes:
        raise Refused("an empty box")
    if anchored := _anchored(text, 0):
        return anchored
    if whole or _bare(text):
        return [undelimited(text)]
    if closing := _last_sentence(text):
        return [closing]
    raise Refused("no final answer")


def _boxed(text: str, boxes: list[_Box]) -> list[str]:
    answers = []
    for start, end, body in boxes:
        if body is None:
            raise Refused("a box that is cut off")
        if _DENIED.search(text[max(0, start - 40) : start]) or _RETRACTED.match(
            text[end : end + 80]
        ):
            raise Refused("the boxed answer is denied")
        answers.append(undelimited(body))
    # "Wait, the answer is 7" after the box takes the box back.
    # So does a "final answer" anywhere that is not the boxed one.
    after = _anchored(text, boxes[-1][1])
    answers += [a for a in after if len(a) <= 60 or _only_mathematics(a)]
    return answers + [a for a in _anchored(text, 0, strong=True) if _only_mathematics(a)]


def _anchored(text: str, start: int, *, strong: bool = False) -> list[str]:
    """The answers after "final answer is", else after "####", else after "answer is"."""
    found: dict[str, list[str]] = {"strong": [], "marker": [], "plain": []}
    # Far more anchors than answers is a loop; its end is enough, and the work stays bounded.
    for match in deque(_ANCHOR.finditer(text, start), maxlen=MAX_ANCHORS):
        kind = match.lastgroup or "plain"
        if strong and kind != "strong":
            continue
        at = match.end()
        if kind != "marker":
            follow = _AFTER_ANCHOR.match(text, at)
            if follow is None:
                continue
            at = follow.end()
        rest = text[at : at + 4 * MAX_CHARS].lstrip()
        value = _value(rest)
        if re.search(r"\w", value) and not _ANCHOR.search(
            value
        ):  # a nested anchor speaks for itself
            found[kind].append(value)
    return found["strong"] or found["marker"] or found["plain"]


def _value(rest: str) -> str:
    """The answer at the start of `rest`: a formula, or what the sentence says as a whole."""
    if (formula := _MATH.match(rest)) is not None:
        inner = next(g for g in formula.groups() if g)
        tail = rest[formula.end() :]
        unit = re.match(r"\s*\\?%|\s+(?:percent|[a-z]+)\b", tail)
        name = UNITS.get(unit[0].strip()) if unit else None
        if (unit and "%" in unit[0]) or name == "%":
            return inner + "\\%"
        return inner + (f" \\text{{{name}}}" if name else "")
    end = _SENTENCE_END.search(rest)
    sentence = (rest[: end.start()] if end else rest).strip().strip("*_").strip()
    if not _only_mathematics(sentence) and not _HEDGE.search(sentence):
        reason = re.match(r"(.{1,200}?),?\s+(?:because|since|as|so|which)\b", sentence)
        if reason and _only_mathematics(reason[1]):
            return reason[1]
        # "The largest n is 34" after "Final answer:"
        parts = re.split(r"\b(?:is|are|equals)\b:?", sentence)
        if len(parts) == 2 and _only_mathematics(parts[1]):
            return parts[1].strip()
    return sentence


def _only_mathematics(text: str) -> bool:
    """True when the text is one short line that the grammar reads as a whole."""
    line = text.strip()
    if not line or "\n" in line or len(line) > MAX_CHARS // 2:
        return False
    try:
        return read(line).op != "text"
    except TooBig as big:
        raise Refused(str(big)) from big


def _bare(text: str) -> bool:
    """True when the whole completion is one expression, without a word that makes it a task."""
    words = re.findall(r"(?<![A-Za-z\\])[A-Za-z]{3,}", _INNER_TEXT.sub("", text))
    return _only_mathematics(text) and all(
        w.isupper() or w.lower() in _EXPRESSION_WORDS or w in UNITS or w.lower() in UNITS
        for w in words
    )


def _last_sentence(text: str) -> str:
    """The formula that ends the last sentence, is the only one in it and is asserted there, or ''.

    A formula that is merely there, as in a task that is said back, is no answer.
    """
    tail = text.rstrip()[-2000:]
    formulas = list(_MATH.finditer(tail))
    if not formulas or tail[formulas[-1].end() :].strip(" .!*\n") not in ("", "%"):
        return ""
    last = formulas[-1]
    before = tail[formulas[-2].end() if len(formulas) > 1 else 0 : last.start()]
    # A displayed formula belongs to the line above it.
    lead = before.rstrip()
    breaks = [m.end() for m in re.finditer(r"[.!?]\s|\n", lead)]
    if len(formulas) > 1 and not breaks:
        return ""
    sentence = lead[breaks[-1] if breaks else 0 :]
    alone = len(formulas) == 1 and not lead
    if not alone and (
        _HEDGE.search(sentence)
        or _TASK.search(sentence)
        or _UNLIKE.search(sentence)
        or not (
            _CONCLUDES.match(sentence) or _ASSERTS.search(sentence) or _LABEL.fullmatch(sentence)
        )
    ):
        return ""
    return next(g for g in last.groups() if g)
