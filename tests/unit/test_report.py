"""Hostile text must stay text, and an error must be readable without colour."""

from __future__ import annotations

import io
import json
import re
import unicodedata

import pytest
from rich.console import Console

from grpo_cli.errors import GrpoError, Problem, Span
from grpo_cli.report import error_json, render_error, safe_text


def shown(*problems: Problem, colour: bool = False) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream, width=40, force_terminal=colour, color_system="standard" if colour else None
    )
    render_error(GrpoError(*problems), console)
    return stream.getvalue()


def test_every_control_character_becomes_visible() -> None:
    for code in (*range(0x20), *range(0x7F, 0xA0)):
        char = chr(code)
        assert safe_text(char) == (char if char in "\n\t" else f"\\x{code:02x}")


@pytest.mark.parametrize("code", [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200B, 0x200D])
def test_bidi_and_zero_width_characters_become_visible(code: int) -> None:
    assert safe_text(f"a{chr(code)}b") == f"a\\u{code:04x}b"


def test_no_format_or_control_character_passes() -> None:
    passed = {
        char
        for char in map(chr, range(0x110000))
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and safe_text(char) == char
    }
    visible = (
        "[\\n\\t\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd]"  # number signs
    )
    hieroglyphs = "[\U00013430-\U0001343f]"  # joiners that a terminal draws, if at all
    assert {char for char in passed if not re.match(f"{visible}|{hieroglyphs}", char)} == set()


def test_ordinary_text_passes_and_long_text_is_cut() -> None:
    assert safe_text("π ≤ 3, ok\n\t中文 \U0001f600") == "π ≤ 3, ok\n\t中文 \U0001f600"
    assert safe_text("a" * 12, limit=10) == "a" * 10 + "… (+2 characters)"
    assert safe_text("a" * 10, limit=10) == "a" * 10
    assert len(safe_text("a" * 10**6)) < 3000
    assert safe_text("a" * 5000, limit=None) == "a" * 5000


def test_an_error_in_plain_text() -> None:
    span = Span("recipes/bad.yaml", 12, 3, 9, "  clip_hgih: 0.3")
    text = shown(
        Problem("GR101", "unknown key `objective.clip_hgih`", span, "did you mean `clip_high`?")
    )
    assert text == (
        "error[GR101]: unknown key `objective.clip_hgih`\n"
        "   --> recipes/bad.yaml:12:3\n"
        "   |\n"
        "12 |   clip_hgih: 0.3\n"
        "   |   ^^^^^^^^^\n"
        "\n"
        "hint: did you mean `clip_high`?\n"
        "\n"
    )


def test_a_set_has_no_line_number_and_problems_are_counted() -> None:
    text = shown(
        Problem("GR101", "unknown", Span("--set #2", 1, 3, 1, "a.b=1")), Problem("GR103", "missing")
    )
    assert "  --> --set #2\n  |\n  | a.b=1\n  |   ^\n" in text
    assert text.endswith("error[GR103]: missing\n\n2 problems\n")


def test_hostile_text_in_every_field_stays_text() -> None:
    evil = "[bold red]PASS[/] [/foo] \x1b]52;c;aGk=\x07 \x9b2J \u202e :bomb:"
    span = Span(f"x{evil}.yaml", 1, 1, 5, evil)
    for colour in (False, True):
        text = shown(Problem("GR101", evil, span, evil), colour=colour)
        assert text.count("[bold red]PASS[/] [/foo]") >= 3
        assert text.count(":bomb:") >= 3
        for bad in ("\x1b]", "\x9b", "\x07", "\u202e"):
            assert bad not in text
    assert "\x1b[" in text  # the last one was in colour
    assert "\x1b" not in shown(Problem("GR101", evil, span, evil))


def test_the_caret_stands_under_wide_and_escaped_text() -> None:
    line = "\t中: \x1b[0m bad"
    rows = shown(Problem("GR101", "m", Span("f", 1, line.index("bad") + 1, 3, line))).splitlines()
    assert rows[3] == "1 |     中: \\x1b[0m bad"
    # The wide character takes two cells of the terminal but is one of the string.
    assert rows[4].index("^") == rows[3].index("bad") + 1
    assert rows[4].count("^") == 3


def test_a_long_line_is_cut_around_the_caret_and_not_wrapped() -> None:
    line = "a" * 5000 + "HERE" + "b" * 5000
    rows = shown(Problem("GR104", "m", Span("f", 1, 5001, 4, line))).splitlines()
    assert rows[3] == "1 | …" + "a" * 40 + "HERE" + "b" * 40 + "…"
    assert rows[4].index("^") == rows[3].index("HERE")


def test_a_caret_past_the_end_of_a_line() -> None:
    rows = shown(Problem("GR104", "m", Span("f", 1, 4, 1, "kl:"))).splitlines()
    assert rows[4] == "  |    ^"


def test_an_error_as_json() -> None:
    span = Span("f.yaml", 1, 2, 3, "\x1b")
    text = error_json(GrpoError(Problem("GR101", "m\u202e", span, None), exit_code=3))
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text) == {
        "schema_version": 1,
        "exit_code": 3,
        "errors": [
            {
                "code": "GR101",
                "message": "m\u202e",
                "span": {"path": "f.yaml", "line": 1, "column": 2, "length": 3, "text": "\x1b"},
                "hint": None,
            }
        ],
    }
