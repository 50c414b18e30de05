"""Runs one confined child from the parent's side: pipes, caps, the wall clock and the kill.

Nothing that comes from the child is trusted: every stream has a cap and is read without blocking,
the result stream must be whole lines that start with this run's nonce, and the child is killed
when the clock runs out whatever it does about signals.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_START_LIMIT_S = 20.0
_DRAIN_LIMIT_S = 2.0
_PATIENCE = 5
"""How many times its wall limit a program may take when it waits for a processor."""
_STDERR_KEPT = 2000


class End(StrEnum):
    """How a run ended. Only `NOT_STARTED` and `STARVED` are not the program's own doing."""

    EXITED = "exited"
    TIME = "time"
    OUTPUT = "output"
    NOT_STARTED = "not_started"
    STARVED = "starved"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use.

    `cpu_s` is processor time, so that a busy machine does not turn a right program into a slow one;
    `wall_s` follows from it. `memory_mb` is address space of the one process there can be. The two
    caps are in bytes: `output_cap` for each of stdout and stderr, `result_cap` for the result pipe.

    Example:
        Limits(cpu_s=2.0)  # killed after 2 s of work, or after 6 s on the wall
    """

    cpu_s: float = 2.0
    memory_mb: int = 512
    threads: int = 32
    output_cap: int = 8 << 20
    result_cap: int = 4 << 20

    @property
    def wall_s(self) -> float:
        """Seconds on the wall, without those spent waiting for a processor: for sleepers."""
        return 2.0 * self.cpu_s + 2.0

    @property
    def kernel_cpu_s(self) -> int:
        """The kernel's limit in seconds, a backstop beside the exact count."""
        return 2 * math.ceil(self.cpu_s) + 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call of the candidate's function gave: a JSON value, or an error's text."""

    value: Json = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run. `exit_code` is 128 + n for signal n; `outcomes` has one entry per call answered.

    `damaged` says what is wrong with the result stream, if anything: then no outcome counts.
    """

    end: End
    exit_code: int | None
    stdout: bytes
    stderr_tail: str
    outcomes: Mapping[int, Outcome]
    damaged: str | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """What the child is told: a program and its arguments. Never what they should give.

    `kind` is "function" or "stdin".
    """

    kind: str
    source: str
    name: str = ""
    calls: Sequence[Mapping[str, Json]] = ()
    stdin: str = ""


def memory_file(data: bytes, name: str) -> int:
    """A descriptor open for reading a copy of `data` that nobody can change."""
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(
            fd,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE,
        )
    except BaseException:
        os.close(fd)
        raise
    return fd


