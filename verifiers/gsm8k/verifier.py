r"""The final number of a worked answer, compared exactly with the reference number.

Where the answer is looked for, after a think block (`</think>`) and before the model starts a new
question (`Question:`, `Q:`, `<|im_end|>` and the like) once it has written a number:

1. `<answer>` tags: only their content counts.
2. Markers: `#### 18`, `\boxed{18}`, `the answer is 18`, `Answer: 18`, `A: 18` and the same word in
   some other languages. All marked answers must be equal; two that differ are a refusal.
3. Nothing marked: the last number of the last sentence. This is a fallback with more refusals: a
   question, a list, a negation, "maybe", a line said twice with different numbers, unfinished
   arithmetic.

Accepted forms: commas, `9{,}500`, `1 000`, decimals (`72.0` is 72), fractions and mixed numbers
(exact), money signs, units and percent signs (ignored), bold, brackets, LaTeX wrappers, closing
punctuation, Unicode minus and decimal digits, `2 million`, `2.5e3`, an equation (its right side).

UNPARSED with score 0: no number, an unfinished think block, several different answers or a list
(`5 or 6`), a negated or retracted number (`definitely not 42`), a range or bound (`more than 42`),
a clock time, a number with a variable, root or power attached (`3x`, `4\sqrt{2}`), arithmetic
without a result (`21 + 21`), a call (`int('42')`).

Policy: `at least 42` is 42; `%` is a unit (`25%` is 25, never 0.25); no rounding (`3.33` is not
`10/3`); `1.000` is 1; a decimal comma is read when it cannot be a thousands comma (`2,5`); `k`
after a digit is thousand.

The reference is one number, or a GSM8K worked answer with the number after `####`. Model text is
never evaluated, and every scan is linear in its length.
"""
# The signs of other scripts are the point of the patterns below.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from grpo_cli.types import Status, Verdict

from .numbers import NUMBER, canonical, plain_characters
from .slot import (
    CALL,
    EQUALS,
    NOT,
    OPERATOR,
    RETRACTED,
    SLOT,
    Refused,
    clean,
    numbers_in,
    read,
    right_side,
)

KIND = "number"

_MAX_MARKERS = 200  # of one kind; more is no answer but a flood
_ANSWER_WORDS = (
    "answer", "ans", "antwort", "réponse", "reponse", "respuesta", "risposta", "resposta",
    "antwoord", "svar", "svaret", "ответ", "відповідь", "odpowiedź", "cevap", "đáp án", "đáp số",
    "答案", "答え", "回答", "답", "الجواب", "الإجابة", "उत्तर", "jawaban",
)  # fmt: skip
_LINKS = (
    r"(?:\s+to\s+(?:the|this|that|your)\s+(?:\w+\s+)?(?:question|problem|exercise))?"
    r"(?:,?\s+(?:then|therefore|thus|hence)\b,?)?\s*+[*_`\"'）)\]]*+\s*+"
    r"(?:[:=：]|\b(?:is|are|equals|(?:would|will|should|must|has\s+to|seems\s+to|comes\s+out\s+to)\s+be"
    r"|becomes|comes\s+(?:out\s+)?to|ist|lautet|beträgt|est(?:\s+de)?|es(?:\s+de)?|è|é|er|är|jest|это"
    r"|adalah|là)(?![\w'])|(?:是|为|為|は、?|은|는|هو|هي|है)|[-–—]\s)\s*+[:：=]?[*_`\"'\s]{0,6}"
)


def _marker(word: str) -> re.Pattern[str]:
    guard = r"(?<![^\W\d_])" if word[0].isalpha() and ord(word[0]) < 0x2E80 else ""
    return re.compile(guard + re.escape(word) + _LINKS, re.IGNORECASE)


