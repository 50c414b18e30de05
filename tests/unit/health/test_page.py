"""The page on a run or an ablation: whole, harmless, and it opens without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo_cli.compare.chart import chart
from grpo_cli.compare.model import Curve
from grpo_cli.compare.read import read_run
from grpo_cli.health import doctor
from grpo_cli.health.doctor import Finding
from grpo_cli.health.interfaces import (
    INTERFACES,
    Light,
    SeedFinding,
    audit_lines,
    interface_of,
    worst,
)
from grpo_cli.health.page import page
from grpo_cli.health.panel import describe
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.types import RunStatus
from tests.compare_runs import write_run
from tests.health_runs import HOSTILE, row, two_groups, write_rollouts

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
SCALARS = {"reward/mean": 0.5, "mismatch/logp_abs_mean": 1e-6, "policy/entropy": 0.3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A failed run in which every text that a model or a verifier wrote is hostile."""
    root = tmp_path_factory.mktemp("page")
    run = write_run(root, "grpo", 0, 0.5, scalars=SCALARS, status=RunStatus.FAILED, reason=HOSTILE)
    rows = [
        row("a", n, float(n % 2), 2, n % 2 - 0.5, completion=HOSTILE, parsed=HOSTILE)
        | {"reference": HOSTILE, "prompt": [{"role": "user", "content": HOSTILE}]}
        for n in range(4)
    ]
    write_rollouts(run, 8, rows)
    path = run / "eval" / "step-000008.jsonl"
    lines = [json.loads(line) | {"text": HOSTILE} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    audit = json.loads((verifiers_dir() / "exact_integer" / "audit.json").read_bytes())
    audit["verifier"]["name"] = HOSTILE
    audit["exploits"]["families"][0] |= {"name": HOSTILE, "paid": 1}
    (run / "audit.json").write_text(json.dumps(audit))
    return run


@pytest.fixture(scope="module")
def shown(run: Path) -> str:
    return page(run)


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms with two seeds; one cell is missing."""
    folder = tmp_path_factory.mktemp("runs") / "ablations" / "two"
    cells = []
    for arm, score in (("base", 0.4), ("other", 0.6)):
        for seed in range(2):
            changes = {"objective": {"high": 0.28}} if arm == "other" else {}
            made = write_run(folder, arm, seed, score, scalars=SCALARS, changes=changes)
            write_rollouts(made, 8, two_groups())
            home = folder / arm / made.name
            home.parent.mkdir(parents=True, exist_ok=True)
            made.rename(home)
            cells.append({"arm": arm, "seed": seed, "run": f"{arm}/{made.name}"})
    cells.append({"arm": "other", "seed": 2, "run": "other/s2-00000000"})
    plan = {
        "control": "base",
        "primary": {"metric": "eval/accuracy", "at": "final", "direction": "higher"},
        "axes": [{"keys": ["objective.high"]}],
        "cells": cells,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


class Page(HTMLParser):
    """Fails on an element that does not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_whole(text: str) -> None:
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    assert not {tag for tag, _ in parser.tags} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "use",
    }
    ids = {attributes.get("id") for _, attributes in parser.tags}
    for _, attributes in parser.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert key != "src"
            assert key != "href" or (value or "").startswith("#")
            assert "url(" not in (value or "")
    targets = {a["href"] for tag, a in parser.tags if tag == "a"}
    assert {f"#{name}" for name in ids if name} >= {t for t in targets if t and "-" in t}
    assert not set(text) & set("\x1b\x00\u202e\ud800")
    text.encode()
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ET.fromstring(svg)
    for points in re.findall(r'points="([^"]*)"', text):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 420
            assert 0 <= y <= 240


def test_hostile_text_stays_text(shown: str) -> None:
    check_whole(shown)
    assert "&lt;/script&gt;&lt;script&gt;" in shown
    assert "[bold red]" in shown


def test_a_run_shows_its_four_interfaces_audit_completions_and_curves(shown: str) -> None:
    for interface in INTERFACES:
        assert f'id="arm1-{interface.key}"' in shown
    assert "accepts wrong answers" in shown
    assert "1 of 31 families of tricks are paid" in shown
    assert shown.count('<article class="right">') == 2 + 3
    assert shown.count('<article class="wrong">') == 2 + 3
    assert "mean over held-out questions" in shown  # the definition beside the curve
    assert ">step</text>" in shown
    assert "grpo explain" in shown


