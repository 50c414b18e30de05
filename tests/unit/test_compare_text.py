"""What a comparison looks like: text, markdown, JSON and a page that loads nothing."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.compare import Comparison, compare
from grpo_cli.compare.html import as_html
from grpo_cli.compare.read import read_targets
from grpo_cli.compare.text import as_json, as_markdown, as_text, sparkline
from grpo_cli.types import RunStatus
from tests.compare_runs import write_arm, write_run

HIGH = {"objective": {"high": 0.28}}
HOSTILE = "a|b<script>alert(1)</script>\x1b[31m\u202e\"'&\n# x"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("text") / "runs"
    write_arm(root, "grpo", [0.4, 0.45, 0.475], truncated=0.2)
    write_arm(root, "dapo", [0.6, 0.675, 0.6875], recipe_name="dapo", changes=HIGH)
    write_run(
        root,
        "dapo",
        3,
        0.5,
        recipe_name="dapo",
        changes=HIGH,
        status=RunStatus.FAILED,
        reason=HOSTILE,
        stop_at=5,
    )
    found = read_targets([str(root)], root)
    return compare(found.runs, found.plans)


@pytest.fixture(scope="module")
def hostile(result: Comparison) -> Comparison:
    """Every text that comes from a file made hostile."""
    arms = tuple(
        replace(arm, name=f"{HOSTILE}{i}", sentence=HOSTILE, remarks=(HOSTILE,), changes={"k": "<"})
        for i, arm in enumerate(result.arms)
    )
    return replace(result, arms=arms, control=HOSTILE, notes=(HOSTILE,), differences=(HOSTILE,))


def test_text_has_every_column_of_the_verdict(result: Comparison) -> None:
    text = as_text(result)
    for word in (
        *("seeds", "mean", "seed SD", "95 % interval", "verdict", "difference", "p", "Holm p"),
        *("P(arm > grpo)", "MDE", "seeds x questions", "tokens, right answers", "entropy"),
        *("clipped low", "sampler mismatch", "tokens sampled", "seconds", "by step", "by tokens"),
    ):
        assert re.search(rf"(^|\s){re.escape(word)}", text), word
    assert "3/4" in text
    assert "grpo is the control: 44.2 %" in text
    assert "dapo is better than grpo by" in text
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if line.startswith("  dapo  ")) < 130


def test_every_number_of_the_table_is_in_the_json(result: Comparison) -> None:
    tree = json.loads(as_json(result), parse_constant=pytest.fail)
    assert tree["schema_version"] == 1
    grpo, dapo = tree["arms"]
    assert grpo["versus"] is None
    assert dapo["verdict"] == "better"
    assert dapo["versus"]["difference"]["mean"] == pytest.approx(
        result.arms[1].score.mean - 0.4417, abs=1e-4
    )
    assert dapo["versus"]["p_holm"] == result.arms[1].versus.p_holm
    assert [s["score"] for s in dapo["seeds"]][3] is None
    assert dapo["changes"] == {"objective.high": 0.28}


def test_markdown_is_made_of_whole_tables(result: Comparison, hostile: Comparison) -> None:
    for shown in (as_markdown(result), as_markdown(hostile)):
        assert "\x1b" not in shown
        blocks = [b.splitlines() for b in shown.split("\n\n") if b.startswith("| ")]
        assert len(blocks) == 4
        for block in blocks:
            columns = {len(re.findall(r"(?<!\\)\|", line)) for line in block}
            assert len(columns) == 1, block
        assert not re.search(r"(?<!\\)<script", shown)
    assert "no difference" not in as_markdown(result)


def test_nothing_hostile_reaches_a_terminal(hostile: Comparison) -> None:
    text = as_text(hostile)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "\n# x" not in text


class Page(HTMLParser):
    """Collects tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["result", "hostile"])
def test_the_page_is_whole_and_loads_nothing(which: str, request: pytest.FixtureRequest) -> None:
    page = as_html(request.getfixturevalue(which))
    parser = Page()
    parser.feed(page)
    assert parser.open == []
    names = {tag for tag, _ in parser.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "image", "use", "a"}
    for _, attributes in parser.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert key not in ("src", "href", "xlink:href")
            assert "url(" not in (value or "")
    assert "http:" not in page
    assert "https:" not in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(svg)
    assert page.count("<figure>") == 6  # metric by steps and by tokens, four health curves


def test_coordinates_lie_within_the_chart(result: Comparison) -> None:
    for points in re.findall(r'points="([^"]*)"', as_html(result)):
        for point in points.split():
            x, y = (float(number) for number in point.split(","))
            assert 0 <= x <= 420
            assert 0 <= y <= 240


def test_sparkline() -> None:
    assert sparkline([0, 0.5, 1, float("nan"), 2], 0, 1) == "▁▅█ █"
    assert sparkline([3, 3], 3, 3) == "▁▁"


def test_a_page_without_curves_or_a_second_arm(tmp_path: Path) -> None:
    write_run(tmp_path, "grpo", 0, 0.4, steps=[0, 8])
    found = read_targets([str(tmp_path)], tmp_path)
    result = compare(found.runs, at="0")
    for shown in (as_text(result), as_markdown(result), as_json(result), as_html(result)):
        assert "20.0 %" in shown or '"score": 0.2' in shown


def test_an_arm_of_another_kind_is_named_by_its_kind_alone(tmp_path: Path) -> None:
    for name, kind in (("a", "soft"), ("b", "none")):
        write_arm(tmp_path, name, [0.5, 0.6, 0.7], changes={"overlong": {"kind": kind}})
    found = compare(read_targets([str(tmp_path)], tmp_path).runs, group_by="overlong.kind")
    lines = [line for line in as_text(found).splitlines() if "overlong.kind=none: " in line]
    assert lines == ["  overlong.kind=none: overlong.kind=none"]
