"""The recipe key `audit`, and training on with a verifier that fails now and then."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from grpo_cli.verify.audit_file import AuditFile, Headline, Rate, write
from grpo_cli.verify.load import load_verifier
from tests.e2e.conftest import grpo, only_run, small_run

# The process dies on about a third of the completions, always on the same ones.
CRASHES = """
import os, zlib
from grpo_cli.types import Status, Verdict

def verify(text, reference):
    if zlib.crc32(text.encode()) % 3 == 0:
        os._exit(9)
    return Verdict(float(text.endswith("#" + reference)), Status.OK)
"""


def make_verifier(cwd: Path, audited: bool) -> None:
    (cwd / "mine").mkdir()
    (cwd / "mine" / "verifier.py").write_text(CRASHES)
    if audited:
        loaded = load_verifier(str(cwd / "mine"), cwd)
        found = Headline(Rate(1, 100, 0.002, 0.054), Rate(0, 100, 0.0, 0.036), 0.9)
        audit = AuditFile("mine", loaded.sha256, {}, None, None, found, "2026-01-31T00:00:00Z")
        write(audit, cwd / "mine" / "audit.json")


def test_require_refuses_before_anything_is_made(tmp_path: Path) -> None:
    make_verifier(tmp_path, audited=False)
    refused = grpo(*small_run(1, "verifier.name=./mine", "audit=require"), cwd=tmp_path)
    assert refused.returncode == 2
    assert "error[GR213]" in refused.stderr
    assert "never audited" in refused.stderr
    assert "grpo verify-verifier ./mine" in refused.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/*/s*"))


def test_an_audited_verifier_that_crashes_on_some_trains_on_the_others(tmp_path: Path) -> None:
    make_verifier(tmp_path, audited=True)
    sets = ("verifier.name=./mine", "audit=require", "filter={kind: none}")
    done = grpo(*small_run(1, *sets), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verifier mine: FN 1.0 % [0.2, 5.4] (1/100), FP <= 3.6 % (0/100)" in done.stderr
    run = only_run(tmp_path)
    assert (run / "audit.json").read_bytes() == (tmp_path / "mine" / "audit.json").read_bytes()
    rows = [
        json.loads(line)
        for file in (run / "rollouts").glob("*.gz")
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]
    missing = [row for row in rows if row["status"] == "error"]
    assert 0 < len(missing) < len(rows)
    for row in missing:
        assert row["score"] is row["reward"] is None
        assert row["advantage"] == 0
        assert row["detail"] == "the verifier's process died: exit code 9"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scalars = records[1]["scalars"]
    assert scalars["verifier/error_frac"] == len(missing) / len(rows)
    assert 0 <= scalars["time/verify_max_s"] <= scalars["time/verify_s"]
    right = [row["score"] for row in rows if row["status"] == "ok"]
    assert abs(scalars["reward/accuracy"] - sum(right) / len(right)) < 1e-9
