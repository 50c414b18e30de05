"""The red-team suite: it finds the holes of weak verifiers; the shipped one has none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.types import Status, Verdict
from grpo_cli.verify import attacks
from grpo_cli.verify.attacks import AttackResult, code_battery, escape_battery, why_no_escapes
from grpo_cli.verify.attacks_escape import ESCAPES
from grpo_cli.verify.attacks_forge import FORGERIES
from grpo_cli.verify.sandbox import LEVEL_VARIABLE, why_not

NO_NAMESPACES = why_no_escapes()
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


def not_contained(results: list[AttackResult], family: str) -> dict[str, str]:
    """name: detail of the rows of a family that went wrong."""
    return {r.name: r.detail for r in results if r.family == family and not r.contained}


@needs_namespaces
@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_nothing_beats_the_shipped_verifier(level: str) -> None:
    if reason := why_not(level):
        pytest.skip(f"{level}: {reason}")
    before = os.environ.get(LEVEL_VARIABLE)
    results = code_battery(None, level)
    assert os.environ.get(LEVEL_VARIABLE) == before
    for family in ("forge", "escape", "control"):
        assert not_contained(results, family) == {}
    families = [result.family for result in results]
    assert (families.count("forge"), families.count("escape")) == (13, 22)
    assert all(result.ran for result in results)


@needs_namespaces
@pytest.mark.slow
def test_the_attempts_do_get_out_when_nothing_holds_them() -> None:
    contained = {result.name for result in escape_battery("bare") if result.contained}
    # The clock stops the one, and there is no terminal for the other.
    assert contained == {"ignore signals and spin", "type into the terminal"}


@needs_namespaces
@pytest.mark.slow
def test_limits_alone_let_attempts_through() -> None:
    escaped = not_contained(escape_battery("none"), "escape")
    for name in ("read /etc/passwd", "connect to loopback", "leave a daemon behind"):
        assert name in escaped
    assert "2 GiB in one process" not in escaped


def test_the_attempts_are_refused_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "_private", lambda: ["false"])
    results = escape_battery("bubblewrap")
    assert len(results) == len(ESCAPES) == 22
    for result in results:
        assert not result.ran
        assert not result.contained
        assert "not run" in result.detail


def test_the_outer_process_stops_in_the_callers_namespaces(tmp_path: Path) -> None:
    own = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid")]
    command = [sys.executable, "-m", "grpo_cli.verify.attacks_outer", "bare", str(tmp_path), *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "not in private namespaces" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(GrpoError, match="GR212"):
        escape_battery("docker")


# Weak verifiers, each with a hole that is known to be in use. They run the forgeries, which only
# print, exit and patch themselves, in a process of their own.
EXIT_CODE = """
import json, sys
program, reference = json.load(sys.stdin)
space = {}
exec(program, space)
for test in json.loads(reference)["tests"]:
    assert space["f"](*test["args"]) == test["expected"]
"""
PRINTS_PASS = (
    EXIT_CODE.replace("assert ", "if not (").replace(
        '== test["expected"]', '== test["expected"]): sys.exit(1)'
    )
    + "print('PASS')\n"
)
ALL_IN_CHILD = """
import json, sys
program, reference = json.load(sys.stdin)
tests = json.loads(reference)["tests"]
space = {}
exec(program, space)
got = [space["f"](*test["args"]) for test in tests]
import builtins
ok = builtins.all(a == b for a, b in builtins.zip(got, [t["expected"] for t in tests]))
print("PASS" if ok else "FAIL")
"""
PICKLES = """
import json, pickle, sys
program, reference = json.load(sys.stdin)
space = {}
exec(program, space)
got = [space["f"](*test["args"]) for test in json.loads(reference)["tests"]]
sys.stdout.buffer.write(pickle.dumps(got))
"""


def weak(child: str, how: str):  # type: ignore[no-untyped-def]
    """A verifier that trusts its child: by exit code, by a printed word, or by a pickle."""

    def verify(text: str, reference: str) -> Verdict:
        program = text.partition("```python\n")[2].partition("\n```")[0]
        done = subprocess.run(
            [sys.executable, "-S", "-c", child],
            input=json.dumps([program, reference]).encode(),
            capture_output=True,
            check=False,
        )
        if how == "exit":
            good = done.returncode == 0
        elif how == "print":
            good = b"PASS" in done.stdout
        else:
            import pickle

            try:
                got = pickle.loads(done.stdout)
            except Exception:
                got = None
            wanted = [test["expected"] for test in json.loads(reference)["tests"]]
            good = got is True or got == wanted
        return Verdict(float(good), Status.OK)

    return verify


@pytest.mark.parametrize(
    ("child", "how", "holes"),
    [
        (
            EXIT_CODE,
            "exit",
            {
                "exit 0 at import",
                "exit 0 in the function",
                "an object equal to everything",
                "print PASS, then exit",
                "read the expected value from callers",
                "walk the frames of a traceback",
                "search the heap",
                "write to every descriptor, then exit",
            },
        ),
        (
            ALL_IN_CHILD,
            "print",
            {
                "an object equal to everything",
                "print PASS, then exit",
                "read the expected value from callers",
                "walk the frames of a traceback",
                "search the heap",
                "patch all, zip and isclose",
            },
        ),
        (PICKLES, "pickle", {"patch pickle.dumps", "code in the result's pickle"}),
    ],
    ids=["exit code", "prints PASS", "pickles"],
)
def test_the_forgeries_find_the_holes_of_weak_verifiers(
    monkeypatch: pytest.MonkeyPatch, child: str, how: str, holes: set[str]
) -> None:
    monkeypatch.setattr(attacks, "escape_battery", lambda level: [])
    monkeypatch.setattr(attacks, "CONTROLS", {})
    found = set(not_contained(code_battery(weak(child, how), "none"), "forge"))
    assert len(FORGERIES) == 13
    assert holes <= found, f"missed: {sorted(holes - found)}"


def test_a_verifier_that_refuses_everything_fails_its_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attacks, "escape_battery", lambda level: [])
    results = code_battery(lambda text, reference: Verdict(0.0, Status.OK), "none")
    assert not_contained(results, "forge") == {}
    assert len(not_contained(results, "control")) == 8
