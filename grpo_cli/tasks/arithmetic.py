"""The embedded task: chains of sums, differences and small products, in five levels.

A question such as `34+7*6-25` is drawn so that every product and every running total, products
first, lies in 0..99: a small model can do each step almost perfectly, yet the answer to a long
chain is close to uniform in 0..99 and cannot be guessed. Levels add steps, not larger numbers.

Every draw is a SHA-256 of its place, so it is the same on every platform and numpy version. The
split into train and held-out is decided by the content of a question, in a form that ignores the
order of the terms and of the factors: no held-out question has a reordered twin in training.
Must not import torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from grpo_cli.errors import error
from grpo_cli.recipe.task_schema import ArithmeticTask
from grpo_cli.tasks.wording import turns
from grpo_cli.types import Message, Prompt

LEVELS = (1, 2, 3, 4, 5)
HELD_OUT_ONE_IN = 10

# The kinds of term in a question: n is a number, p a product of two digits. A level needs 1, 2, 3,
# 3 or 4, and 4 steps; worked out, a level 5 answer takes about 80 % of the setup's token limit.
_SHAPES = {
    1: ("nn",),
    2: ("nnn", "pn", "np"),
    3: ("pnn", "npn", "nnp"),
    4: ("nnnn", "ppn", "pnp", "npp"),
    5: ("nnnnn", "pnnn", "npnn", "nnpn", "nnnp"),
}
MAX_TOTAL = 99
_MAX_MISSES = 5_000
_PLAIN = ArithmeticTask()


@dataclass(frozen=True, slots=True)
class Term:
    """A signed number (`factor` is None) or a signed product of two digits."""

    sign: int
    number: int
    factor: int | None = None

    @property
    def value(self) -> int:
        """Without the sign."""
        return self.number if self.factor is None else self.number * self.factor

    def __str__(self) -> str:
        return str(self.number) if self.factor is None else f"{self.number}*{self.factor}"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a worked answer. `text` is its left side, such as `34+42`."""

    left: int
    op: str
    right: int

    @property
    def text(self) -> str:
        """The step without its result."""
        return f"{self.left}{self.op}{self.right}"

    @property
    def result(self) -> int:
        """The right result."""
        if self.op == "*":
            return self.left * self.right
        return self.left + self.right if self.op == "+" else self.left - self.right


