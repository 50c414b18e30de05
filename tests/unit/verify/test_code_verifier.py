"""The code verifier's own rules: which program is taken, what is equal, which golds fail."""

import json
from types import ModuleType

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.types import Status
from grpo_cli.verify import sandbox
from grpo_cli.verify.load import load_verifier


@pytest.fixture(scope="module")
def code() -> ModuleType:
    """The verifier's module."""
    import sys

    load_verifier("code", verifiers_dir())
    (module,) = [m for name, m in sys.modules.items() if name.startswith("grpo_verifier_code_")]
    return module


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (2, 2.0, True), (2.0, 2, True), (2.0000000001, 2, False), (2.0000000001, 2.0, True),
        (2.00001, 2.0, False), (0.1 + 0.2, 0.3, True), (1e-13, 0.0, True), (1e-9, 0.0, False),
        (True, 1, False), (1, True, False), (False, 0, False), (True, True, True),
        (None, None, True), (None, 0, False), (0, None, False), ("", None, False),
        ("2", 2, False), (2, "2", False), ("a", "a", True), ("a", "A", False),
        (10**400, 1.0, False), (10**400, 10**400, True), (10**20 + 1, 10**20, False),
        ([1, 2], [1, 2.0], True), ([1, 2], [2, 1], False), ([1], [1, 1], False),
        ([], {}, False), ([[True]], [[1]], False), ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False), ({"a": 1, "b": 2}, {"a": 1}, False),
    ],
)  # fmt: skip
def test_equality(code: ModuleType, got: object, expected: object, same: bool) -> None:
    assert code.equal(got, expected) is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True), ("1 \r\n2\n\n\n", "1\n2\n", True), ("1\n\n2", "1\n2", False),
        (" 1", "1", False), ("1 2", "1  2", False), ("", "\n", True), ("", "0", False),
    ],
)  # fmt: skip
def test_output_is_compared_by_lines(code: ModuleType, got: str, expected: str, same: bool) -> None:
    assert code.same_output(got, expected) is same


@pytest.mark.parametrize(
    ("text", "name", "program"),
    [
        ("```python\na\n```", "", "a"),
        ("```py\na\n```\n```\nb\n```", "", "b"),
        ("```python\na\n```\n```text\nb\n```", "", "a"),
        ("```python title=x\na\n```", "", "a"),
        ("```python\ndef f(): 1\n```\n```python\nf()\n```", "f", "def f(): 1"),
        ("```python\ndef f(): 1\n```\n```python\ndef f(): 2\n```", "f", "def f(): 2"),
        ("```python\nclass S: 1\n```\n```python\nS().f()\n```", "S.f", "class S: 1"),
        ("```python\nf = 1\n```\n```python\nf == 1\n```", "f", "f = 1"),
        ("````python\n```\na\n```\n````", "", "```\na\n```"),
        ("  ```python\n  a\n    b\n  ```", "", "a\n  b"),
        ("<think>```python\na\n```</think>```\nb\n```", "", "b"),
        ("```python\na\n```\nthen\n```python\nb", "", None),
        ("`a`", "", None),
        ("", "", None),
    ],
)
def test_the_program_of_a_completion(
    code: ModuleType, text: str, name: str, program: str | None
) -> None:
    found = code.find_program(text, name)
    if program is None:
        assert isinstance(found, code.Refusal)
    else:
        assert found == program


GOOD = {"kind": "function", "name": "f", "tests": [{"args": [1], "expected": 1}]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tests": []}, "no tests"),
        ({"tests": None}, "no tests"),
        ({"kind": "class"}, "kind"),
        ({"name": "f(); import os"}, "name"),
        ({"name": None}, "name"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"time_limit_s": True}, "time_limit_s"),
        ({"solution": 3}, "solution"),
        ({"test": []}, "unknown keys: test"),
        ({"tests": [{"args": 1, "expected": 1}]}, "args"),
        ({"tests": [{"args": []}]}, "expected"),
        ({"tests": [{"args": [], "expected": float("nan")}]}, "NaN"),
    ],
)
def test_an_unusable_reference_is_a_gold_error(
    code: ModuleType, change: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        code.verify("```python\na\n```", json.dumps({**GOOD, **change}))
    for text in ("", "3", "[" * 100_000):
        with pytest.raises(ValueError):  # noqa: PT011 - json's own words
            code.read_reference(text)


def test_answer_is_the_solution_and_only_that(code: ModuleType) -> None:
    solved = {**GOOD, "solution": "def f(n):\n    return n\n"}
    assert code.find_program(code.answer(json.dumps(solved)), "f") == "def f(n):\n    return n"
    with pytest.raises(ValueError, match="solution"):
        code.answer(json.dumps(GOOD))


def _needs_sandbox() -> None:
    try:
        sandbox.available_level()
    except GrpoError as exc:
        pytest.skip(str(exc))


def test_partial_scores_count_tests(code: ModuleType) -> None:
    _needs_sandbox()
    tests = [{"args": [n], "expected": n} for n in (1, 2, 3, 4)]
    reference = json.dumps({"kind": "function", "name": "f", "tests": tests})
    text = "```python\ndef f(n):\n    if n == 3: raise SystemExit\n    return n\n```"
    assert code.verify(text, reference).score == 0.0
    assert code.verify(text, reference, partial="on").score == 0.75
    text = "```python\nimport os\ndef f(n):\n    return n if n < 3 else os._exit(0)\n```"
    assert code.verify(text, reference, partial="on").score == 0.5
    tests = [{"stdin": str(n), "stdout": str(n)} for n in (1, 2)]
    reference = json.dumps({"kind": "stdin", "tests": tests})
    verdict = code.verify("```python\nprint(1)\n```", reference, partial="on")
    assert (verdict.score, verdict.status) == (0.5, Status.OK)


def test_the_labelled_cases() -> None:
    _needs_sandbox()
    rows = [
        json.loads(line)
        for line in (verifiers_dir() / "code" / "cases.jsonl").read_text().splitlines()
    ]
    assert len(rows) >= 40
    assert {row["label"] for row in rows} == {True, False}
    wrong = []
    for row in rows:
        verifier = load_verifier("code", verifiers_dir(), row.get("options"))
        verdict = verifier(row["text"], row["reference"])
        if verdict.missing or (verdict.score == 1.0) is not row["label"]:
            wrong.append((row["note"], verdict))
    assert wrong == []
