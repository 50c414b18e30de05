r"""The one option of a multiple-choice question that a completion picks.

The reference is a letter (`B`), or JSON with the options:
`{"letter": "B", "options": {"A": "ovary", "B": "fallopian tube"}}`. With options, only their
letters count, and the exact text of an option (case, closing punctuation, an article and LaTeX
wrappers aside) is a pick of it.

Where the pick is looked for, after a think block and before the model starts a new question:

1. `<answer>` tags: only their content counts.
2. Markers: `The answer is (B)`, `Answer: B`, `Solution: Choice_B`, `\boxed{\text{B}}`, `#### B`,
   `I choose B`, `the correct option is B`, and answer words of other languages. All marked picks
   must be the same.
3. Nothing marked: the completion is one line that begins with the letter (`B`, `(b)`, `B. the
   tube`) or is an option's text, or its last line is a letter or an option's text alone and no
   other line is another one alone, or it says `B is the correct answer`.

Denied letters (`not B`, `rules out C`, `A and B are wrong`) and letters inside a reason (`because
A moves`) are no picks. UNPARSED with score 0: no pick, several picks (`A or B`, all the letters, a
letter with another option's text), a question, an unfinished think block, a pick taken back. Never
a pick: the article "a", the pronoun I, the initial of a word (`Don't know`), `vitamin C`, letters
of formulas.
"""
# The signs of other scripts are the point of the patterns below.
# ruff: noqa: RUF001

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import ascii_uppercase

from grpo_cli.types import Status, Verdict

from .mentions import clean, picks

KIND = "choice"

_SLOT = 400  # characters read after a marker
_MAX_MARKERS = 200  # of one kind; more is no answer but a flood


class _Refused(Exception):
    """The text picks no single option; the message says why."""


@dataclass(frozen=True)
class _Question:
    """The letters that may be picked, and option texts (normalised) that name exactly one."""

    letters: frozenset[str]
    texts: Mapping[str, str]
    folds_case: bool

    def by_text(self, text: str) -> str | None:
        if not self.texts:
            return None
        return self.texts.get(_normal(text, folds_case=self.folds_case))


# ---------------------------------------------------------------- the reference
def _normal(text: str, *, folds_case: bool) -> str:
    text = " ".join(clean(text).split()).strip(" .,;:!'()[]")
    text = re.sub(r"^(?:the|an?)\s+(?=\w{2})", "", text, flags=re.IGNORECASE)
    return text.casefold() if folds_case else text


def _reference(reference: str) -> tuple[str, _Question]:
    """The right letter and the question; raises ValueError on a reference that is no use."""
    stated = reference.strip()
    shown = repr(reference[:80])
    if not stated.startswith("{"):
        match = re.fullmatch(r"[(\[]?([A-Za-z])[)\]]?[.:]?", stated)
        if match is None:
            raise ValueError(f"the reference {shown} is not a letter")
        return match[1].upper(), _Question(frozenset(ascii_uppercase), {}, True)
    try:
        data = json.loads(stated)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"the reference {shown} is not JSON: {exc}") from None
    letter, options = data.get("letter"), data.get("options")
    if not isinstance(options, dict) or not all(
        re.fullmatch("[A-Z]", key) and isinstance(text, str) and text.strip()
        for key, text in options.items()
    ):
        raise ValueError(f"the options of {shown} are not texts under the letters A to Z")
    if not isinstance(letter, str) or letter not in options:
        raise ValueError(f"the letter of {shown} is not one of its options")
    folds_case = len({_normal(text, folds_case=True) for text in options.values()}) == len(options)
    texts: dict[str, str] = {}
    ambiguous: set[str] = set()
    for key, text in options.items():
        normal = _normal(text, folds_case=folds_case)
        if normal in texts:
            ambiguous.add(normal)
        texts[normal] = key
    kept = {t: k for t, k in texts.items() if t and t not in ambiguous}
    return letter, _Question(frozenset(options), kept, folds_case)


