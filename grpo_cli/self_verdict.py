"""The verdict that a policy gives on its own answer, at the end of its completion.

It has two forms. `mark` is for the tiny world, whose model writes single characters: `?y` or `?n`
at the end. `line` is for chat models: a last line `Self-check: right` or `Self-check: wrong`. What
stands before the verdict is the answer, and that alone goes to the verifier. Must not import torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from grpo_cli.types import Completion, Finish, Prompt

_OPENING = {
    "mark": re.compile(r"\?"),
    "line": re.compile(r"^[^\w\n]*self-check[^\w\n]*:", re.IGNORECASE | re.MULTILINE),
}
_WHOLE = {
    "mark": re.compile(r"\?(?:(?P<right>y)|n)\s*"),
    "line": re.compile(
        r"[^\w\n]*self-check[^\w\n]*:[^\w\n]*(?:(?P<right>right)|wrong)\W*", re.IGNORECASE
    ),
}
_THOUGHT_END = "</think>"


class SelfVerdict(StrEnum):
    """What a policy says of its answer. No verdict, two, or text after it is `UNREADABLE`."""

    RIGHT = "right"
    WRONG = "wrong"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """A completion cut into answer and verdict. `p_right` is NaN for an unreadable verdict.

    Example:
        `12+7=19#19?y` -> SelfCheck(answer="12+7=19#19", verdict=SelfVerdict.RIGHT, p_right=0.8)
    """

    answer: str
    verdict: SelfVerdict
    p_right: float
    """How sure the policy was that it is right: the probability that it sampled the verdict's last
    token with, or one minus that when the verdict is `wrong`. Exact when the verdict is one token
    (the tiny world; ` right` and ` wrong` in most vocabularies) and no third token is likely; a
    word of several tokens is decided by its first, and its last has a probability near 1."""

    @property
    def said(self) -> float | None:
        """The verdict as a score: 1 for right, 0 for wrong, None when it cannot be read."""
        if self.verdict is SelfVerdict.UNREADABLE:
            return None
        return float(self.verdict is SelfVerdict.RIGHT)

    def record(self) -> dict[str, str | float | None]:
        """What rollouts and evaluations keep of it."""
        return {
            "self_verdict": self.verdict,
            "p_right": None if math.isnan(self.p_right) else self.p_right,
        }


def read_self_check(completion: Completion, form: str) -> SelfCheck:
    """Cut a completion at its verdict, `form` being `mark` or `line`.

    Lines inside the thoughts before the last `</think>` do not count.
    """
    answer, verdict = _cut(completion.text, form)
    if verdict is SelfVerdict.UNREADABLE:
        return SelfCheck(answer, verdict, math.nan)
    # A completion that ended by itself has the end-of-sequence token last.
    p_said = math.exp(completion.logp[-2 if completion.finish is Finish.STOP else -1])
    return SelfCheck(answer, verdict, p_said if verdict is SelfVerdict.RIGHT else 1 - p_said)


def self_check_of(completion: Completion, prompt: Prompt) -> SelfCheck | None:
    """The verdict that `prompt` asked for; None when it asked for none."""
    return None if prompt.self_check is None else read_self_check(completion, prompt.self_check)


def answer_part(text: str, prompt: Prompt) -> str:
    """What the verifier gets to see of a completion's text."""
    return text if prompt.self_check is None else _cut(text, prompt.self_check)[0]


def _cut(text: str, form: str) -> tuple[str, SelfVerdict]:
    """The answer, up to the first sign of a verdict, and the verdict."""
    found = _OPENING[form].search(text, max(text.rfind(_THOUGHT_END), 0))
    if found is None:
        return text, SelfVerdict.UNREADABLE
    answer = text[: found.start()]
    whole = _WHOLE[form].fullmatch(text, found.start())
    if whole is None:
        return answer, SelfVerdict.UNREADABLE
    return answer, SelfVerdict.RIGHT if whole["right"] else SelfVerdict.WRONG
