r"""The shape of a completion: `<think>...</think>` and then `<answer>...</answer>`, nothing else.

The score is 1.0 when the structure holds and both parts have real content, whatever the answer
says; the reference is not used. Give it together with a verifier that looks at the answer: a
format reward alone is paid for wrong answers too.

The structure: exactly one pair of each tag, spelled as above, in this order, not nested; nothing
but white space before, between and after the two parts. A tag that is quoted (from the prompt,
inside the thinking) is a second tag and so a refusal, and so is any other spelling of a tag.

Real content: the thinking has at least 10 letters or digits, 4 of them different; the answer has
at least one. The placeholders of prompts (`your answer here`, `reasoning process`, `...`) are none.

UNPARSED with score 0 when the structure does not hold, OK with score 0 when only the content fails.

Options: `style=think` asks for `<think>...</think>` and then the answer as plain text without
`<answer>` tags; `opened=yes` is for chat templates that write `<think>` at the end of the prompt:
the completion then begins inside the thinking and must not open it again.
"""

from __future__ import annotations

import re
import unicodedata

from grpo_cli.types import Status, Verdict

KIND = "format"
OPTIONS = {"style": ("tags", "think"), "opened": ("no", "yes")}

_TAG = re.compile(r"<\s{0,3}(/?)\s{0,3}(think|answer)\b[^<>]{0,40}>?", re.IGNORECASE)
_MIN_THINKING, _MIN_DIFFERENT = 10, 4
_PLACEHOLDERS = frozenset({
    "answer", "answer here", "your answer", "your answer here", "final answer", "the answer",
    "final answer here", "your final answer", "your final answer here", "reasoning", "thinking",
    "reasoning here", "reasoning process", "reasoning process here", "your reasoning",
    "your reasoning here", "your thoughts here", "your reasoning process here", "thought process",
    "step by step reasoning", "think step by step", "insert answer here", "insert reasoning here",
    "x", "n a", "todo",
})  # fmt: skip


def verify(text: str, reference: str, *, style: str = "tags", opened: str = "no") -> Verdict:
    """Score 1.0 when `text` has the asked structure with real content in both parts, else 0.0.

    Raises ValueError when `reference` is not text or an option has an unknown value.
    """
    if not isinstance(reference, str):
        raise ValueError(f"the reference is {type(reference).__name__}, not text")
    if style not in OPTIONS["style"] or opened not in OPTIONS["opened"]:
        raise ValueError(f"no option style={style!r} opened={opened!r}")
    expected = ["<think>", "</think>"][opened == "yes" :]
    if style == "tags":
        expected += ["<answer>", "</answer>"]
    tags: list[str] = []
    between: list[str] = []
    end = 0
    for match in _TAG.finditer(text):
        tags.append(match[0])
        between.append(text[end : match.start()])
        end = match.end()
        if len(tags) > len(expected):
            break
    between.append(text[end:])
    if tags != expected:
        return _unparsed(f"the tags are {' '.join(tags[:6]) or 'none'}, not {' '.join(expected)}")
    first = 0 if opened == "yes" else 1
    thinking = between[first]
    # With answer tags: text before, thinking, text between, answer, text after.
    answer_text = between[first + 2 if style == "tags" else first + 1]
    outside = between[:first] + (between[first + 1 :: 2] if style == "tags" else [])
    if any(part.strip() for part in outside):
        return _unparsed("there is text outside the tags")
    if not _has_thinking(thinking):
        return Verdict(score=0.0, status=Status.OK, detail="the thinking has no real content")
    if not _letters(answer_text) or _is_placeholder(answer_text):
        return Verdict(score=0.0, status=Status.OK, detail="the answer has no real content")
    return Verdict(score=1.0, status=Status.OK, parsed=answer_text.strip()[:200])


def answer(reference: str) -> str:
    """A completion of the default style that gives `reference` as its answer."""
    return f"<think>The reference says so.</think>\n<answer>{reference}</answer>"


def _letters(text: str) -> str:
    """The letters and digits of a text, case folded."""
    return "".join(c for c in text.casefold() if unicodedata.category(c)[0] in "LN")


def _is_placeholder(text: str) -> bool:
    return len(text) < 80 and " ".join(re.findall(r"\w+", text.casefold())) in _PLACEHOLDERS


def _has_thinking(text: str) -> bool:
    letters = _letters(text)
    return (
        len(letters) >= _MIN_THINKING
        and len(set(letters)) >= _MIN_DIFFERENT
        and not _is_placeholder(text)
    )


def _unparsed(detail: str) -> Verdict:
    return Verdict(score=0.0, status=Status.UNPARSED, detail=detail)
