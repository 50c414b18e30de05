"""YAML text -> values and places. No file content may run, and no file may cost time or memory."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cli.errors import GrpoError, Problem
from grpo_cli.recipe.yaml_tree import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NODES,
    parse,
    read_text,
    show_tree,
    show_value,
)


def value_of(text: str) -> object:
    return parse(f"x: {text}\n", "t.yaml")[0].plain()["x"]


def problem_of(text: str) -> Problem:
    with pytest.raises(GrpoError) as caught:
        parse(text, "t.yaml")
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-0.25", -0.25),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("+7", 7),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("null", None),
        ("", None),
        ("1e", "1e"),
        ('"1e-6"', "1e-6"),
        ("'true'", "true"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("-.inf", -math.inf),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number() -> None:
    assert math.isnan(value_of(".nan"))  # type: ignore[arg-type]


TEXT = st.text(st.characters(exclude_characters="\x7f", exclude_categories=("Cs",)), max_size=30)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_json_writes_is_read_back(value: object) -> None:
    tree, problems = parse(json.dumps({"x": value}), "t.yaml")
    assert problems == []
    assert tree.plain() == {"x": value}
    assert repr(tree.plain()) == repr({"x": value})  # 1 is not 1.0, and True is not 1


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_we_show_is_read_back(value: object) -> None:
    tree, _ = parse(show_tree({"x": value, "m": {"y": value}}), "t.yaml")
    assert repr(tree.plain()) == repr({"x": value, "m": {"y": value}})


def test_words_that_yaml_would_read_as_something_else_are_quoted() -> None:
    assert [show_value(v) for v in ("null", "true", "1e-6", "no", "q_proj")] == [
        '"null"',
        '"true"',
        '"1e-6"',
        "no",
        "q_proj",
    ]
    assert show_value("a\x7f\x9b\u2028") == '"a\\u007f\\u009b\\u2028"'


def test_every_key_and_value_knows_its_place() -> None:
    tree, _ = parse("a: 1\nobjective:\n  clip_low:   0.25 # note\n  b: {c: [x, yy]}\n", "t.yaml")
    node = tree.get("objective", "clip_low")
    assert node is not None
    assert (node.span.line, node.span.column, node.span.length) == (3, 15, 4)
    assert node.span.text == "  clip_low:   0.25 # note"
    assert node.key is not None
    assert (node.key.path, node.key.line, node.key.column, node.key.length) == ("t.yaml", 3, 3, 8)
    item = tree.get("objective", "b", "c", 1)
    assert item is not None
    assert (item.span.line, item.span.column, item.span.length) == (4, 14, 2)
    flow = tree.get("objective", "b")
    assert flow is not None
    assert flow.span.length == len("{c: [x, yy]}")
    assert tree.get("objective", "b", "c", 2) is None


def test_an_alias_stands_where_it_was_written() -> None:
    tree, _ = parse("a: &v [1, 2]\nb: *v\n", "t.yaml")
    assert tree.plain() == {"a": [1, 2], "b": [1, 2]}
    node = tree.get("b")
    assert node is not None
    assert node.span.line == 2
    assert node.key is not None
    assert node.key.line == 2


def test_a_prefix_is_counted_and_shown_but_not_parsed() -> None:
    tree, _ = parse("{high: 0.3}", "--set #1", prefix="objective=")
    node = tree.get("high")
    assert node is not None
    assert node.span.column == len("objective={high: ") + 1
    assert node.span.text == "objective={high: 0.3}"


def test_duplicate_keys_are_all_reported_and_the_first_value_stays() -> None:
    tree, problems = parse('a: 1\nb: {c: 1, "c": 2}\na: 3\n', "t.yaml")
    assert [(p.code, p.span.line, p.span.column) for p in problems if p.span] == [
        ("GR105", 2, 11),
        ("GR105", 3, 1),
    ]
    assert problems[1].hint == "it stands on line 1 too"
    assert tree.plain() == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "words", "line", "column"),
    [
        ("a: [1, 2\nb: 3\n", "not readable YAML", 2, 2),
        ("a: 1\n\tb: 2\n", "not readable YAML", 2, 1),
        ("a: 'open\n", "not readable YAML", 2, 1),
        ("a: *nobody\n", "no anchor `&nobody`", 1, 4),
        ("a: &a [*a]\n", "contains itself", 1, 8),
        ("a: 1\n---\nb: 2\n", "more than one YAML document", 2, 1),
        ("1: a\n", "a key must be a plain string", 1, 1),
        ("? [a, b]\n: c\n", "a key must be a plain string", 1, 3),
        ("null: a\n", "a key must be a plain string", 1, 1),
        ("a: !!python/object/apply:os.system [touch x]\n", "tags are not allowed", 1, 4),
        ("a: !!str 1\n", "tags are not allowed", 1, 4),
        ("a: ! 1\n", "tags are not allowed", 1, 4),
        ("a: b\x07\n", "control character", 1, 5),
        ('a: "\\ud800"\n', "surrogate", 1, 4),
        ('a: "\\UFFFFFFFF"\n', "no such Unicode character", 1, 1),
        ("a: " + "9" * 5000 + "\n", "more than 400 digits", 1, 4),
    ],
)
def test_unreadable_text_is_one_error_with_its_place(
    text: str, words: str, line: int, column: int
) -> None:
    problem = problem_of(text)
    assert problem.code == "GR104"
    assert words in problem.message
    assert problem.span is not None
    assert problem.span.line == line
    if "no such Unicode" not in words:  # PyYAML tells only where it was when it gave up
        assert problem.span.column == column


def test_tags_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    problem_of("a: !!python/object/apply:os.system ['touch ran']\n")
    assert list(tmp_path.iterdir()) == []


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
STAIRS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: " + "[" * 3000 + "]" * 3000, "levels deep"),
        ("a: " + "{a: " * 3000, "levels deep"),
        ("- " * 3000, "levels deep"),
        (STAIRS, "levels deep"),
        (BOMB, "keys and values"),
        ("a: [" + "x," * (MAX_NODES + 1) + "]", "keys and values"),
    ],
)
def test_hostile_files_end_in_one_clear_error(text: str, words: str) -> None:
    start = time.perf_counter()
    problem = problem_of(text)
    assert problem.code == "GR106"
    assert words in problem.message
    assert problem.span is not None
    assert time.perf_counter() - start < 10


def test_what_is_just_under_the_caps_is_read() -> None:
    deep = MAX_DEPTH - 1  # the top mapping is one level
    assert parse("a: " + "[" * deep + "]" * deep, "t.yaml")[1] == []
    many = MAX_NODES - 3  # the mapping, its key and the list
    tree, _ = parse("a: [" + "x," * many + "]", "t.yaml")
    assert len(tree.plain()["a"]) == many


def test_files_that_are_no_recipe_files(tmp_path: Path) -> None:
    def code(path: Path) -> str:
        with pytest.raises(GrpoError) as caught:
            read_text(path, "shown.yaml")
        assert str(tmp_path) not in str(caught.value)
        return caught.value.problems[0].code

    assert code(tmp_path) == "GR107"
    assert code(tmp_path / "absent.yaml") == "GR107"
    os.mkfifo(tmp_path / "fifo")
    assert code(tmp_path / "fifo") == "GR107"
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    assert code(big) == "GR106"
    big.write_bytes(b"#" * MAX_BYTES)
    assert len(read_text(big, "big.yaml")) == MAX_BYTES


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root can read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    with pytest.raises(GrpoError, match="Permission denied"):
        read_text(path, "secret.yaml")


def test_bytes_that_are_not_utf8_are_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("a: 1\nname: caf\xe9\n".encode("latin-1"))
    with pytest.raises(GrpoError, match="not UTF-8") as caught:
        read_text(path, "latin.yaml")
    span = caught.value.problems[0].span
    assert span is not None
    assert (span.line, span.column) == (2, 10)


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    tree, _ = parse(read_text(path, "bom.yaml"), "bom.yaml")
    assert tree.plain() == {"a": 1}
    assert tree.span.column == 1


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%?,<~01. \n\t\\ux", max_size=60))
def test_any_text_is_a_tree_or_one_of_our_errors(text: str) -> None:
    try:
        tree, _ = parse(text, "t.yaml", prefix="k=")
    except GrpoError as error:
        assert all(problem.span is not None for problem in error.problems)  # noqa: PT017
    else:
        json.dumps(tree.plain())
