"""The questions, their choices and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

TaskKind = Literal["math", "code", "chat", "tools", "pretraining"]
Arch = Literal["dense", "moe"]
Response = Literal["short", "long"]
Precision = Literal["float32", "bfloat16", "fp8"]
Reward = Literal["outcome", "token"]
Stability = Literal["calm", "unstable"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known about a project. The defaults are the cases with the fewest additions.

    Example:
        Answers(arch="moe", response="long")
    """

    task: TaskKind = "math"
    arch: Arch = "dense"
    response: Response = "short"
    precision: Precision = "bfloat16"
    reward: Reward = "outcome"
    stability: Stability = "calm"

    def value(self, name: str) -> str:
        """The answer to the question `name`."""
        return str(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Question:
    """One question: its name (an option and a field of `Answers`), and what each choice means."""

    name: str
    text: str
    choices: tuple[tuple[str, str], ...]
    default: str

    @property
    def values(self) -> tuple[str, ...]:
        """The choices without their meaning."""
        return tuple(value for value, _ in self.choices)


QUESTIONS = (
    Question(
        "task",
        "What is the model asked to do?",
        (
            ("math", "problems with one answer that can be checked"),
            ("code", "programs that tests can run"),
            ("chat", "mixed instructions, checked by rules of their own"),
            ("tools", "calls of tools"),
            ("pretraining", "predict the next token of a text, with thoughts before it"),
        ),
        "math",
    ),
    Question(
        "arch",
        "Which architecture?",
        (("dense", "every token uses all weights"), ("moe", "mixture of experts")),
        "dense",
    ),
    Question(
        "response",
        "How long are answers?",
        (("short", "up to about 1,000 tokens"), ("long", "longer")),
        "short",
    ),
    Question(
        "precision",
        "In which precision does the sampler run?",
        (
            ("float32", "as the tiny world does"),
            ("bfloat16", "as vLLM usually does"),
            ("fp8", "quantised weights"),
        ),
        "bfloat16",
    ),
    Question(
        "reward",
        "What does the verifier score?",
        (("outcome", "the whole answer"), ("token", "steps or tokens of it")),
        "outcome",
    ),
    Question(
        "stability",
        "How do runs behave so far?",
        (
            ("calm", "no run yet, or no trouble"),
            ("unstable", "collapses, jumps, or samples several updates old"),
        ),
        "calm",
    ),
)


def _check() -> None:
    kinds = (TaskKind, Arch, Response, Precision, Reward, Stability)
    for question, kind in zip(QUESTIONS, kinds, strict=True):
        assert question.values == get_args(kind), question.name
        assert question.default == Answers().value(question.name), question.name


_check()