def run_child(
    command: Callable[[int, int, int], Sequence[str]],
    job: Job,
    limits: Limits,
    seccomp: bytes,
    environment: Mapping[str, str],
) -> RunResult:
    """Start `command(job_fd, result_fd, filter_fd)`, see it through and collect what it said.

    Never raises for what the child does. An operating-system error while starting it is
    `End.NOT_STARTED` with the text in `stderr_tail`.
    """
    nonce = secrets.token_hex(16)
    message = {
        "nonce": nonce, "kind": job.kind, "source": job.source, "name": job.name,
        "calls": list(job.calls),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        try:
            job_fd = keep(memory_file(json.dumps(message).encode("ascii"), "job"))
            filter_fd = keep(memory_file(seccomp, "filter"))
            stdin_fd = keep(memory_file(job.stdin.encode("utf-8", "surrogatepass"), "stdin"))
            result_read, result_write = os.pipe()
            keep(result_read)
            process = subprocess.Popen(
                list(command(job_fd, result_write, filter_fd)),
                stdin=stdin_fd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(job_fd, result_write, filter_fd),
                env=dict(environment),
                cwd="/",
                start_new_session=True,
            )
        except OSError as exc:
            return RunResult(End.NOT_STARTED, None, b"", str(exc), {}, None, 0.0)
        finally:
            with contextlib.suppress(OSError, UnboundLocalError):
                os.close(result_write)
        return _Watch(process, result_read, nonce, len(job.calls), limits).follow()


class _Budget:
    """A program's time, from the moment its limits are on.

    The kernel's own limit on processor time counts clock ticks, and on a busy machine charges a
    program for ticks in which others ran (seen: 2.0 s for 1.6 s of work). So it is only a backstop,
    and the exact count that the scheduler keeps is read from here.
    """

    def __init__(self, child_pid: int, limits: Limits) -> None:
        self.limits = limits
        pids = [child_pid]
        for pid in pids:  # grows: bubblewrap's child, and its child
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        self.pid = pids[-1]
        self.begun = time.monotonic()
        self.at_start_s = self._cpu_s()

    def spent(self) -> End | None:
        """How the time ran out, or None while there is some left."""
        elapsed_s = time.monotonic() - self.begun
        if self._cpu_left_s() <= 0 or elapsed_s - self.waited_s() >= self.limits.wall_s:
            return End.TIME
        return End.STARVED if elapsed_s > _PATIENCE * self.limits.wall_s else None

    def next_look_s(self) -> float:
        """The shortest time in which one thread could use up what is left."""
        elapsed_s = time.monotonic() - self.begun
        wall_left_s = self.limits.wall_s - elapsed_s + self.waited_s()
        return max(0.005, min(self._cpu_left_s(), wall_left_s))

    def waited_s(self) -> float:
        """Seconds the program was ready to run and had no processor; 0 if unknown."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _cpu_left_s(self) -> float:
        return self.limits.cpu_s - self._cpu_s() + self.at_start_s

    def _cpu_s(self) -> float:
        """Processor time of the program so far, over all its threads; 0 when it is gone."""
        try:
            # The clock of another process, as clock_getcpuclockid(3) computes it.
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0


class _Watch:
    """The reading side of one child."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        result_fd: int,
        nonce: str,
        num_calls: int,
        limits: Limits,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.limits = limits
        self.nonce = nonce
        self.num_calls = num_calls
        self.result_fd = result_fd
        self.out_fd, self.err_fd = process.stdout.fileno(), process.stderr.fileno()
        self.streams = {fd: bytearray() for fd in (self.out_fd, self.err_fd, result_fd)}
        self.seen = dict.fromkeys(self.streams, 0)
        self.caps = {
            self.out_fd: limits.output_cap,
            self.err_fd: limits.output_cap,
            result_fd: limits.result_cap,
        }

    def follow(self) -> RunResult:
        """Read until the child is gone or must go."""
        begun = time.monotonic()
        pidfd = os.pidfd_open(self.process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for fd in (*self.streams, pidfd):
                    os.set_blocking(fd, False)
                    selector.register(fd, selectors.EVENT_READ)
                end = self._follow(selector, pidfd, begun + _START_LIMIT_S)
        finally:
            exit_code = self._kill()
            os.close(pidfd)
        return self._result(end, exit_code, time.monotonic() - begun)

    def _follow(self, selector: selectors.BaseSelector, pidfd: int, start_by: float) -> End:
        budget: _Budget | None = None
        exited = False
        while True:
            if exited:
                # A left-over process may hold the pipes open; it does not get to wait.
                patience_s = _DRAIN_LIMIT_S
            elif budget is None:
                patience_s = start_by - time.monotonic()
                if patience_s <= 0:
                    return End.NOT_STARTED
            elif end := budget.spent():
                return end
            else:
                patience_s = budget.next_look_s()
            events = selector.select(patience_s)
            if exited and not events:
                return End.EXITED
            for key, _ in events:
                if key.fd == pidfd:
                    exited = True
                    selector.unregister(pidfd)
                elif not self._read(key.fd):
                    selector.unregister(key.fd)
            if any(self.seen[fd] > self.caps[fd] for fd in self.streams):
                return End.OUTPUT
            if budget is None and b"\n" in self.streams[self.result_fd]:
                budget = _Budget(self.process.pid, self.limits)
            if exited and not selector.get_map():
                return End.EXITED

    def _read(self, fd: int) -> bool:
        """Take what is there; False at the end of the stream."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        self.seen[fd] += len(data)
        self.streams[fd] += data
        if fd == self.err_fd:
            del self.streams[fd][:-_STDERR_KEPT]
        return bool(data)

    def _kill(self) -> int | None:
        """Kill the child's whole group, wait for it, and give its exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return 128 - code if code < 0 else code

    def _result(self, end: End, exit_code: int | None, wall_s: float) -> RunResult:
        stderr = self.streams[self.err_fd].decode("utf-8", "replace")
        first, _, rest = bytes(self.streams[self.result_fd]).partition(b"\n")
        if first != f'{self.nonce} {{"ready": true}}'.encode():
            return RunResult(End.NOT_STARTED, exit_code, b"", stderr, {}, None, wall_s)
        # The kernel warns at the limit of processor time and kills a second later.
        if end is End.EXITED and exit_code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):
            end = End.TIME
        outcomes, damaged = self._outcomes(rest)
        stdout = bytes(self.streams[self.out_fd])
        return RunResult(end, exit_code, stdout, stderr, outcomes, damaged, wall_s)

    def _outcomes(self, data: bytes) -> tuple[dict[int, Outcome], str | None]:
        """The outcomes in the result lines, or what is wrong with the lines."""
        outcomes: dict[int, Outcome] = {}
        *lines, last = data.split(b"\n")
        if last:
            return {}, "the result stream ends in the middle of a line"
        prefix = self.nonce.encode() + b" "
        for line in lines:
            if not line.startswith(prefix):
                return {}, "something else was written to the result stream"
            try:
                message = json.loads(line[len(prefix) :], parse_constant=_refuse_constant)
                index = message["call"]
                outcome = (
                    Outcome(error=str(message["error"]))
                    if "error" in message
                    else Outcome(value=message["value"])
                )
            except (ValueError, TypeError, KeyError, RecursionError):
                return {}, "the result stream holds something that is not a result"
            if type(index) is not int or index in outcomes or not 0 <= index < self.num_calls:
                return {}, "the result stream answers a call that was not made, or one twice"
            outcomes[index] = outcome
        return outcomes, None


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
