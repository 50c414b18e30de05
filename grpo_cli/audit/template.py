"""The answer template: how a completion must state an answer for this verifier to look at it.

It comes from the verifier's own `answer(reference)`. A function without one gets the first of a few
usual templates that it accepts most golds in, and the report says that this was a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_cli.audit.oracle import (
    Number,
    answer_part,
    decimal_text,
    is_terminating,
    parse_value,
)
from grpo_cli.audit.rows import Ask, Gold, accepted

USUAL = (
    "The answer is \\boxed{{{}}}.",
    "#### {}",
    "<think>\nLet me work it out.\n</think>\n<answer>{}</answer>",
    "The answer is {}.",
    "Answer: {}",
    "{}",
)
"""Tried in this order; `{}` is the answer."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What stands before and after an answer.

    Example:
        Wrapper("The answer is \\\\boxed{", "}.").fill("16")
    """

    before: str
    after: str

    def fill(self, answer: str) -> str:
        """A completion that states `answer`."""
        return f"{self.before}{answer}{self.after}"


@dataclass(frozen=True, slots=True)
class Template:
    """How to state an answer, and where that is from."""

    answer: Callable[[str], str]
    shown: str
    """Its look with `...` for the answer, for people."""
    guessed: bool = False

    def wrapper(self, reference: str) -> Wrapper | None:
        """What surrounds the answer, or None when the reference cannot be found in its statement.

        The answer is found as text, not rebuilt: `answer` may tidy what it is given, and a variant
        such as `16.0` must reach the verifier as it is.
        """
        try:
            stated = self.answer(reference)
        except (ValueError, TypeError):
            return None
        for part in _spellings(answer_part(reference)):
            before, found, after = stated.rpartition(part)
            if found:
                return Wrapper(before, after)
        return None


def _spellings(part: str) -> list[str]:
    """The answer as it stands, then as a verifier may have tidied it: `1,234` as `1234`."""
    found = [part, part.strip()]
    value = parse_value(part)
    if isinstance(value, Number):
        if is_terminating(value.value):
            found.append(decimal_text(value.value))
        found.append(str(value.value))
    return [text for text in found if text]


def find_template(answer: Callable[[str], str] | None, golds: Sequence[Gold], ask: Ask) -> Template:
    """The verifier's own template, or a guess from `USUAL` on at most 40 golds."""
    if answer is not None:
        return Template(answer, _look(answer, golds))
    tried = golds[:40]
    counts = []
    for pattern in USUAL:
        pairs = [(pattern.format(answer_part(g.reference)), g.reference) for g in tried]
        counts.append(sum(accepted(verdict) for verdict in ask(pairs)))
    best = USUAL[counts.index(max(counts))]
    return Template(
        lambda reference: best.format(answer_part(reference)), best.format("..."), guessed=True
    )


def _look(answer: Callable[[str], str], golds: Sequence[Gold]) -> str:
    template = Template(answer, "")
    for gold in golds:
        wrapper = template.wrapper(gold.reference)
        if wrapper is not None:
            return wrapper.fill("...")
    return "its own"
