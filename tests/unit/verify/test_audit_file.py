"""`audit.json`: written, read back, matched to a verifier, and asked for before training."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.verify.audit_file import (
    AuditFile,
    Headline,
    Rate,
    audit_path,
    find,
    gate,
    read,
    write,
)
from grpo_cli.verify.source import VerifierSource

FN = Rate(k=8, n=737, low=0.006, high=0.021, problems=100)
FP = Rate(k=0, n=63, low=0.0, high=0.057, problems=60)


def source(folder: Path, **changes: object) -> VerifierSource:
    made = VerifierSource("folder", str(folder), "verify", "math", "ab" * 32, {"percent": "strict"})
    return dataclasses.replace(made, **changes)


def audit(**changes: object) -> AuditFile:
    made = AuditFile(
        verifier_name="math",
        verifier_sha256="ab" * 32,
        options={"percent": "strict"},
        task="gsm8k",
        template=None,
        headline=Headline(FN, FP, 0.92),
        created="2026-01-31T12:00:00Z",
    )
    return dataclasses.replace(made, **changes)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = audit_path(source(tmp_path))
    assert path == tmp_path / "audit.json"
    assert find(source(tmp_path)) is None
    write(audit(), path, {"kinds": [{"kind": "box", "rate": math.nan}]})
    assert find(source(tmp_path)) == read(path) == audit()
    tree = json.loads(path.read_text())
    assert tree["verifier"] == {
        "name": "math",
        "sha256": "ab" * 32,
        "options": {"percent": "strict"},
    }
    assert tree["kinds"] == [{"kind": "box", "rate": None}]


def test_what_was_not_measured_stays_unknown(tmp_path: Path) -> None:
    nothing = Rate(0, 0, math.nan, math.nan)
    write(audit(headline=Headline(nothing, nothing, math.nan)), tmp_path / "audit.json")
    got = read(tmp_path / "audit.json").headline
    assert math.isnan(got.j_lower)
    assert math.isnan(got.fn.high)
    assert str(got.fn) == "not measured"


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (FN, "1.1 % [0.6, 2.1] (8/737)"),
        (FP, "<= 5.7 % (0/63)"),
        (Rate(0, 10000, 0.0, 0.0003), "<= 0.03 % (0/10000)"),
        (Rate(5, 5, 0.57, 1.0), "100.0 % [57.0, 100.0] (5/5)"),
    ],
)
def test_rates_in_words(rate: Rate, shown: str) -> None:
    assert str(rate) == shown


@pytest.mark.parametrize(
    ("changes", "task", "problem"),
    [
        ({}, "gsm8k", None),
        ({}, None, None),
        ({"sha256": "cd" * 32}, "gsm8k", "another version of its code"),
        ({"options": {"percent": "equal"}}, None, "other options (percent=strict, here percent="),
        ({}, "arithmetic", "another task (gsm8k, here arithmetic)"),
    ],
)
def test_what_an_audit_is_about(
    tmp_path: Path, changes: dict[str, object], task: str | None, problem: str | None
) -> None:
    got = audit().mismatch(source(tmp_path, **changes), task)
    assert got is None if problem is None else (got or "").startswith(problem)


def test_task_and_template_count_when_both_are_known(tmp_path: Path) -> None:
    assert audit(task=None).mismatch(source(tmp_path), "arithmetic") is None
    assert audit(template="11").mismatch(source(tmp_path)) is None
    assert audit(template="11").mismatch(source(tmp_path), template="22") is not None


def test_the_gate(tmp_path: Path) -> None:
    command = "grpo verify-verifier math"
    here = source(tmp_path)
    assert gate("off", here, command) == (None, None)
    assert gate("warn", here, command) == (
        None,
        "verifier math: never audited; run `grpo verify-verifier math`",
    )
    with pytest.raises(GrpoError, match=r"GR213.*math: never audited") as caught:
        gate("require", here, command)
    assert command in (caught.value.problems[0].hint or "")
    write(audit(), tmp_path / "audit.json")
    line = "verifier math: FN 1.1 % [0.6, 2.1] (8/737), FP <= 5.7 % (0/63), audited 2026-01-31"
    for mode in ("warn", "require"):
        assert gate(mode, here, command, "gsm8k") == (audit(), line)
    changed = source(tmp_path, sha256="cd" * 32)
    assert "its audit is of another version of its code" in str(gate("warn", changed, command)[1])
    with pytest.raises(GrpoError, match="GR213"):
        gate("require", changed, command)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "verifier": {"name": 3}}', "\x00\xff"],
)
def test_a_damaged_file_warns_or_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(GrpoError, match=r"GR213.*is not a readable audit"):
        read(tmp_path / "audit.json")
    found, line = gate("warn", source(tmp_path), "grpo verify-verifier math")
    assert found is None
    assert "is not a readable audit" in str(line)
    with pytest.raises(GrpoError, match="GR213"):
        gate("require", source(tmp_path), "grpo verify-verifier math")


def test_a_functions_audit_lies_beside_its_file(tmp_path: Path) -> None:
    file = VerifierSource("trl", str(tmp_path / "reward.py"), "fn", "reward:fn", "ab" * 32)
    assert audit_path(file) == tmp_path / "reward.fn.audit.json"
    dotted = VerifierSource("trl", "pkg.rewards", "fn", "pkg.rewards:fn", "ab" * 32)
    assert audit_path(dotted) == Path("pkg.rewards.fn.audit.json")