_LINE_MARKER = re.compile(r"^[ \t>*_]*A:[*_ \t]*", re.MULTILINE)
_HEADER = re.compile(r"^[ \t#>*_]*(?:final\s+)?answer[ \t*_]*$\s*", re.MULTILINE | re.IGNORECASE)
_MARKERS = (
    *((word, _marker(word)) for word in _ANSWER_WORDS),
    ("a:", _LINE_MARKER),
    ("answer", _HEADER),
)
_HASHES = re.compile(r"#{4,}")
_ENUMERATED = re.compile(r"\s*[*_]*\d{1,2}[.):]\s+[*_]*[A-Za-z]", re.IGNORECASE)
_HEADING = re.compile(r"\s*[*_]*(?:step|part|case)\s+\d", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
_PLACEHOLDERS = frozenset({"", "...", "answer", "your answer", "your final answer", "final answer",
                           "final number", "number", "the answer", "x", "n", "…"})  # fmt: skip
_UNASSERTED = re.compile(
    r"\b(?:if|suppose|supposing|assume|assuming|whether|unless|imagine)\b[^.!?,\n]{0,50}$"
    # "each right answer is 5 points", "points/answer = 2"
    r"|\b(?:each|every|per|an?|any|one|wrong|incorrect|false|mistaken)\s+(?:\w+\s+)?$|/\s?$"
    r"|\b(?:friends?|people|someone|others|students?|many|some)\s+(?:\w+\s+)?(?:thinks?|says?|said"
    r"|claim(?:s|ed)?|believes?)\b[^.!?\n]{0,20}$|\b(?:mistake|misconception|trap)\b[^.!?\n]{0,20}$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:(?:\bnot|n't|\bnever)\s+(?:\w+\s+){0,2}?(?:think|believe|say|said|true|case|correct|sure"
    r"|certain|convinced|mean)|\b(?:no\s+way|nobody|no\s+one)"
    r"|(?<!no )(?<!without )(?<!without a )\bdoubt\b"
    r"|\b(?:false|wrong|untrue|incorrect)\s+(?:that|to\s+\w+))\b[^.!?,;\n]{0,20}$"
    r"|\bnot\s+(?:that\s+)?(?:the\s+)?(?:\w+\s+)?$",
    re.IGNORECASE,
)
_DENIED_BOX = re.compile(rf"(?:{NOT}|\b(?:wrong|incorrect)\b)[^.!?,;\n]{{0,15}}$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=[\s*_\"')\]$]|\\[)\]]|$)(?!\.)|[。！？।\n]|<\|")
_CALCULATION = re.compile(r"<<[^<>\n]*>>")
_THINK_OPEN = re.compile(r"<(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_THINK_CLOSE = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_NEXT_QUESTION = re.compile(
    r"(?:<\|(?:im_end|im_start|endoftext|eot_id|end|user)\|>|</s>|<\uff5c"
    r"|^[ \t]*+[#*_]{0,6}[ \t]*+(?:\[(?:Question|Problem|INST)\]|(?:(?:next|new|another)\s+)?"
    r"(?:Question|Problem|Exercise|Q|Human|User|Instruction|Example|Frage|Pregunta|Domanda|Вопрос|问题"
    r"|問題|题目|問|질문)[ \t]*+[\d.]{0,4}[ \t]*+[*_]{0,2}[ \t]*+[:：][*_]{0,2}))",
    re.MULTILINE | re.IGNORECASE,
)  # fmt: skip


def _slot(text: str, start: int) -> str:
    """From `start` to the end of the sentence or line; the next filled line when this is blank."""
    window = text[start : start + SLOT + 1].lstrip(" \t:*_`")
    if not window.split("\n", 1)[0].strip(" \t*_$\\[("):
        window = window.lstrip("\n\r\t $*_[\\(")
    end = _SENTENCE_END.search(window)
    if end is None:
        return window
    return window[: end.start()] + ("?" if end[0] in "?？" else "")


def _line(text: str, start: int) -> str:
    """The rest of the line, or the next filled line when it is blank."""
    window = text[start : start + SLOT + 1]
    first = window.split("\n", 1)[0]
    return first if first.strip() else window.lstrip().split("\n", 1)[0]


def _box(text: str, start: int) -> tuple[str, int]:
    """The content of a box whose brace (or bare token) begins at `start`, and where it ends."""
    if text[start : start + 1] != "{":
        bare = re.compile(r"-?[\d,.]+").match(text, start)
        return (bare[0], bare.end()) if bare else ("", start)
    depth = 0
    for index in range(start, min(len(text), start + SLOT)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 1 : index], index + 1
    raise Refused("a box that is not closed")


def _bounded(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for count, match in enumerate(pattern.finditer(text)):
        if count >= _MAX_MARKERS:
            raise Refused(f"more than {_MAX_MARKERS} answer markers")
        yield match


def _marked(text: str) -> tuple[list[Fraction], list[Fraction], int]:
    """The answers at markers: stated directly, stated inside a sentence; where the last one is."""
    firm: list[Fraction] = []
    soft: list[Fraction] = []
    last = 0

    def add(slot: str, start: int, *, firmly: bool) -> None:
        nonlocal last
        if slot.endswith("?"):
            return
        got = read(slot)
        if got is not None:
            value, direct = got
            (firm if direct and firmly else soft).append(value)
            last = max(last, start)

    numbered: list[Fraction] = []
    for match in _bounded(_HASHES, text):
        line = _line(text, match.end())
        if line.rstrip().endswith("?") and NUMBER.search(line):
            raise Refused("a question, not an answer")
        if _HEADING.match(line):
            continue
        is_numbered = _ENUMERATED.match(line) is not None
        got = read(_slot(text, match.end()) if is_numbered else line)
        if got is not None and got[1]:
            (numbered if is_numbered else firm).append(got[0])
            last = max(last, match.end())
    empty = False
    for match in _bounded(_BOX, text):
        content, end = _box(text, match.end())
        empty = clean(content).strip(" .").lower() in _PLACEHOLDERS
        if empty:
            continue
        if _DENIED_BOX.search(text[max(0, match.start() - 80) : match.start()]):
            raise Refused("the answer is denied, not given")
        got = read(content)
        if got is None:
            raise Refused("a box without one number")
        firm.append(got[0])
        last = max(last, end)
    lowered = text.lower()
    for pattern in [pattern for word, pattern in _MARKERS if word in lowered]:
        for match in _bounded(pattern, text):
            before = text[max(0, match.start() - 80) : match.start()]
            if _UNASSERTED.search(before):
                continue
            slot = _slot(text, match.end())
            if _DENIED.search(before):
                if NUMBER.search(slot):
                    raise Refused("the answer is denied, not given")
                continue
            add(slot, match.end(), firmly=pattern is not _LINE_MARKER)
    if len(numbered) == 1 and not firm and not soft:
        firm = numbered  # "#### 42. And so on" and not the heading of a first step
    if empty and not firm and not soft and NUMBER.search(text, last):
        raise Refused("an empty box")
    return firm, soft, last


_HEDGE = re.compile(
    r"\b(?:or|either|maybe|perhaps|possibly|might|could\s+be|may\s+be|guess"
    r"|(?:is|be)\s+(?:one|any|some)"
    r"\s+of)\b|\bbetween\s+[-\d.,]+\s+and\s+[-\d.,]+\W*$|或|\\pm|±|\?",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:if|suppos\w+|assum\w+|whether|unless|imagine)\b[^.!?]{0,40}\banswer\b"
    r"|\b(?:wrong|incorrect|mistaken|false)\b",
    re.IGNORECASE,
)
_BULLET = re.compile(
    r"^\s*(?:[-•]\s+(?=\D)|(?:\**\s*(?:step|part)\s+)?\d{1,2}[.):]\s+(?=\S))", re.IGNORECASE
)
_LABEL = re.compile(
    r"(?:step|part|day|case|example|question|problem|figure|page)\s+\d+[:.]?\s*", re.I
)
_UNFINISHED = re.compile(r"(?:[-+/=×÷(<]|[^*]\s\*|\\times|\\cdot|\b(?:is|of|by|and|the|to))\s*$")
_PLEASANTRY = re.compile(
    r"^\W*(?:I\s+hope|hope|let\s+me\s+know|feel\s+free|thank|please|great|good\s+luck|done"
    r"|that(?:'s|\s+is)\s+(?:it|the|my)|q\.?e\.?d)\b",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"(?<=[.!?])[*_\"')]*\s+|(?<=[。！？।])|\n+")
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")
_ASIDE = re.compile(r"(?<=\s)\([^()]{1,120}\)")
_SEPARATOR = re.compile(r"(?:[\s\"'()\[\],;|&、]|\band\b)*+")


def _fallback(text: str) -> Fraction:
    """The last number of the last sentence; raises Refused where that would be a guess."""
    tail = text.rstrip()[-2000:]
    sentences = [part.strip() for part in _SPLIT.split(tail) if part.strip(" *_`$\\[]().\t")]
    while len(sentences) > 1 and _PLEASANTRY.match(sentences[-1]):
        sentences.pop()
    if not sentences:
        raise Refused("no answer")
    sentence = _BULLET.sub("", sentences[-1]) if len(sentences) > 1 else sentences[-1]
    cleaned = clean(sentence)
    if "<<" in tail or _UNFINISHED.search(sentence) or _LABEL.fullmatch(cleaned):
        raise Refused("the text stops before an answer")
    if any(p.search(cleaned) for p in (_HEDGE, RETRACTED, _SUPPOSED)):
        raise Refused("the last sentence is a question, a hedge or a denial")
    if len(sentences) > 1 and cleaned.count("=") == 0:
        other = clean(_BULLET.sub("", sentences[-2]))
        shapes = {re.sub(r"[\d.,]+", "0", part).strip() for part in (other, cleaned)}
        if len(shapes) == 1 and other != cleaned:
            raise Refused("a list of answers")
    bold = [read(m[1]) for m in _BOLD.finditer(sentence)]
    bold_values = {got[0] for got in bold if got is not None}
    if len(bold_values) == 1:
        return bold_values.pop()
    outside = _ASIDE.sub(" ", cleaned)  # "160 minutes (2 hours and 40 minutes)"
    if NUMBER.search(outside):
        cleaned = outside
    found = list(numbers_in(cleaned))
    if not found:
        raise Refused("no number in the last sentence")
    if "=" not in cleaned and CALL.search(cleaned):
        raise Refused("a call, not a number")
    if found[-1][2]:
        raise Refused("the answer is denied, not given")
    if signs := list(EQUALS.finditer(cleaned)):
        got = right_side(cleaned, signs, direct=False)
        if got is not None:
            return got[0]
        raise Refused("an equation without one number on its right")
    if len(found) > 1:
        gap = found[-2][0].end(), found[-1][0].start("run")
        if _SEPARATOR.fullmatch(cleaned, *gap) or OPERATOR.fullmatch(cleaned, *gap):
            raise Refused("the last sentence ends in a list or in unfinished arithmetic")
    value = found[-1][1]
    if value is None:
        raise Refused("the last number is not one plain number")
    return value


def _contents(text: str) -> list[str]:
    """The contents of `<answer>` tags; one that is not closed runs to the end (a stop string)."""
    parts, start = [], text.find("<answer>")
    while start >= 0:
        end = text.find("</answer>", start)
        parts.append(text[start + 8 : end if end >= 0 else len(text)])
        start = text.find("<answer>", end) if end >= 0 else -1
    if len(parts) > _MAX_MARKERS:
        raise Refused(f"more than {_MAX_MARKERS} answer tags")
    return [part for part in parts if part.strip()] if any(p.strip() for p in parts) else parts[:1]


def _final(text: str) -> Fraction:
    """The one final answer of a completion; raises Refused when there is none or several."""
    text = plain_characters(text)
    if "<" in text:  # the tests for a character only save time
        text = _CALCULATION.sub("", text)
        closed = 0
        for match in _THINK_CLOSE.finditer(text):
            closed = match.end()
        if _THINK_OPEN.search(text, closed):
            raise Refused("the think block is not finished")
        text = text[closed:]
    if contents := _contents(text):
        values = {_one(part) for part in contents}
        if len(values) > 1:
            raise Refused(f"{len(values)} different answers")
        return values.pop()
    first = NUMBER.search(text)
    if first and (following := _NEXT_QUESTION.search(text, first.end())):
        text = text[: following.start()]
    return _one(text)


def _one(text: str) -> Fraction:
    firm, soft, last = _marked(text)
    values = set(firm or soft)
    if len(values) > 1:
        raise Refused(f"{len(values)} different answers")
    if not values:
        return _fallback(text)
    if RETRACTED.search(text, last):
        raise Refused("the answer is taken back")
    return values.pop()


def verify(text: str, reference: str) -> Verdict:
    """Score 1.0 when the one final number of `text` equals the reference exactly, else 0.0.

    Raises ValueError when `reference` holds no single number.
    """
    wanted = _reference(reference)
    try:
        value = _final(text)
    except Refused as why:
        return Verdict(score=0.0, status=Status.UNPARSED, detail=str(why))
    return Verdict(score=float(value == wanted), status=Status.OK, parsed=canonical(value))


def answer(reference: str) -> str:
    """`#### n` for a reference; raises ValueError when it holds no single number."""
    return f"#### {canonical(_reference(reference))}"


def _reference(reference: str) -> Fraction:
    stated = plain_characters(reference).rpartition("####")[2].strip()
    try:
        got = read(stated)
    except Refused as why:
        raise ValueError(f"the reference {reference[:80]!r} is not one number: {why}") from None
    if got is None or not got[1] or len(stated) > SLOT:
        raise ValueError(f"the reference {reference[:80]!r} is not one number")
    return got[0]
