"""What the tiny base model has read: answers in several styles, with slips at known rates.

A base model imitates its corpus, mistakes included, so the rates below set its accuracy, its
lengths and its habits; reinforcement learning can unlearn the mistakes and shift the habits.

- guess: `#16` straight away. Often right on easy questions, hardly ever on hard ones.
- work: every step, then the answer: `12+7=19;19-3=16#16`. Any step may slip, and a slip is carried
  on unless `wait` repeats the step. On hard questions this style is rare: it has to be explored.
- careful: fewer slips and some steps spelled out twice with `check`. It pays where it fits; on
  hard questions it often does not fit into the setup's token limit.

Only training-side questions are used. Must not import torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from grpo_cli.tasks.arithmetic import LEVELS, Question, Step, draw_question, steps


@dataclass(frozen=True, slots=True)
class Rates:
    """How often each thing happens. Tuples have one entry per level 1..5."""

    guess: tuple[float, ...]
    """Share of guesses."""
    careful: tuple[float, ...]
    """Share of careful answers; the rest is plain work."""
    guess_right: tuple[float, ...]
    """How often a guess is right."""
    slip: float
    """Chance that a plain step has a wrong result."""
    careful_slip: float
    """The same for a careful step."""
    wait_after_slip: float
    """Chance that `wait` and the repeated step follow a wrong result."""
    wait_after_right: float
    """The same after a right result."""
    check: float
    """Chance that a careful step is spelled out again."""
    no_answer: float
    """Chance that worked steps end without an answer."""


CLEAN = Rates(
    guess=(0.3, 0.1, 0.0, 0.0, 0.0),
    careful=(0.15, 0.2, 0.2, 0.2, 0.2),
    guess_right=(1.0,) * 5,
    slip=0.0,
    careful_slip=0.0,
    wait_after_slip=0.0,
    wait_after_right=0.02,
    check=0.3,
    no_answer=0.0,
)
"""The first part of training: arithmetic without mistakes."""

NOISY = Rates(
    guess=(0.35, 0.35, 0.40, 0.55, 0.65),
    careful=(0.15, 0.20, 0.20, 0.20, 0.15),
    guess_right=(0.70, 0.35, 0.12, 0.06, 0.03),
    slip=0.15,
    careful_slip=0.06,
    wait_after_slip=0.15,
    wait_after_right=0.03,
    check=0.35,
    no_answer=0.02,
)
"""The second part: the habits and mistakes of the base model that ships."""


def worked_answer(question: Question) -> str:
    """The plain worked answer without mistakes: `7*6=42;34+42=76#76`."""
    shown = ";".join(f"{step.text}={step.result}" for step in steps(question.terms))
    return f"{shown}#{question.answer}"


def draw_answer(question: Question, rates: Rates, rng: random.Random) -> str:
    """One answer in a random style, possibly wrong, without the end-of-turn token."""
    at = question.level - 1
    style = rng.random()
    if style < rates.guess[at]:
        right = rng.random() < rates.guess_right[at]
        return f"#{question.answer if right else _wrong(question.answer, rng)}"
    careful = style < rates.guess[at] + rates.careful[at]
    parts: list[str] = []
    total: int | None = None
    for term in question.terms:
        value = term.number
        if term.factor is not None:
            value = _show(Step(term.number, "*", term.factor), careful, rates, rng, parts)
        if total is None:
            total = value
        else:
            step = Step(total, "+" if term.sign > 0 else "-", value)
            total = _show(step, careful, rates, rng, parts)
    answer = "" if rng.random() < rates.no_answer else f"#{total}"
    return ";".join(parts) + answer


def draw_example(index: int, rates: Rates, name: str) -> tuple[str, str]:
    """Question and answer number `index` of the corpus called `name`, levels in turn."""
    question = draw_question(LEVELS[index % len(LEVELS)], False, "corpus", name, index)
    # Python promises the same random() for a seed on every platform and version; that is all
    # that is used of it.
    return question.text, draw_answer(question, rates, random.Random(f"{name}/{index}"))


def _show(step: Step, careful: bool, rates: Rates, rng: random.Random, parts: list[str]) -> int:
    """Write a step, and perhaps write it again, into `parts`; returns the result carried on."""
    slip = rates.careful_slip if careful else rates.slip
    result = _wrong(step.result, rng) if rng.random() < slip else step.result
    parts.append(f"{step.text}={result}")
    again = rates.wait_after_right if result == step.result else rates.wait_after_slip
    if careful and rng.random() < rates.check:
        parts.append(f"check {step.text}={step.result}")
        return step.result
    if rng.random() < again:
        parts.append(f"wait {step.text}={step.result}")
        return step.result
    return result


def _wrong(result: int, rng: random.Random) -> int:
    """A plausible wrong result, mostly off by one in a digit; never negative unless `result` is."""
    while True:
        off = (1, -1, 10, -10, 2, -2, 20, -20)[int(rng.random() * 8)]
        if result + off >= 0 or result < 0:
            return result + off
