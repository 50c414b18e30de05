"""The sandbox: what a program can reach, how its end is told, and that failures are never a 0."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.types import Status, Verdict
from grpo_cli.verify import sandbox, sandbox_child, sandbox_command
from grpo_cli.verify.load import load_verifier
from grpo_cli.verify.sandbox import (
    LEVEL_VARIABLE,
    End,
    Limits,
    RunResult,
    available_level,
    call_function,
    require_level,
    run_program,
    why_not,
)

LIMITS = Limits(cpu_s=1)
FAILED = sandbox_child.Outcome(error="no outcome")
REFERENCE = '{"kind": "function", "name": "f", "tests": [{"args": [2], "expected": 4}]}'


@pytest.fixture(params=["bubblewrap", "landlock"])
def level(request: pytest.FixtureRequest) -> str:
    """A real level, skipped where it does not work."""
    name = str(request.param)
    if reason := why_not(name):
        pytest.skip(f"{name}: {reason}")
    return name


@pytest.fixture
def strongest() -> str:
    """The strongest level here."""
    try:
        return available_level().name
    except GrpoError as exc:
        pytest.skip(str(exc))


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    before = os.environ.get(LEVEL_VARIABLE)
    yield
    sandbox._available_level.cache_clear()
    os.environ.pop(LEVEL_VARIABLE, None)
    if before is not None:
        os.environ[LEVEL_VARIABLE] = before


def call(source: str, level: str, *args: sandbox.Json, limits: Limits = LIMITS) -> RunResult:
    """One call of `f`."""
    return call_function(source, "f", [{"args": list(args), "kwargs": {}}], limits, level=level)


def verify(program: str, reference: str = REFERENCE) -> Verdict:
    """The shipped verifier on a program."""
    return load_verifier("code", verifiers_dir())(f"```python\n{program}\n```", reference)


def test_values_come_back_in_plain_types(level: str) -> None:
    source = "def f(x):\n    print('noise')\n    return (x, [True, None, 1.5, 'é'], {'k': (2,)})"
    run = call(source, level, 7)
    assert (run.end, run.exit_code, run.damaged) == (End.EXITED, 0, None)
    assert run.outcomes[0].value == [7, [True, None, 1.5, "é"], {"k": [2]}]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{1, 2}", "set"),
        ("{1: 2}", "keys"),
        ("b'x'", "bytes"),
        ("float('nan')", "JSON compliant"),
        ("float('inf')", "JSON compliant"),
        ("object()", "object"),
        ("10 ** 5000", "digits"),
        ("(lambda: (a := [], a.append(a), a)[-1])()", "nested"),
    ],
)
def test_what_json_cannot_hold_is_an_error_of_that_call(
    strongest: str, value: str, says: str
) -> None:
    outcome = call(f"def f():\n    return {value}", strongest).outcomes[0]
    assert outcome.error is not None
    assert says in outcome.error


def test_a_program_sees_nothing_and_reaches_nobody(level: str, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.write_text("x")
    packages = Path(sys.base_prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    installed = next(iter(sorted(packages.glob("*/*.py"))), bait)
    source = """
import ctypes, os, socket, subprocess, sys
def f(paths):
    got = []
    def attempt(what, action):
        try:
            action()
        except OSError:
            return
        got.append(what)
    for path in paths:
        attempt(path, lambda: open(path).read())
    for folder in ("/", "/tmp", "/dev/shm", "/var/tmp", sys.prefix, os.getcwd()):
        attempt(f"write {folder}", lambda: open(folder + "/grpo-x", "w"))
    for make in (socket.socket, socket.socketpair, os.fork):
        attempt(make.__name__, make)
    open("/dev/null", "w").close()
    open("/dev/urandom", "rb").read(1)
    attempt("subprocess", lambda: subprocess.run(["/bin/true"]))
    attempt("kill", lambda: os.kill(1, 0))
    attempt("chmod", lambda: os.chmod(paths[0], 0o777))
    libc = ctypes.CDLL(None)
    got += [name for name in ("vfork", "unshare") if getattr(libc, name)(0x10000000) >= 0]
    return got, sorted(os.environ), os.getuid()
"""
    paths: list[sandbox.Json] = [str(bait), "/etc/passwd", "/proc/1/environ", str(installed)]
    paths.append(str(Path(sandbox.__file__)))
    outcome = call(source, level, paths).outcomes[0]
    assert outcome.error is None, outcome
    assert isinstance(outcome.value, list)
    got, environment, uid = outcome.value
    assert got == []
    assert set(environment) <= {"PYTHONHASHSEED", "MALLOC_ARENA_MAX", "PWD", "LC_CTYPE"}  # type: ignore[arg-type]
    if os.geteuid() == 0:
        assert isinstance(uid, int)
        assert uid > 65535


def test_threads_and_large_stacks_work(level: str) -> None:
    source = """
