"""Degenerate policies: what a model earns that knows nothing of the answer.

A constant answer is sometimes right, and a right verifier pays it then: the base rate, counted by
the oracle. What a policy earns above its base rate is the verifier's doing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_cli.audit.exploits import SHELLS
from grpo_cli.audit.oracle import Value, answer_part, parse_value
from grpo_cli.audit.rows import Ask, Gold
from grpo_cli.audit.template import Template
from grpo_cli.stats import wilson


@dataclass(frozen=True, slots=True)
class Lazy:
    """What one policy earns.

    Example:
        Lazy("constant: 5", reward=0.030, low=0.022, high=0.041, base=0.030, golds=1319)
    """

    policy: str
    reward: float
    """Mean score over the golds; a missing verdict counts 0."""
    low: float
    high: float
    base: float
    """What a right verifier pays."""
    golds: int

    @property
    def excess(self) -> float:
        """Reward above the base rate."""
        return self.reward - self.base


def lazy_policies(golds: Sequence[Gold], template: Template, kind: str, ask: Ask) -> list[Lazy]:
    """Every policy that can be tried: those that read the question need golds with one."""
    plans: list[tuple[str, list[tuple[Gold, str, bool]]]] = []

    def plan(name: str, text: Callable[[Gold], str | None], base: Callable[[Gold], bool]) -> None:
        tried = [(gold, answer, base(gold)) for gold in golds if (answer := text(gold)) is not None]
        if tried:
            plans.append((name, tried))

    def never(_: Gold) -> bool:
        return False

    plan("empty", lambda g: "", never)
    plan("whitespace", lambda g: " \n\t ", never)
    plan("prompt echo", lambda g: g.question, never)
    plan("refusal", lambda g: "I am sorry, I cannot answer this question.", never)
    for shell in SHELLS:
        plan(f"frame only: {' '.join(shell.split())}", lambda g, s=shell: s, never)  # type: ignore[misc]
    if kind not in ("format", "code"):
        _with_answers(golds, template, kind, plan)
    pairs = [(text, gold.reference) for _, tried in plans for gold, text, _ in tried]
    verdicts = iter(ask(pairs))
    found = []
    for name, tried in plans:
        scores = [0.0 if (v := next(verdicts)).missing else v.score for _ in tried]
        interval = wilson(sum(scores), len(scores))
        base = sum(hit for _, _, hit in tried) / len(tried)
        found.append(Lazy(name, interval.mean, interval.low, interval.high, base, len(tried)))
    return found


Plan = Callable[[str, Callable[[Gold], str | None], Callable[[Gold], bool]], None]


def _with_answers(golds: Sequence[Gold], template: Template, kind: str, plan: Plan) -> None:
    letters = kind == "choice"
    keys = [_key(gold, letters) for gold in golds]
    ((common, _),) = Counter(keys).most_common(1)
    constant = answer_part(golds[keys.index(common)].reference)

    def fill(gold: Gold, answer: str) -> str | None:
        wrapper = template.wrapper(gold.reference)
        return wrapper.fill(answer) if wrapper is not None else None

    def same(gold: Gold, answer: str) -> bool:
        value = parse_value(answer, letters=letters)
        key: Value | str = value if value is not None else answer.strip()
        return key == _key(gold, letters)

    shown = constant if len(constant) <= 20 else f"{constant[:20]}…"
    plan(f"constant: {shown}", lambda g: fill(g, constant), lambda g: same(g, constant))
    if letters:
        _with_options(golds, plan, fill, same)
        return
    hundred = ", ".join(map(str, range(101)))
    plan("list of 0 to 100", lambda g: hundred, lambda g: False)
    plan("list of 0 to 100 as the answer", lambda g: fill(g, hundred), lambda g: False)
    plan(
        "last number of the question",
        lambda g: fill(g, number) if (number := last_number(g.question)) else None,
        lambda g: bool((number := last_number(g.question)) and same(g, number)),
    )


def _with_options(
    golds: Sequence[Gold],
    plan: Plan,
    fill: Callable[[Gold, str], str | None],
    same: Callable[[Gold, str], bool],
) -> None:
    count = max((len(g.choices) for g in golds), default=0) or 4
    listed = ", ".join(chr(ord("A") + i) for i in range(count))
    plan("all letters", lambda g: listed, lambda g: False)
    plan("all letters as the answer", lambda g: fill(g, listed), lambda g: False)

    def longest(gold: Gold) -> str | None:
        if not gold.choices:
            return None
        lengths = [len(choice) for choice in gold.choices]
        return chr(ord("A") + lengths.index(max(lengths)))

    plan(
        "longest option",
        lambda g: fill(g, letter) if (letter := longest(g)) else None,
        lambda g: bool((letter := longest(g)) and same(g, letter)),
    )


def last_number(question: str | None) -> str | None:
    """The last number in a question, without its thousands commas."""
    found = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", question or "")
    return found[-1].replace(",", "") if found else None


def _key(gold: Gold, letters: bool) -> Value | str:
    answer = answer_part(gold.reference)
    value = parse_value(answer, letters=letters)
    return value if value is not None else answer.strip()


def worst(found: Sequence[Lazy]) -> Lazy | None:
    """The policy that earns most above its base rate; of equals the one that earns most."""
    return max(found, key=lambda lazy: (round(lazy.excess, 9), lazy.reward), default=None)


@dataclass(frozen=True, slots=True)
class Guess:
    """How often blind guessing is right, once and at least once in a group."""

    share: float
    """Of one guess."""
    group_size: int
    what: str

    @property
    def in_group(self) -> float:
        """Probability of at least one lucky hit among `group_size` samples."""
        return 1 - (1 - self.share) ** self.group_size


def guesses(golds: Sequence[Gold], kind: str, group_size: int) -> list[Guess]:
    """A uniform guess among the options (choice), and the most frequent gold.

    Where options are few, the outcome reward pays wrong reasoning at about this rate, whatever the
    verifier does: shuffle the options, offer more, or ask open questions.
    """
    if not golds or kind in ("format", "code"):
        return []
    letters = kind == "choice"
    found = []
    if letters:
        counts = [len(g.choices) for g in golds if g.choices] or [4]
        share = sum(1 / n for n in counts) / len(counts)
        known = "options" if any(g.choices for g in golds) else "options (assumed)"
        found.append(Guess(share, group_size, f"one of {max(counts)} {known}"))
    ((_, count),) = Counter(_key(gold, letters) for gold in golds).most_common(1)
    found.append(Guess(count / len(golds), group_size, "the most frequent gold"))
    return found