@dataclass(frozen=True, slots=True)
class Question:
    """A chain of terms; the first one is positive."""

    level: int
    terms: tuple[Term, ...]

    @property
    def text(self) -> str:
        """As the model reads it: `34+7*6-25`."""
        first, *rest = self.terms
        return str(first) + "".join(f"{'+' if t.sign > 0 else '-'}{t}" for t in rest)

    @property
    def spaced(self) -> str:
        """As general models are used to it: `34 + 7 * 6 - 25`."""
        return re.sub(r"[-+*]", r" \g<0> ", self.text)

    @property
    def answer(self) -> int:
        """Its value, with products first."""
        return sum(t.sign * t.value for t in self.terms)

    @property
    def held_out(self) -> bool:
        """Which side of the split the content is on. Reordered terms and factors do not matter."""
        digest = hashlib.sha256(self.canonical.encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0

    @property
    def canonical(self) -> str:
        """The content with terms and factors sorted."""
        return " ".join(
            sorted(
                f"{t.sign}*" + "*".join(sorted((str(t.number), str(t.factor or 1))))
                for t in self.terms
            )
        )

    def prompt(self) -> Prompt:
        """The question as a one-turn chat."""
        return Prompt(
            id=hashlib.sha256(f"arithmetic\n{self.text}".encode()).hexdigest()[:16],
            messages=(Message("user", self.text),),
            reference=str(self.answer),
            task="arithmetic",
            meta={"level": self.level},
        )


class Draws:
    """Whole numbers read off one SHA-256, in order. Enough bits for about 30 small draws."""

    def __init__(self, *place: str | int) -> None:
        digest = hashlib.sha256("/".join(map(str, place)).encode()).digest()
        self._bits = int.from_bytes(digest, "big")

    def below(self, n: int) -> int:
        """Uniform in 0..n-1, up to a bias no one can measure."""
        self._bits, value = divmod(self._bits, n)
        return value


def steps(terms: tuple[Term, ...], start: int | None = None) -> Iterator[Step]:
    """The operations that work out `terms`, left to right, each product just before its use.

    With `start`, the running total before the first of `terms`.
    """
    total = start
    for term in terms:
        if term.factor is not None:
            yield Step(term.number, "*", term.factor)
        if total is None:
            total = term.value
        else:
            step = Step(total, "+" if term.sign > 0 else "-", term.value)
            yield step
            total = step.result


def draw_question(
    level: int, held_out: bool, *place: str | int, max_total: int = MAX_TOTAL
) -> Question:
    """The question at a place: the first candidate there on the wanted side of the split."""
    for attempt in count():
        draws = Draws("arithmetic", level, *place, attempt)
        terms = _draw_terms(level, draws, max_total)
        if terms is not None:
            question = Question(level, terms)
            if question.held_out == held_out:
                return question
    raise AssertionError("count() does not end")


def _draw_terms(level: int, draws: Draws, max_total: int) -> tuple[Term, ...] | None:
    """Terms whose running totals stay in 0..max_total; None when a product does not fit."""
    shapes = _SHAPES[level]
    terms: list[Term] = []
    total = 0
    for kind in shapes[draws.below(len(shapes))]:
        if kind == "p":
            number, factor = 2 + draws.below(8), 2 + draws.below(8)
            value = number * factor
            signs = [s for s in (1, -1) if 0 <= total + s * value <= max_total]
            if not signs:
                return None
            term = Term(signs[draws.below(len(signs))] if terms else 1, number, factor)
        elif not terms:
            term = Term(1, 1 + draws.below(max_total))
        else:
            # Draw the next total, not the next number: totals are then uniform, answers too.
            change = (total + 1 + draws.below(max_total)) % (max_total + 1) - total
            term = Term(1 if change > 0 else -1, abs(change))
        terms.append(term)
        total += term.sign * term.value
    return tuple(terms)


class Arithmetic:
    """The arithmetic task between two levels, in equal shares.

    Training prompts are drawn with replacement, so a few level 1 prompts appear more than once.
    """

    size = 65_536

    def __init__(self, levels: tuple[int, ...], settings: ArithmeticTask = _PLAIN) -> None:
        self.levels = levels
        self._settings = settings

    def train(self, index: int) -> Prompt:
        """The training prompt at `index`, 0 <= index < size. Raises IndexError outside."""
        if not 0 <= index < self.size:
            raise IndexError(f"train index {index} is not in 0..{self.size - 1}")
        level = self.levels[index % len(self.levels)]
        return self._worded(self._draw(level, False, index))

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        """The first `n` held-out prompts, levels in turn; no two are reorderings of each other.

        Raises GrpoError (GR205) when a level has no further distinct question.
        """
        prompts: list[Prompt] = []
        seen: set[str] = set()
        streams = {level: count() for level in self.levels}
        while len(prompts) < n:
            level = self.levels[len(prompts) % len(self.levels)]
            for _ in range(_MAX_MISSES):
                question = self._draw(level, True, next(streams[level]))
                if question.canonical not in seen:
                    break
            else:
                raise error(
                    "GR205",
                    f"the arithmetic task has only {len(prompts)} distinct held-out questions "
                    f"between levels {self.levels[0]} and {self.levels[-1]}, {n} were asked for",
                    hint="lower eval.num_questions, or raise task.max_level or task.max_total",
                )
            seen.add(question.canonical)
            prompts.append(self._worded(question))
        return tuple(prompts)

    def _draw(self, level: int, held_out: bool, index: int) -> Question:
        stream = "held_out" if held_out else "train"
        most = self._settings.max_total
        return draw_question(level, held_out, stream, index, max_total=most)

    def _worded(self, question: Question) -> Prompt:
        """The prompt as the recipe words it. Its id is the question's, however it is asked."""
        form = self._settings
        asked = question.spaced if form.answer == "boxed" else question.text
        return replace(
            question.prompt(),
            messages=turns(asked, form.asked, form.system),
            self_check=form.self_check_form,
        )