# ---------------------------------------------------------------- where the pick is
_ANSWER_WORDS = (
    "answer", "ans", "solution", "option", "choice", "pick", "antwort", "lösung", "réponse",
    "reponse", "respuesta", "opción correcta", "opción", "solución", "risposta", "resposta",
    "alternativa correta", "antwoord", "svar", "svaret", "ответ", "вариант", "відповідь",
    "odpowiedź", "cevap", "đáp án", "答案", "答え", "回答", "正解", "选项", "選項", "정답", "답",
    "الجواب", "الإجابة", "उत्तर", "jawaban", "vastaus",
)  # fmt: skip
# "the right answer to this question, then, is", and how other languages put their adjectives.
_BETWEEN = (
    r"(?:\s+(?:correcte|correcta|correta|corretta|correto|juste|الصحيحة|الصحيح|đúng|yang\s+benar"
    r"|auf\s+die\s+frage|to\s+(?:the|this|that|your)\s+(?:\w+\s+)?(?:question|problem|quiz)))?"
    r"(?:,?\s+(?:then|therefore|thus|hence)\b,?)?"
)
_LINKS = (
    _BETWEEN
    + r"\s*+[*_`\"'）)\]]*+\s*+(?:[:=：]|\b(?:is|are|(?:would|will|should|must|has\s+to|seems"
    r"\s+to)\s+be|ist|lautet|est(?:\s+la)?|es(?:\s+la)?|è(?:\s+la)?|é(?:\s+a)?|er|är|jest|это|adalah|là)"
    r"(?![\w'])|(?:应该是|應該是|是|为|為|选|選|は|은|는|هو|هي|है)|[-–—]\s)\s*+[:：=]?[\s*_]{0,6}"
)


def _marker(word: str) -> re.Pattern[str]:
    guard = r"(?<![^\W\d_])" if word[0].isalpha() and ord(word[0]) < 0x2E80 else ""
    return re.compile(guard + re.escape(word) + _LINKS, re.IGNORECASE)


_CHOOSING = re.compile(
    r"\b(?:I|we)(?:\s+|['’](?:ll|d)\s+)(?:would\s+|will\s+|therefore\s+|should\s+)?(?:choose|chose|pick"
    r"|select|go\s+with|opt\s+for|vote\s+for)\s+",
    re.IGNORECASE,
)
# Chinese "so choose B", Hindi "the right answer B is", Polish "answer that".
_BARE_MARKERS = (
    ("选", re.compile(r"(?<![不非])[选選](?:择|擇)?\s{0,3}[:：]?\s{0,3}(?=[(（\[]?[A-Z])")),
    ("選", re.compile(r"選(?:擇)?\s{0,3}[:：]?\s{0,3}(?=[(（\[]?[A-Z])")),
    ("उत्तर", re.compile(r"उत्तर\s{0,3}(?=[(\[]?[A-Z][)\]]?\s{0,3}है)")),
    ("odpowiedź", re.compile(r"odpowiedź\s{1,3}to\s{1,3}", re.IGNORECASE)),
)
_HEADER = re.compile(
    r"^[ \t#>*_]*+(?:final\s+|correct\s+)?answer[ \t*_]*+$\s*", re.MULTILINE | re.IGNORECASE
)
_MARKERS = (
    *((word, _marker(word)) for word in _ANSWER_WORDS),
    ("answer", _HEADER),
    *_BARE_MARKERS,
    *((verb, _CHOOSING) for verb in ("choose", "chose", "pick ", "select ", "go with", "opt for",
                                     "vote for")),
)  # fmt: skip
_HASHES = re.compile(r"#{4,}")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
_CORRECT = re.compile(
    r"(?<![A-Za-z0-9_'])(?:[Oo]ption |[Cc]hoice |[Aa]nswer )?[(\[*]{0,3}(?P<letter>[A-Z])"
    r"[)\]*]{0,3}"
    r"(?:[:.,] [^.\n]{1,120}|\s?[-–—]\s[^.\n]{1,120})?,? (?:is|must be|should be) "
    r"(?:therefore |thus |clearly |definitely )?(?:the )?(?:correct|right|best"
    r"|most (?:likely|appropriate))(?![ -]+(?:about|in\b))"
)
_UNASSERTED = re.compile(
    r"\b(?:if|suppose|supposing|assume|assuming|whether|unless|imagine)\b[^.!?,\n]{0,50}$"
    r"|\b(?:each|every|per|(?-i:an?)|any|another|wrong|incorrect)\s+(?:\w+\s+)?$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:(?:\bnot|n['’]t|\bnever)\s+(?:\w+\s+){0,2}?(?:think|believe|say|said|true|case|correct|sure"
    r"|certain|convinced|mean)|(?<!no )(?<!without )\bdoubt\b|\b(?:false|wrong|untrue)\s+that)\b"
    r"[^.!?,;\n]{0,20}$|\bnot\s+(?:that\s+)?(?:the\s+)?(?:\w+\s+)?$",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    r"\bscratch\s+that\b|\bon\s+second\s+thou|\bjust\s+kidding\b"
    r"|\bI\s+(?:made|was)\s+(?:a\s+|an\s+)?(?:mistake|error|mistaken|wrong)"
    r"|\b(?:ignore|disregard)\s+(?:that|this\s+answer|my\s+answer|the\s+above)\b"
    r"|(?:^|[.!?,;:\n-])\s*(?:wait\b(?:\s*[,.!:…-]|\s+(?:no|that|let|I|actually)\b)|nope\b|oops\b"
    r"|no\s*[,.!:-]|no\s+(?:that|it|wait)\b|actually\s*,"
    r"|(?:hm+|er+|uh|um)\b[\s,.…]*(?:actually|no|wait)\b|actually\s+(?:it|no|the)\b"
    r"|(?:that|this|it)(?:['’]s|\s+is|\s+was)\s+(?:wrong|incorrect|not\s+(?:right|correct))"
    r"\s*(?:[.,;!\n]|$))",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<![A-Z])[.!?](?=\s|$)|(?<=[A-Z])[.!?](?=\s*$)|[。！？।\n]|<\|")
