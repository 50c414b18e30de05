"""Tasks made of rows: what is read, what is dropped and why, and what a bad file says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.task_schema import Filters, Gsm8kTask, JsonlTask, MathTask
from grpo_cli.tasks import load_task, task_fingerprint
from grpo_cli.tasks.data import DataSet
from grpo_cli.tasks.rows import last_boxed
from grpo_cli.types import Message, Status, Verdict

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


class Digits:
    """A verifier that knows whole numbers only."""

    answer = None

    def __call__(self, text: str, reference: str) -> Verdict:
        if not reference.isdigit():
            return Verdict(float("nan"), Status.ERROR, detail="no whole number")
        return Verdict(float(reference in text), Status.OK)


def write(path: Path, *rows: object) -> str:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def rows_of(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"question": q, "answer": a} for q, a in pairs]


def load(settings: JsonlTask | Gsm8kTask | MathTask, **options: object) -> DataSet:
    task = load_task(settings, **options)  # type: ignore[arg-type]
    assert isinstance(task, DataSet)
    return task


def train_golds(task: DataSet) -> list[str]:
    return [task.train(i).reference for i in range(task.size)]


def refused(settings: JsonlTask | Gsm8kTask | MathTask) -> GrpoError:
    with pytest.raises(GrpoError) as caught:
        load_task(settings)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_question_is_worded_by_its_template_and_known_by_its_content(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", *rows_of(("How many {legs} has a dog?", "4")))
    plain = load(JsonlTask(path=file, held_out_frac=1.0)).held_out(1)[0]
    worded = load(
        JsonlTask(path=file, held_out_frac=1.0, template="Q: {question} {x}", system="Be brief.")
    ).held_out(1)[0]
    assert plain.messages == (Message("user", "How many {legs} has a dog?"),)
    assert worded.messages == (
        Message("system", "Be brief."),
        Message("user", "Q: How many {legs} has a dog? {x}"),
    )
    assert plain.id == worded.id
    assert plain.reference == "4"


def test_the_split_is_by_content_and_ignores_the_order_of_the_file(tmp_path: Path) -> None:
    rows = rows_of(*((f"What is {i} + 1?", str(i + 1)) for i in range(400)))
    one = load(JsonlTask(path=write(tmp_path / "a.jsonl", *rows)))
    other = load(JsonlTask(path=write(tmp_path / "b.jsonl", *reversed(rows))))
    assert 20 <= len(one.held_out_rows) <= 60
    held_out = one.held_out(len(one.held_out_rows))
    assert [p.id for p in held_out] == [p.id for p in other.held_out(len(held_out))]
    train = {one.train(i).id for i in range(one.size)}
    assert len(train) == one.size == 400 - len(held_out)
    assert not train & {p.id for p in held_out}
    assert one.held_out(5) == held_out[:5]
    moved = load(JsonlTask(path=write(tmp_path / "a.jsonl", *rows), split_seed=1))
    assert {p.id for p in moved.held_out(10)} != {p.id for p in held_out[:10]}


def test_training_rows_that_are_held_out_are_dropped_and_counted(tmp_path: Path) -> None:
    train = write(
        tmp_path / "train.jsonl",
        *rows_of(("What  is 1 + 1?", "2"), ("what is 1 + 1?", "2"), ("What is 2 + 2?", "4")),
    )
    test = write(tmp_path / "test.jsonl", *rows_of(("What is 1 + 1?", "2"), ("What is 3?", "3")))
    task = load(JsonlTask(path=train, eval_path=test))
    assert train_golds(task) == ["4"]
    assert task.selection.dropped == {"in the held-out set": 2}
    assert task.selection.contaminated == 1
    assert len(task.held_out_rows) == 2


FILTERED = rows_of(
    ("What is 2 + 2?", "4"),
    ("What is 2 + 2?", "4"),
    ("Which one?", "5"),
    ("Which one?", "6"),
    ("What is half?", "1/2"),
    ("Is 7 or 8 the larger one of 7 and 8?", "8"),
    ("Is it so?", "yes"),
)


@pytest.mark.parametrize(
    ("filters", "dropped", "left"),
    [
        (Filters(), {}, ["4", "5", "6", "1/2", "8", "yes"]),
        (Filters(ambiguous=True), {"ambiguous": 2}, ["4", "1/2", "8", "yes"]),
        (Filters(unparsable=True), {"unparsable": 2}, ["4", "5", "6", "8"]),
        (Filters(contains_gold=True), {"contains_gold": 1}, ["4", "5", "6", "1/2", "yes"]),
        (Filters(max_guess_rate=0.3), {"guessable": 1}, ["4", "5", "6", "1/2", "8"]),
        (Filters(max_guess_rate=0.5), {}, ["4", "5", "6", "1/2", "8", "yes"]),
    ],
)
def test_each_filter(
    tmp_path: Path, filters: Filters, dropped: dict[str, int], left: list[str]
) -> None:
    train = write(tmp_path / "a.jsonl", *FILTERED)
    test = write(tmp_path / "b.jsonl", *rows_of(("Is it?", "no")))
    task = load(JsonlTask(path=train, eval_path=test, filters=filters), verifier=Digits())
    assert train_golds(task) == left
    assert task.selection.dropped == {"duplicates": 1, **dropped}
    assert [row.gold for row in task.held_out_rows] == ["no"]


def test_a_filter_that_leaves_nothing_says_so(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", *rows_of(("Is it?", "yes")))
    test = write(tmp_path / "b.jsonl", *rows_of(("Is it so?", "no")))
    problem = refused(
        JsonlTask(path=train, eval_path=test, filters=Filters(max_guess_rate=0.0))
    ).problems[0]
    assert "no training question is left of 1: dropped 1 guessable" in problem.message


@pytest.mark.parametrize(
    ("row", "question", "gold"),
    [
        ({"prompt": "Why?", "ground_truth": 42}, "Why?", "42"),
        ({"problem": "P", "solution": "so \\boxed{\\frac{1}{2}}."}, "P", "\\frac{1}{2}"),
        ({"problem": "P", "solution": "x", "answer": "7"}, "P", "7"),
        ({"question": "Q", "answer": "1 + 1 = <<1+1=2>>2\n#### 1,000"}, "Q", "1,000"),
        ({"question": "Q", "answer": None, "gold": "3"}, "Q", "3"),
        ({"question": "Q", "answer": "B", "options": ["x", "y"]}, "Q\nA. x\nB. y", "B"),
        ({"question": "Q: x or y", "answer": "B", "options": ["x", "y"]}, "Q: x or y", "B"),
    ],
)
def test_the_columns_that_are_known(
    tmp_path: Path, row: dict[str, object], question: str, gold: str
) -> None:
    task = load(JsonlTask(path=write(tmp_path / "a.jsonl", row), held_out_frac=1.0))
    prompt = task.held_out(1)[0]
    assert (prompt.messages[-1].content, prompt.reference) == (question, gold)


def test_columns_of_another_name_and_a_chat_as_the_prompt(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    file = write(tmp_path / "a.jsonl", {"q": chat, "a": "1", "level": "Level 3", "type": "Algebra"})
    task = load(
        JsonlTask(path=file, question="q", gold="a", held_out_frac=1.0, template="<{question}>")
    )
    prompt = task.held_out(1)[0]
    assert prompt.messages == (Message("system", "S"), Message("user", "<U>"))
    assert prompt.meta == {"where": "a.jsonl:1", "level": 3, "subject": "Algebra"}


@pytest.mark.parametrize(
    ("row", "line", "says"),
    [
        ('{"question": "Q", "answer": }', 2, "not JSON"),
        ("[1, 2]", 2, "must be a JSON object"),
        ({"question": "Q"}, 2, "no gold column"),
        ({"text": "Q", "answer": "1"}, 2, "no question column.*the row has text, answer"),
        ({"question": " ", "answer": "1"}, 2, "`question` is empty"),
        ({"question": "Q", "answer": True}, 2, "must be text or a number, but is bool"),
        ({"question": "Q", "answer": "so\n####  "}, 2, "`answer` is empty"),
        ({"question": "Q", "solution": "first\nsecond"}, 2, "no `.boxed"),
        ({"question": [{"role": "user"}], "answer": "1"}, 2, "turns with a role and a content"),
        (
            {"question": [{"role": "assistant", "content": "x"}], "answer": "1"},
            2,
            "must be the user's",
        ),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(
    tmp_path: Path, row: object, line: int, says: str
) -> None:
    file = write(tmp_path / "bad.jsonl", {"question": "Q", "answer": "1"}, row)
    (problem,) = refused(JsonlTask(path=file)).problems
    assert problem.code == "GR205"
    assert f"bad.jsonl, line {line}" in problem.message
    assert re.search(says, problem.message)
    assert problem.span is not None
    assert (problem.span.path, problem.span.line) == (file, line)


def test_at_most_five_bad_rows_are_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "bad.jsonl", *["{}"] * 9)
    assert len(refused(JsonlTask(path=file)).problems) == 5


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe{", b"\x1f\x8b\x08"])
def test_files_without_rows(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_bytes(content)
    assert "odd.jsonl" in str(refused(JsonlTask(path=str(file))))


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k_train.jsonl", *rows_of(("a 1", "x\n#### 1"), ("b", "#### 2")))
    write(tmp_path / "gsm8k_test.jsonl", *rows_of(("c", "#### 3")))
    for path in (tmp_path, tmp_path / "gsm8k_train.jsonl"):
        task = load(Gsm8kTask(path=str(path)))
        assert train_golds(task) == ["1", "2"]
        assert task.held_out(1)[0].reference == "3"
        assert "\\boxed{}" in task.held_out(1)[0].messages[0].content
    write(tmp_path / "other_test.jsonl", *rows_of(("c", "#### 3")))
    assert "has 2 files for the test split" in str(refused(Gsm8kTask(path=str(tmp_path))))
    lone = tmp_path / "lone"
    lone.mkdir()
    assert "no test file lies beside" in str(
        refused(Gsm8kTask(path=write(lone / "x.jsonl", *rows_of(("a", "1")))))
    )
    assert "no file or folder" in str(refused(Gsm8kTask(path=str(tmp_path / "none"))))


def test_math_levels_are_for_training_only(tmp_path: Path) -> None:
    write(
        tmp_path / "train.jsonl",
        *(
            {"problem": f"p{i}", "solution": f"\\boxed{{{i}}}", "level": f"Level {i}", "type": "A"}
            for i in range(1, 6)
        ),
        {"problem": "p?", "solution": "\\boxed{9}", "level": "Level ?", "type": "A"},
    )
    write(tmp_path / "test.jsonl", {"problem": "t", "answer": "1", "level": 1, "subject": "B"})
    task = load(MathTask(path=str(tmp_path), min_level=3))
    assert train_golds(task) == ["3", "4", "5"]
    assert task.selection.dropped == {"at other levels": 3}
    assert task.train(0).meta["level"] == 3
    assert len(task.held_out_rows) == 1
    assert len(train_golds(load(MathTask(path=str(tmp_path))))) == 6


def test_evaluation_needs_no_training_rows(tmp_path: Path) -> None:
    test = write(tmp_path / "test.jsonl", {"problem": "t", "answer": "1"})
    task = load(MathTask(eval_path=test), train=False)
    assert (task.size, len(task.held_out(1))) == (0, 1)
    with pytest.raises(GrpoError, match=r"only 1 distinct held-out questions, 2 were asked"):
        task.held_out(2)
    with pytest.raises(IndexError):
        task.train(0)


@pytest.mark.parametrize("settings", [Gsm8kTask(), MathTask()])
def test_offline_without_a_file_is_one_clear_error(
    settings: Gsm8kTask | MathTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (problem,) = refused(settings).problems
    assert problem.code == "GR205"
    assert f"`{settings.id}` are neither here nor available from the hub" in problem.message
    assert problem.hint == "pass a local JSON lines file: --set task.path=FILE"


def test_the_fingerprint_is_of_the_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", *rows_of(("a", "1")))
    before = task_fingerprint(JsonlTask(path=file))
    write(tmp_path / "a.jsonl", *rows_of(("a", "2")))
    assert task_fingerprint(JsonlTask(path=file)) != before
    assert task_fingerprint(Gsm8kTask()).startswith("openai/gsm8k@7403")


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("no box", None),
        (r"\boxed{1} then \boxed{ \text{a {b}} }", r"\text{a {b}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"so $\boxed 5$.", "5"),
        (r"\fbox{x}", "x"),
        (r"\boxed{open", None),
    ],
)
def test_the_last_box(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


@pytest.mark.skipif(not SHARED.is_dir(), reason="no data beside the project")
def test_the_real_data_sets() -> None:
    gsm8k = load(Gsm8kTask(path=str(SHARED / "gsm8k_train.jsonl")))
    assert (gsm8k.size, len(gsm8k.held_out_rows), gsm8k.selection.dropped) == (7473, 1319, {})
    assert all(re.fullmatch(r"-?[\d,.]+", gold) for gold in train_golds(gsm8k))
    math500 = load(MathTask(eval_path=str(SHARED / "math500_test.jsonl")), train=False)
    prompts = math500.held_out(500)
    assert len({p.id for p in prompts}) == 500
    assert {p.meta["level"] for p in prompts} == {1, 2, 3, 4, 5}
    only_test = load(JsonlTask(path=str(SHARED / "gsm8k_test.jsonl"), held_out_frac=1.0))
    assert (only_test.size, len(only_test.held_out_rows)) == (0, 1319)
