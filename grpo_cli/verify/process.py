"""The parent's side of one worker process: pipes that never block, its state, its end."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import IO

from grpo_cli.types import Verdict
from grpo_cli.verify.source import VerifierSource
from grpo_cli.verify.worker import LENGTH, MAX_FRAME, frame, unpack

Sample = tuple[int, str, str]
"""Number in the batch, text, reference."""

_READ = 2**16
_READS = 64
"""Most reads of a pipe in one go: a worker that prints without end must not keep the parent."""
_TAIL = 2000
"""Bytes of a worker's stderr that are kept."""
# -P: no file of the working directory may stand in for a module of the standard library.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from grpo_cli.verify.worker import main; main()"
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class State(Enum):
    """What a worker is doing."""

    LOADING = "loading"
    TRIAL = "trial"
    READY = "ready"


class Worker:
    """One worker process, started at once. Must be ended by `kill`."""

    def __init__(
        self, source: VerifierSource, memory_bytes: int | None, hash_seed: int, trial: bool
    ) -> None:
        env = {**dict.fromkeys(_THREADS, "1"), **os.environ, "PYTHONHASHSEED": str(hash_seed)}
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            # A group of its own, to be killed with whatever the verifier started, and out of reach
            # of the terminal's Ctrl-C.
            start_new_session=True,
        )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin: IO[bytes] = process.stdin
        self._stdout: IO[bytes] = process.stdout
        self._stderr: IO[bytes] | None = process.stderr
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._outgoing = bytearray(
            frame(
                {
                    "source": source.to_json(),
                    "memory": memory_bytes,
                    "trial": trial,
                    "parent": os.getpid(),
                }
            )
        )
        self._incoming = bytearray()
        self._tail = b""
        self._broke_rules = False
        self.state = State.LOADING
        self.since = time.monotonic()
        """When the state, or the sample in hand, began."""
        self.pending: deque[Sample] = deque()
        """Samples without a verdict yet; the first one is in hand."""
        self.ended = False
        self.refused: str | None = None
        """Why it cannot load the verifier."""

    @property
    def idle(self) -> bool:
        """Whether it waits for samples."""
        return self.state is State.READY and not self.pending and not self.ended

    def send(self, samples: Sequence[Sample]) -> None:
        """Queue samples; `pump` writes them."""
        self.pending.extend(samples)
        self._outgoing += frame(samples)
        self.since = time.monotonic()

    def register(self, selector: selectors.BaseSelector) -> None:
        """Wake the selector when there is something to pump."""
        selector.register(self._stdout, selectors.EVENT_READ)
        if self._stderr:
            selector.register(self._stderr, selectors.EVENT_READ)
        if self._outgoing:
            selector.register(self._stdin, selectors.EVENT_WRITE)

    def pump(self) -> list[tuple[int, Verdict]]:
        """Write and read what can be without waiting; the verdicts that came.

        Sets `ended` when the process is gone or broke the protocol, after its last verdict.
        """
        gone = self._process.poll() is not None  # asked first: what it wrote is read below
        self._write()
        closed, data = _drain(self._stdout)
        self._incoming += data
        if self._stderr:
            no_more, data = _drain(self._stderr)
            self._tail = (self._tail + data)[-_TAIL:]
            if no_more:
                self._stderr = None
        try:
            return list(self._parse())
        except (ValueError, TypeError, IndexError, RecursionError):
            self._broke_rules = True
            return []
        finally:
            self.ended = self.ended or gone or closed or self._broke_rules

    def kill(self) -> None:
        """End the process and everything in its group; the pipes are closed."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._stdin, self._stdout, self._process.stderr):
            if pipe:
                with suppress(OSError):
                    pipe.close()

    def cause(self) -> str:
        """Why it ended, for people: a signal or an exit code."""
        if self._broke_rules:
            return "it wrote what is not a verdict"
        try:
            # Its pipes close a moment before it is gone.
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if code >= 0:
            return f"exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"{name} (out of memory?)" if name == "SIGKILL" else name

    def last_words(self) -> str:
        """The last line of its stderr, or nothing."""
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _write(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._stdin.fileno(), self._outgoing[:_READ])]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # it is gone; reading finds out how

    def _parse(self) -> list[tuple[int, Verdict]]:
        found: list[tuple[int, Verdict]] = []
        at, size = 0, LENGTH.size
        while len(self._incoming) - at >= size:
            (length,) = LENGTH.unpack_from(self._incoming, at)
            if length > MAX_FRAME:
                self._broke_rules = True
                break
            if len(self._incoming) - at - size < length:
                break
            message = json.loads(self._incoming[at + size : at + size + length])
            at += size + length
            self.since = time.monotonic()
            if self.state is State.READY:
                number, verdict = unpack(message)
                if not self.pending or self.pending[0][0] != number:
                    raise ValueError("a verdict on another sample")
                self.pending.popleft()
                found.append((number, verdict))
            elif message[0] == "refused":
                self.refused = str(message[1])
            else:
                self.state = {"loaded": State.TRIAL, "ready": State.READY}[message[0]]
        del self._incoming[:at]
        return found


def _drain(pipe: IO[bytes]) -> tuple[bool, bytes]:
    """Whether the pipe is at its end, and what could be read."""
    parts: list[bytes] = []
    try:
        for _ in range(_READS):
            part = os.read(pipe.fileno(), _READ)
            if not part:
                return True, b"".join(parts)
            parts.append(part)
    except BlockingIOError:
        pass
    return False, b"".join(parts)