def test_an_ablation_starts_with_the_comparison_and_overlays_seeds(ablation: Path) -> None:
    text = page(ablation)
    check_whole(text)
    places = [text.index(w) for w in ("Health of every arm", "per arm; the unit", 'id="arm1"')]
    assert places == sorted(places)
    assert text.index('id="arm1">base') < text.index('id="arm2">other')
    assert "not run" in text
    accuracy = re.search(r'aria-label="eval/accuracy".*?</svg>', text, re.DOTALL)
    assert accuracy is not None
    assert accuracy[0].count('stroke-opacity="0.45"') == 2


def test_an_ablation_without_a_score_still_opens(tmp_path: Path) -> None:
    run = write_run(tmp_path, "base", 0, 0.5, status=RunStatus.RUNNING, stop_at=1, steps=[1])
    (tmp_path / "base").mkdir(exist_ok=True)
    run.rename(tmp_path / "base" / run.name)
    cells = [{"arm": "base", "seed": 0, "run": f"base/{run.name}"}]
    (tmp_path / "plan.json").write_text(json.dumps({"control": "base", "cells": cells}))
    text = page(tmp_path)
    check_whole(text)
    assert "no comparison" in text


@pytest.mark.parametrize("file", ["audit.json", "rollouts/step-000008.jsonl.gz"])
def test_a_damaged_extra_is_said_and_the_rest_shown(tmp_path: Path, file: str) -> None:
    run = write_run(tmp_path, "grpo", 0, 0.5, scalars=SCALARS)
    (run / file).parent.mkdir(exist_ok=True)
    (run / file).write_bytes(b"damaged")
    text = page(run)
    check_whole(text)
    assert Path(file).name in text
    if file.startswith("rollouts"):
        # What the doctor could not read is no reason for a green light.
        assert "chip green" not in text


def finding(rule: str, severity: str) -> SeedFinding:
    return SeedFinding(
        Finding(rule, severity, f"{rule} said", (), (1, 8), "cause", "look", None),  # type: ignore[arg-type]
        (0,),
    )


def test_a_light_is_the_worst_of_what_belongs_to_it(run: Path) -> None:
    record = read_run(run)
    found = [finding("D-CONTRAST", "amber"), finding("D-OFF-POLICY", "red")]
    lines = {line.interface.key: line for line in audit_lines([record], found, None)}
    assert lines["signal"].light is Light.AMBER
    assert lines["system"].light is Light.RED
    assert lines["system"].why == ("D-OFF-POLICY said",)
    assert lines["optimisation"].light is Light.GREEN
    assert lines["signal"].why[1].startswith("the verifier has no audit")
    assert worst([]) is Light.GREEN


def test_what_was_not_measured_is_never_green(tmp_path: Path) -> None:
    run = write_run(tmp_path, "grpo", 0, 0.5)
    whole = read_run(run)
    bare = [
        replace(r, scalars={k: v for k, v in r.scalars.items() if not k.startswith("mismatch/")})
        for r in whole.records
    ]
    record = replace(whole, records=tuple(bare))
    lines = {line.interface.key: line for line in audit_lines([record], [], None)}
    assert lines["system"].light is Light.AMBER
    assert lines["system"].why == ("sampler and learner were not compared",)


def test_every_rule_of_the_doctor_has_an_interface() -> None:
    own = {rule.id: interface_of(rule.id) for rule in doctor.RULES}
    assert set(own.values()) == {interface.key for interface in INTERFACES}
    optimisation = {rule for rule, key in own.items() if key == "optimisation"}
    assert optimisation == {"D-STEP-SIZE", "D-EXPLORATION", "D-LENGTH", "D-TRUNCATION", "D-FALLING"}


@pytest.mark.parametrize(
    "values",
    [(1e-14, 3e-14), (0.5, 0.5 + 1e-16), (0.0, 0.0), (-1e-9, 5e-9), (0.9390, 0.9391), (1e6, 1e7)],
)
@pytest.mark.parametrize("share", [False, True])
def test_ticks_of_any_size_tell_each_other_apart(values: tuple[float, ...], share: bool) -> None:
    nothing = (float("nan"), float("nan"))
    drawn = chart("m", "step", [("m", Curve((0.0, 1.0), values, nothing, nothing))], share)
    labels = [label for _, label in drawn.y_ticks]
    assert len(set(labels)) == len(labels) > 1


def test_every_metric_that_is_drawn_is_in_the_panel() -> None:
    for interface in INTERFACES:
        for metric in interface.metrics:
            assert describe(metric).formula


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_chromium_opens_the_page_offline_without_an_error(shown: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(shown)
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND"),
            *(f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What the page's policy blocks, and what fails to load, is an error on the console.
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<figure>") == shown.count("<figure>") > 0
    assert "<script" not in done.stdout