import sys, threading
def f(depth):
    sys.setrecursionlimit(depth * 2)
    threading.stack_size(64 << 20)
    def down(n):
        return n and 1 + down(n - 1)
    out = []
    threads = [threading.Thread(target=lambda: out.append(down(depth))) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    return out
"""
    assert call(source, level, 10_000).outcomes[0].value == [10_000] * 4


def test_more_memory_than_allowed_is_an_error_in_the_program(level: str) -> None:
    outcome = call("def f(n):\n    return len(bytearray(n))", level, 600 << 20).outcomes[0]
    assert outcome.error is not None
    assert "MemoryError" in outcome.error


def test_sets_have_the_same_order_in_every_run(strongest: str) -> None:
    source = "def f():\n    return list({'a', 'b', 'c', 'd', 'e', 'f', 'g'})"
    assert len({str(call(source, strongest).outcomes[0].value) for _ in range(4)}) == 1


@pytest.mark.parametrize(
    ("program", "exit_code", "stdout"),
    [
        ("print(int(input()) * 2)", 0, b"8\n"),
        ("import sys; sys.exit(3)", 3, b""),
        ("exit()", 0, b""),
        ("1 / 0", 1, b""),
        ("import ctypes; ctypes.string_at(0)", 128 + signal.SIGSEGV, b""),
    ],
)
def test_stdin_programs_and_their_exit(
    level: str, program: str, exit_code: int, stdout: bytes
) -> None:
    run = run_program(program, "4\n", LIMITS, level=level)
    assert (run.end, run.exit_code, run.stdout) == (End.EXITED, exit_code, stdout)


def test_large_input_and_output_pass_and_floods_do_not(level: str) -> None:
    echo = "import sys\nsys.stdout.write(sys.stdin.read())"
    run = run_program(echo, "x" * 3_000_000, LIMITS, level=level)
    assert (run.end, len(run.stdout)) == (End.EXITED, 3_000_000)
    flood = "import os\nwhile True:\n    os.write({}, b'x' * 65536)"
    for fd in (1, 2):
        run = run_program(flood.format(fd), "", LIMITS, level=level)
        assert run.end is End.OUTPUT
        assert len(run.stdout) < 2 * LIMITS.output_cap
    run = call("def f():\n    return 'x' * 5_000_000", level)
    assert run.end is End.OUTPUT


def test_a_spinning_program_is_over_time_whatever_it_ignores(level: str) -> None:
    spin = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert run_program(spin, "", LIMITS, level=level).end is End.TIME
    assert verify("def f(n):\n    while True: pass").score == 0.0


def test_a_sleeping_program_is_over_time(strongest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "wall_s", property(lambda self: 0.5))
    begun = time.monotonic()
    run = run_program("import time\ntime.sleep(60)", "", LIMITS, level=strongest)
    assert run.end is End.TIME
    assert time.monotonic() - begun < 30
    verdict = verify("import time\ndef f(n):\n    time.sleep(60)")
    assert (verdict.score, verdict.status) == (0.0, Status.OK)
    assert "time" in str(verdict.detail)


@pytest.mark.usefixtures("strongest")
def test_a_program_that_got_no_processor_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "wall_s", property(lambda self: 0.2))
    begun = time.monotonic()
    monkeypatch.setattr(
        sandbox_child._Budget, "waited_s", lambda self: time.monotonic() - begun + 0.2
    )
    verdict = verify("import time\ndef f(n):\n    time.sleep(60)")
    assert verdict.status is Status.TIMEOUT
    assert math.isnan(verdict.score)


@pytest.mark.parametrize("command", [["false"], ["/no/such/program"]])
@pytest.mark.usefixtures("strongest")
def test_a_sandbox_that_does_not_start_is_an_error_never_a_zero(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    available_level()  # probed before it breaks
    monkeypatch.setattr(sandbox, "command_for", lambda *_: lambda *_: command)
    for reference in (REFERENCE, '{"kind": "stdin", "tests": [{"stdin": "", "stdout": ""}]}'):
        verdict = verify("def f(n): return 2 * n", reference)
        assert verdict.status is Status.ERROR
        assert math.isnan(verdict.score)
        assert "did not start" in str(verdict.detail)


def test_expected_values_never_leave_the_parent(
    strongest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    real = sandbox_child.memory_file
    monkeypatch.setattr(
        sandbox_child, "memory_file", lambda data, name: (sent.append(data), real(data, name))[1]
    )
    reference = json.dumps(
        {
            "kind": "function",
            "name": "f",
            "tests": [{"args": ["ask"], "expected": "canary-1"}],
            "solution": "canary-2",
        }
    )
    assert verify("def f(x):\n    return x", reference).score == 0.0
    reference = '{"kind": "stdin", "tests": [{"stdin": "ask", "stdout": "canary-3"}]}'
    assert verify("print(1)", reference).score == 0.0
    assert any(b'"ask"' in data for data in sent)  # the spy sees what is sent
    assert not any(b"canary" in data for data in sent)
    assert strongest in ("bubblewrap", "landlock")


@pytest.mark.parametrize(
    "line",
    [
        'send({"call": 0, "value": 5})',  # answered twice
        'send({"call": 9, "value": 4})',  # no such call
        'send({"ready": True})',
        'send({"call": True, "value": 4})',
        "os.write(fd, b'x\\n')",
        'os.write(fd, prefix + b\'{"call": 0, "value": NaN}\\n\')',
        "os.write(fd, prefix + b'[' * 100000 + b'\\n')",
        "os.write(fd, prefix + b'{')",  # half a line
        "os.write(fd, b'x' * 6000000)",
    ],
)
def test_a_program_that_writes_results_itself_gains_nothing(strongest: str, line: str) -> None:
    program = f"""
import os, sys
def f(n):
    frame = sys._getframe()
    while "send" not in frame.f_locals:
        frame = frame.f_back
    send = frame.f_locals["send"]
    cells = dict(zip(send.__code__.co_freevars, send.__closure__))
    fd, prefix = cells["fd"].cell_contents, cells["prefix"].cell_contents
    {line}
    return 4
"""
    assert verify("def f(n):\n    return 4").score == 1.0
    verdict = verify(program)
    assert (verdict.score, verdict.status) == (0.0, Status.OK)
    assert strongest in ("bubblewrap", "landlock")


def test_a_hostile_neighbour_does_not_change_a_verdict(level: str) -> None:
    bomb = """
import os, threading, time
def f(n):
    hold = []
    while True:
        try:
            t = threading.Thread(target=time.sleep, args=(1,)); t.start(); hold.append(t)
        except RuntimeError:
            pass
        try:
            os.fork()
        except OSError:
            pass
"""
    good = """
import threading
def f(n):
    out = []
    threads = [threading.Thread(target=out.append, args=(n,)) for _ in range(20)]
    for t in threads: t.start()
    for t in threads: t.join()
    return sum(out)
"""
    with ThreadPoolExecutor(4) as executor:
        runs = list(executor.map(lambda source: call(source, level, 1), [bomb, good, bomb, good]))
    assert [run for run in runs[::2] if run.outcomes.get(0, FAILED).error is None] == []
    assert [run.outcomes[0].value for run in runs[1::2]] == [20, 20]


def test_the_program_dies_with_its_verifier(level: str) -> None:
    script = (
        "from grpo_cli.verify.sandbox import Limits, run_program\n"
        "run_program('import time\\ntime.sleep(300)', '', Limits(cpu_s=200), level="
        f"{level!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        wanted = 4 if level == "bubblewrap" else 2
        family = _wait_for(lambda: _family(parent.pid), lambda pids: len(pids) >= wanted)
    finally:
        parent.kill()
        parent.wait()
    left = _wait_for(
        lambda: [pid for pid in family if pid != parent.pid and _alive(pid)], lambda pids: not pids
    )
    assert left == []


def _wait_for(look, good):  # type: ignore[no-untyped-def]
    for _ in range(200):
        found = look()
        if good(found):
            return found
        time.sleep(0.05)
    pytest.fail(f"waited 10 s in vain: {found}")


def _family(pid: int) -> list[int]:
    pids = [pid]
    for one in pids:
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return pids


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_without_a_sandbox_it_refuses_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "why_not", lambda name: f"no {name} today")
    sandbox._available_level.cache_clear()
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    with pytest.raises(GrpoError) as caught:
        available_level()
    (problem,) = caught.value.problems
    assert problem.code == "GR212"
    assert "no bubblewrap today" in problem.message
    assert "no landlock today" in problem.message
    assert "bubblewrap" in str(problem.hint)
    assert verify("def f(n): return 4").status is Status.ERROR
    with pytest.raises(GrpoError, match="landlock does not work"):
        require_level("landlock")
    with pytest.raises(GrpoError, match="no sandbox level 'docker'"):
        require_level("docker")
    assert str(require_level("none")) == "NO SANDBOX (limits only)"
    assert verify("def f(n): return 4").score == 1.0


def test_a_weaker_level_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not("landlock"):
        pytest.skip(f"landlock: {reason}")
    monkeypatch.delenv(LEVEL_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox._available_level.cache_clear()
    found = available_level()
    assert found.name == "landlock"
    assert "bwrap is not installed" in str(found)


def test_the_probe_notices_an_open_level() -> None:
    reason = why_not("none")
    assert reason is not None, "a level without isolation passed the probe"


def test_the_seccomp_tables_name_every_call_once() -> None:
    from grpo_cli.verify import sandbox_seccomp as tables

    for column in (0, 1):
        pairs = [*tables._REFUSED.values(), *tables._EXEC.values()]
        numbers = [pair[column] for pair in pairs if pair[column] is not None]
        special = [tables._CLONE, tables._CLONE3, tables._PRLIMIT64, tables._FCNTL, tables._IOCTL]
        numbers += [pair[column] for pair in special]
        assert len(set(numbers)) == len(numbers)
        assert max(number for number in numbers if number is not None) <= tables._LAST_KNOWN


def test_no_two_runs_share_a_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a run its own user")
    uids = {sandbox_command._own_uid() for _ in range(50)}
    assert len(uids) == 50
    assert all(uid is not None and uid > 65535 for uid in uids)
