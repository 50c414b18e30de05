"""The arithmetic task: right answers, bounded steps, a split by content, the same everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.schema import ArithmeticTask
from grpo_cli.tasks import load_task
from grpo_cli.tasks.arithmetic import (
    LEVELS,
    Arithmetic,
    Question,
    Term,
    draw_question,
    steps,
)

TASK = Arithmetic(LEVELS)
INDEX = st.integers(0, TASK.size - 1)


def worked_out(text: str) -> int:
    """An independent evaluation: products, then sums."""
    total = 0
    for term in text.replace("-", "+-").split("+"):
        sign = -1 if term.startswith("-") else 1
        left, _, right = term.lstrip("-").partition("*")
        total += sign * int(left) * int(right or 1)
    return total


@given(INDEX)
def test_the_reference_is_the_value_of_the_question(index: int) -> None:
    prompt = TASK.train(index)
    assert prompt.reference == str(worked_out(prompt.messages[0].content))
    assert prompt.meta["level"] == LEVELS[index % 5]
    assert prompt == TASK.train(index)


@given(st.sampled_from(LEVELS), INDEX, st.booleans())
def test_every_step_is_small_and_the_last_one_is_the_answer(
    level: int, index: int, held_out: bool
) -> None:
    question = draw_question(level, held_out, "test", index)
    worked = list(steps(question.terms))
    assert all(0 <= step.result <= 99 for step in worked)
    assert worked[-1].result == question.answer
    assert len(worked) == sum(question.text.count(op) for op in "+-*")
    assert question.held_out == held_out


def test_train_and_held_out_share_no_content() -> None:
    held_out = {draw_question(level, True, "held_out", i).canonical
                for level in LEVELS for i in range(150)}  # fmt: skip
    train = {draw_question(LEVELS[i % 5], False, "train", i).canonical for i in range(3000)}
    assert not held_out & train
    texts = {p.messages[0].content for p in TASK.held_out(300)}
    assert not texts & {TASK.train(i).messages[0].content for i in range(3000)}


def test_reordered_questions_stay_on_one_side() -> None:
    a = Question(2, (Term(1, 7, 6), Term(1, 34)))
    b = Question(2, (Term(1, 34), Term(1, 6, 7)))
    assert (a.text, b.text) == ("7*6+34", "34+6*7")
    assert a.canonical == b.canonical
    assert a.prompt().id != b.prompt().id
    assert a.canonical != Question(2, (Term(1, 34), Term(-1, 6, 7))).canonical


def test_held_out_is_distinct_balanced_and_a_prefix() -> None:
    prompts = TASK.held_out(200)
    assert len({p.id for p in prompts}) == 200
    assert [p.meta["level"] for p in prompts] == list(LEVELS) * 40
    assert TASK.held_out(35) == prompts[:35]


def test_these_exact_questions_on_every_platform() -> None:
    """A change here changes every published number: raise the task's name, not this test."""
    assert [TASK.train(i).messages[0].content for i in range(5)] == [
        "38-24",
        "9*9-73",
        "48-6-8*3",
        "78-14-36-4",
        "84-70+81-87+9",
    ]
    assert [(p.id, p.messages[0].content) for p in TASK.held_out(2)] == HELD_OUT


HELD_OUT = [("0294d6d8355be7fe", "49+10"), ("4e0a432d65fc84f9", "6*8-4")]


def test_levels_of_the_recipe() -> None:
    task = load_task(ArithmeticTask(min_level=2, max_level=3))
    assert {task.train(i).meta["level"] for i in range(20)} == {2, 3}
    assert [p.meta["level"] for p in task.held_out(4)] == [2, 3, 2, 3]


def test_more_held_out_questions_than_exist() -> None:
    with pytest.raises(GrpoError, match=r"GR205.*distinct held-out questions"):
        load_task(ArithmeticTask(max_level=1)).held_out(5000)


@pytest.mark.parametrize("index", [-1, TASK.size])
def test_index_outside_the_pool(index: int) -> None:
    with pytest.raises(IndexError):
        TASK.train(index)


def test_the_boxed_form_asks_the_same_questions_in_english() -> None:
    boxed = load_task(ArithmeticTask(answer="boxed"))
    for i in range(20):
        plain, asked = TASK.train(i), boxed.train(i)
        words = asked.messages[0].content
        assert (asked.id, asked.reference) == (plain.id, plain.reference)
        assert words.startswith("What is ")
        assert words.endswith("? Think step by step and put the final answer in \\boxed{}.")
        expression = words.removeprefix("What is ").partition("?")[0]
        assert expression.replace(" ", "") == plain.messages[0].content
        assert " " in expression
    assert boxed.held_out(3)[0].messages[0].content == HELD_OUT_BOXED


HELD_OUT_BOXED = "What is 49 + 10? Think step by step and put the final answer in \\boxed{}."


def test_a_template_of_ones_own() -> None:
    settings = ArithmeticTask(answer="boxed", template="{question} = ?", system="Be brief.")
    prompt = load_task(settings).held_out(1)[0]
    assert [(m.role, m.content) for m in prompt.messages] == [
        ("system", "Be brief."),
        ("user", "49 + 10 = ?"),
    ]


@given(st.sampled_from(LEVELS), INDEX, st.sampled_from([10, 20, 50]))
def test_smaller_numbers(level: int, index: int, most: int) -> None:
    question = draw_question(level, False, "train", index, max_total=most)
    assert all(0 <= step.result <= most for step in steps(question.terms))
    assert all(term.value <= most for term in question.terms)