_THINK_OPEN = re.compile(r"<(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_THINK_CLOSE = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_NEXT_QUESTION = re.compile(
    r"<\|(?:im_end|im_start|endoftext|eot_id|end|user)\|>|</s>"
    r"|^[ \t]*+[#*_]{0,6}[ \t]*+(?:\[(?:Question|Problem|INST)\]|(?:(?:next|new|another)\s+)?"
    r"(?:Question|Problem|Exercise|Q|Human|User|Instruction|Example|Frage|Pregunta|Вопрос|问题|問題"
    r"|题目|질문)[ \t]*+[\d.]{0,4}[ \t]*+[*_]{0,2}[ \t]*+[:：])",
    re.MULTILINE | re.IGNORECASE,
)


def _bounded(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for count, match in enumerate(pattern.finditer(text)):
        if count >= _MAX_MARKERS:
            raise _Refused(f"more than {_MAX_MARKERS} answer markers")
        yield match


def _slot(text: str, start: int) -> str:
    """The rest of the line after a marker, or the next filled line when it is blank."""
    window = text[start : start + _SLOT]
    first = window.split("\n", 1)[0]
    return first if first.strip(" *_$\\[(") else window.lstrip().split("\n", 1)[0]


def _read(line: str, question: _Question, *, strict: bool = False) -> list[str]:
    """The options that the line behind a marker picks."""
    if json_value := re.match(r'\s*"([^"]*)"\s*(?:,\s*"\w+"\s*:|\})', line):
        line = json_value[1]
    if (letter := question.by_text(line)) is not None:
        return [letter]
    end = _SENTENCE_END.search(line)
    sentence = line[: end.start()] if end else line
    if (letter := question.by_text(sentence)) is not None:
        return [letter]
    if end is not None and end[0] in "?？":
        return []
    chosen = picks(clean(sentence), question.letters, strict=strict)
    if question.texts and len(chosen) == 1:
        # "B. the tube": the text beside the letter must not be another option's.
        beside = re.match(r"\W*(?:(?:option|choice)\s+)?\W*[A-Za-z]\W+(.*)", clean(line), re.I)
        other = question.by_text(beside[1]) if beside else None
        if other is not None and other not in chosen:
            return [*chosen, other]
    return chosen


def _box(text: str, start: int) -> tuple[str, int]:
    """The content of a box whose brace (or bare letter) begins at `start`, and where it ends."""
    if text[start : start + 1] != "{":
        return (text[start : start + 1], start + 1)
    depth = 0
    for index in range(start, min(len(text), start + _SLOT)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 1 : index], index + 1
    return "", start


def _marked(text: str, question: _Question) -> tuple[list[str], int]:
    """All picks at markers in any order, and where the last of them begins."""
    chosen: list[str] = []
    last = 0
    for match in _bounded(_HASHES, text):
        line = _slot(text, match.end())
        if got := _read(line, question, strict=True):
            chosen += got
            last = max(last, match.end())
    for match in _bounded(_BOX, text):
        content, end = _box(text, match.end())
        before = text[max(0, match.start() - 40) : match.start()]
        if re.search(r"(?:\bnot|n['’]t|\bnever|rather than|instead of)\s[^.!?,;\n]{0,12}$", before):
            continue
        if got := _read(content, question):
            chosen += got
            last = max(last, end)
    lowered = text.lower()
    done: set[int] = set()
    for pattern in dict.fromkeys(p for word, p in _MARKERS if word in lowered):
        for match in _bounded(pattern, text):
            before = text[max(0, match.start() - 80) : match.start()]
            if match.end() in done or _UNASSERTED.search(before) or _DENIED.search(before):
                continue
            done.add(match.end())
            slot = _slot(text, match.end())
            if slot.strip() == "a" and match[0].rstrip()[-1:].isalpha():
                continue  # "the answer is a", cut at the article
            if got := _read(slot, question):
                chosen += got
                last = max(last, match.end())
    return chosen, last


_ALONE = re.compile(r"[\W_]*(?:(?:option|choice)[\W_])?[\W_]*[A-Za-z][\W_]*", re.IGNORECASE)
_BEGINS = re.compile(
    r"[\W_]*(?:(?:so|thus|therefore|hence)\W+)?(?:I\s+(?:think|believe)\s+)?"
    r"(?:it(?:['’]s|\s+is|\s+must\s+be)\s)?[\W_]*(?:(?:option|choice)[\W_]+)?([A-Z])(?![A-Z])",
    re.IGNORECASE,
)


def _alone(text: str, question: _Question) -> list[str]:
    """The letters that stand alone on a line, when the last line is one of them."""
    lines = [line.strip() for line in text.rstrip()[-20_000:].splitlines() if line.strip()]
    if not lines or len(lines[-1]) > 30 or not _ALONE.fullmatch(lines[-1]):
        return []
    alone = [line for line in lines if len(line) <= 30 and _ALONE.fullmatch(line)]
    return [pick for line in alone for pick in _read(line, question, strict=True)]


def _unmarked(text: str, question: _Question) -> tuple[list[str], int]:
    """The picks of a completion without a marker, and where the last of them begins."""
    text = text.rstrip()
    lines = [line for line in text[-20_000:].splitlines() if line.strip()]
    last = lines[-1].strip()[:_SLOT] if lines else ""
    start = len(text) - len(last)
    if len(lines) == 1 and (got := _read(last, question, strict=True)):
        begins = _BEGINS.match(last)
        if question.by_text(last) or (begins and begins[1].upper() == got[0]):
            return got, start
    if lines and (letter := question.by_text(last)) is not None:
        # The other lines must not name other options: that is the list of options said back.
        named = {question.by_text(line[:_SLOT]) for line in lines} - {None, letter}
        return ([] if named else [letter]), start
    chosen = []
    for match in _bounded(_CORRECT, text):
        before = text[max(0, match.start() - 60) : match.start()]
        sentence = re.split(r"[.!?\n]", before)[-1]
        is_bare = match[0][0] == match["letter"]
        if (
            match["letter"] in question.letters
            and not (is_bare and match["letter"] in "AI" and sentence.strip())
            and not re.search(r"\b(?:not|if|whether|never|neither|nor)\b|n't\b", sentence)
        ):
            chosen.append(match["letter"])
            start = match.end()
    return chosen, start


def _one(text: str, question: _Question) -> str:
    chosen, last = _marked(text, question)
    if alone := _alone(text, question):
        chosen, last = [*chosen, *alone], len(text)
    if not chosen:
        chosen, last = _unmarked(text, question)
    different = sorted(set(chosen))
    if len(different) > 1:
        raise _Refused(f"several different picks: {', '.join(different)}")
    if not different:
        raise _Refused("no pick")
    if _RETRACTED.search(text, last):
        raise _Refused("the pick is taken back")
    return different[0]


def _contents(text: str) -> list[str]:
    """The contents of `<answer>` tags; one that is not closed runs to the end (a stop string)."""
    parts, start = [], text.find("<answer>")
    while start >= 0:
        end = text.find("</answer>", start)
        parts.append(text[start + 8 : end if end >= 0 else len(text)])
        start = text.find("<answer>", end) if end >= 0 else -1
    if len(parts) > _MAX_MARKERS:
        raise _Refused(f"more than {_MAX_MARKERS} answer tags")
    return [part for part in parts if part.strip()] or parts[:1]


def _final(text: str, question: _Question) -> str:
    """The letter a completion picks; raises _Refused when there is none or several."""
    if not text.isascii():
        text = text.translate({code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)})
    closed = 0
    if "<" in text:
        for match in _THINK_CLOSE.finditer(text):
            closed = match.end()
        if _THINK_OPEN.search(text, closed):
            raise _Refused("the think block is not finished")
    text = text[closed:]
    if contents := _contents(text):
        letters = {_one(part, question) for part in contents}
        if len(letters) > 1:
            raise _Refused(f"several different picks: {', '.join(sorted(letters))}")
        return letters.pop()
    for count, match in enumerate(_NEXT_QUESTION.finditer(text)):
        head = text[: match.start()]
        if count >= 4:
            break
        if _marked(head, question)[0] or _unmarked(head, question)[0]:
            text = head
            break
    return _one(text, question)


# ---------------------------------------------------------------- the contract
def verify(text: str, reference: str) -> Verdict:
    """Score 1.0 when `text` picks the letter of the reference and no other, else 0.0.

    Raises ValueError when `reference` is neither a letter nor the JSON described above.
    """
    wanted, question = _reference(reference)
    try:
        letter = _final(text, question)
    except _Refused as why:
        return Verdict(score=0.0, status=Status.UNPARSED, detail=str(why))
    return Verdict(score=float(letter == wanted), status=Status.OK, parsed=letter)


def answer(reference: str) -> str:
    """`Answer: B` for a reference; raises ValueError when it is no use."""
    return f"Answer: {_reference(reference)[0]}"
