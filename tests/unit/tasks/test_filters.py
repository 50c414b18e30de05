"""What the filters see in a row."""

from __future__ import annotations

import pytest

from grpo_cli.tasks.filters import ambiguous, contains_gold, gold_problem, guess_rate
from grpo_cli.tasks.rows import Row
from grpo_cli.types import Status, Verdict


def row(question: str, gold: str, num_options: int | None = None) -> Row:
    return Row(question, gold, "f:1", num_options=num_options)


@pytest.mark.parametrize(
    ("question", "gold", "there"),
    [
        ("It costs $1,200. How much?", "1200", True),
        ("It costs 12. How much?", "1", False),
        ("It costs 1.5 now", "5", False),
        ("It costs 5.", "5", True),
        ("It costs 5.5", "5", False),
        ("x-5", "5", False),
        ("Find $\\frac{1}{2}$ of it", "\\frac{1}{2}", True),
        ("The Paris of the east", "paris", True),
        ("Parisian", "paris", False),
        ("A: one\nB: two", "B", False),  # a choice's letter has to stand there
    ],
)
def test_prompts_that_contain_their_gold(question: str, gold: str, there: bool) -> None:
    assert contains_gold(row(question, gold)) is there


@pytest.mark.parametrize(
    ("question", "gold", "options", "rate"),
    [
        ("Q", "B", 4, 0.25),
        ("Q?\nA: x\nB: y\nC: z", "C", None, 1 / 3),
        ("Q?\n(A) x\n(B) y", "A", None, 0.5),
        ("Q?\nA. x\nC. y", "A", None, 0.0),  # not a list of options
        ("Q?\nA. x\nB. y", "D", None, 0.0),
        ("Q?\nA. x\nB. y", "12", None, 0.0),
        ("Is it?", "Yes", None, 0.5),
        ("What is 1 + 1?", "2", None, 0.0),
    ],
)
def test_the_rate_of_a_blind_guess(
    question: str, gold: str, options: int | None, rate: float
) -> None:
    assert guess_rate(row(question, gold, options)) == pytest.approx(rate)


def test_ambiguous_is_the_same_question_with_another_gold() -> None:
    rows = [row("A  b", "1"), row("a B", "2"), row("c", "1,000"), row("c", "1000")]
    assert len(ambiguous(rows)) == 1


class Odd:
    """Accepts what stands in its `answer` form only."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __call__(self, text: str, reference: str) -> Verdict:
        if text == f"<{reference}>":
            return Verdict(1.0, Status.OK)
        return Verdict(0.0, Status.UNPARSED, detail="no answer")


def test_golds_against_themselves() -> None:
    def raises(reference: str) -> str:
        raise ValueError("not a number")

    assert gold_problem(Odd(lambda reference: f"<{reference}>"), "5") is None
    assert gold_problem(Odd(raises), "5") == "not a number"
    assert gold_problem(Odd(None), "5") == "no answer"  # a box, a marker and the bare gold fail
