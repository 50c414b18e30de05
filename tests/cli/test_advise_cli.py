"""`grpo advise` as a process: streams, exit codes, and the questions in a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "peft", "scipy", "mlflow", "datasets"}
ENV = {
    key: value
    for key, value in os.environ.items()
    if key not in ("FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS", "GRPO_TRACEBACK", "COLUMNS")
} | {"PYTHONPATH": str(ROOT)}
CAVEAT = "Only an ablation on your own model, prompts and verifier decides."


def advise(
    *args: str, stdin: str = "", python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "grpo_cli", "advise", *args],
        env=ENV,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def in_terminal(*args: str, keys: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout, and what the terminal showed. Each key is sent at the next prompt."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_cli", "advise", *args],
        env=ENV,
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    shown, sent, seen = "", 0, 0
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                shown += os.read(ours, 65536).decode()
            except OSError:  # the other side is closed
                break
        prompts = len(re.findall(r"\w+ \[\d\]: ", shown))
        if prompts > seen and sent < len(keys):
            seen = prompts
            os.write(ours, keys[sent].encode())
            sent += 1
        if process.poll() is not None and not select.select([ours], [], [], 0)[0]:
            break
    else:
        process.kill()  # it waits for more: reading to its end would never end
    assert process.stdout is not None
    with contextlib.closing(process.stdout):
        out = process.stdout.read().decode()
    code = process.wait(timeout=10)
    os.close(ours)
    return code, out, shown


def _take_terminal() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C is a signal, and not an ignored
    one, which is what the child of a background job inherits."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_piped_input_is_not_asked_and_says_what_was_assumed() -> None:
    done = advise("--task", "math", "--arch", "moe", "--response", "long", stdin="2\n2\n2\n")
    assert (done.returncode, done.stderr) == (0, "")
    head = " ".join(done.stdout.split("recipe ")[0].split())
    assert "task math, arch moe, response long, precision bfloat16 (assumed)" in head
    assert "recipe  gspo: " in done.stdout
    assert "paper, one run" in done.stdout
    assert done.stdout.endswith(CAVEAT + "\n")


def test_advice_needs_no_torch() -> None:
    done = advise("--json", python=("-X", "importtime"))
    assert done.returncode == 0
    imported = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert "grpo_cli.advise.rules" in imported
    assert not HEAVY & imported


def test_json_is_one_document_with_sources_and_commands() -> None:
    done = advise("--json", "--arch", "MOE", "--precision", "float32")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    assert found["answers"]["arch"] == {"value": "moe", "assumed": False}
    assert found["answers"]["task"] == {"value": "math", "assumed": True}
    assert (found["recipe"], found["command"]) == ("gspo", "grpo train gspo")
    for row in found["reasons"] + found["against"]:
        assert set(row) == {"id", "claim", "source", "grade", "secondary"}
        assert row["grade"] in found["grades"]
    assert len(found["ablations"]) == 2
    assert found["caveat"] == CAVEAT


@pytest.mark.parametrize(
    "args", [("--task", "maths"), ("--arch", ""), ("--precision", "fp4"), ("--tsk", "math"), ("x",)]
)
def test_a_wrong_value_exits_2(args: tuple[str, ...]) -> None:
    done = advise(*args)
    assert (done.returncode, done.stdout) == (2, "")
    if args[0] == "--task":
        assert "pretraining" in done.stderr


def test_a_terminal_is_asked_and_a_wrong_answer_is_asked_again() -> None:
    keys = ["7\n", "p\n", "moe\n", "\n", "\x1b[A\n", "FLOAT\n", "\n", "2\n"]
    code, out, shown = in_terminal(keys=keys)
    assert code == 0
    assert shown.count("that is none of the choices") == 2
    head = " ".join(out.split("recipe ")[0].split())
    assert head == (
        "for task pretraining, arch moe, response short, precision float32, reward outcome, "
        "stability unstable"
    )
    assert "recipe  gspo: " in out
    assert "What is the model asked to do?" not in out


def test_only_what_is_missing_is_asked() -> None:
    args = ("--task", "code", "--arch", "dense", "--response", "long", "--reward", "outcome")
    code, out, shown = in_terminal(*args, keys=["1\n", "\n"])
    assert code == 0
    assert re.findall(r"(\w+) \[\d\]: ", shown) == ["precision", "stability"]
    assert "recipe  dapo: " in out


def test_ctrl_c_at_a_question_exits_130_without_advice() -> None:
    code, out, shown = in_terminal(keys=["1\n", "\x03"])
    assert (code, out) == (130, "")
    assert "Traceback" not in shown


def test_the_end_of_input_leaves_the_rest_to_the_defaults() -> None:
    code, out, shown = in_terminal(keys=["2\n", "\x04"])
    assert code == 0
    assert "the rest is assumed" in shown
    assert "task code, arch dense (assumed)" in out
