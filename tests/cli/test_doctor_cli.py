"""`grpo doctor`: what it prints, how it finds a run, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_cli.cli.app import app
from grpo_cli.errors import GrpoError
from tests.doctor_runs import SOUND, Samples, Story, write_story

GAP = Story({"mismatch/k3": 0.015, "mismatch/rho_beyond_2_frac": 0.02})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_story(folder, SOUND, "sound")
    write_story(folder, GAP, "gap")
    write_story(folder, Story({"group/all_right_frac": (0.5, 0.75)}), "solved")
    return folder


def doctor(root: Path, *args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *args, "--runs-dir", str(root)])
    if isinstance(done.exception, GrpoError):
        raise done.exception
    return done.exit_code, done.stdout


def test_a_red_finding_is_printed_with_its_command_and_ends_with_1(root: Path) -> None:
    code, text = doctor(root, "gap")
    assert code == 1
    head = next(line for line in text.splitlines() if line.startswith("red"))
    assert "D-OFF-POLICY" in head
    assert "0.015 nats per token" in head
    test_it = next(line for line in text.splitlines() if "test it" in line)
    assert "grpo ablate dapo --axis correction --setup tiny --set optim.steps=24" in test_it
    assert "likely cause" in text
    assert "look at" in text


def test_a_sound_run_shows_its_grounds_and_ends_with_0(root: Path) -> None:
    code, text = doctor(root, "sound")
    assert code == 0
    assert "healthy" in text
    assert "answers cut off" in text
    assert "5.0 % → 5.0 %" in text


def test_an_amber_finding_alone_ends_with_0(root: Path) -> None:
    code, text = doctor(root, "solved")
    assert code == 0
    assert "amber D-CONTRAST" in text


def test_several_runs_are_one_json_document(root: Path) -> None:
    code, text = doctor(root, "sound", "gap", "--json")
    assert code == 1
    document = json.loads(text)
    assert document["schema_version"] == 1
    one, two = document["runs"]
    assert one["findings"] == []
    assert two["findings"][0]["id"] == "D-OFF-POLICY"
    assert two["findings"][0]["severity"] == "red"
    assert two["headline"].startswith("red D-OFF-POLICY")


def test_text_of_a_verifier_cannot_move_the_cursor(tmp_path: Path) -> None:
    story = Story({"verifier/error_frac": 0.2}, early=Samples(failed=1), late=Samples(failed=1))
    run = write_story(tmp_path, story)
    import gzip

    file = run / "rollouts" / "step-000001.jsonl.gz"
    text = gzip.decompress(file.read_bytes()).decode().replace("boom", "\\u001b[2J[bold]x\\nred")
    file.write_bytes(gzip.compress(text.encode()))
    code, shown = doctor(tmp_path, "tiny")
    assert code == 1
    assert "\x1b" not in shown
    assert "\\x1b[2J[bold]x red" in shown


@pytest.mark.parametrize("args", [[], ["sound", "--system"]])
def test_nothing_or_two_things_to_check_is_a_usage_error(root: Path, args: list[str]) -> None:
    assert doctor(root, *args)[0] == 2


def test_an_unknown_run_is_named(root: Path) -> None:
    with pytest.raises(GrpoError, match="GR206"):
        doctor(root, "nosuch")


def test_a_diagnosis_needs_no_torch(tmp_path: Path) -> None:
    run = write_story(tmp_path, replace(SOUND, steps=8))
    code = (
        "import sys; from pathlib import Path; from grpo_cli.health.doctor import diagnose; "
        f"diagnose(Path({str(run)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reader_of_one_line_makes_no_red_finding(root: Path) -> None:
    command = [sys.executable, "-m", "grpo_cli", "doctor", "sound", "--runs-dir", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0


def test_a_run_without_a_record_has_no_last_step(tmp_path: Path) -> None:
    write_story(tmp_path, SOUND, "empty")
    next(tmp_path.rglob("metrics.jsonl")).write_text("")
    code, text = doctor(tmp_path, "empty")
    assert code == 0
    assert "no step on record" in text
    assert "nothing found so far" in text
