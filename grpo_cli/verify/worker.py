"""The worker process of `VerifierPool`: reads samples, writes verdicts, dies when told to.

Frames on stdin and stdout are a 4-byte big-endian length and JSON. The first frame in is the setup;
the answers are `["loaded", convention]` or `["refused", message]`, then `["ready"]` after a trial
call that pays for what the verifier imports late. Each further frame in is a list of
`[id, text, reference]`; each verdict goes out on its own, in that order, so that the parent knows
which sample is in hand when a verdict does not come. Must not import torch.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

from grpo_cli.errors import GrpoError
from grpo_cli.types import Status, Verdict
from grpo_cli.verify.load import LoadedVerifier, broken, load_source
from grpo_cli.verify.source import VerifierSource

LENGTH = struct.Struct(">I")
MAX_FRAME = 2**24
"""Longest frame from a worker, in bytes."""
_PR_SET_PDEATHSIG = 1


def frame(value: object) -> bytes:
    """A message as bytes."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return LENGTH.pack(len(data)) + data


def pack(number: int, verdict: Verdict) -> bytes:
    """The frame of one verdict; a NaN score travels as null."""
    score = None if math.isnan(verdict.score) else verdict.score
    data = frame([number, score, verdict.status, verdict.parsed, verdict.detail, verdict.elapsed_s])
    if len(data) <= MAX_FRAME:
        return data
    return pack(number, broken(f"the verdict is longer than {MAX_FRAME} bytes"))


def unpack(fields: list[object]) -> tuple[int, Verdict]:
    """What `pack` packed.

    Raises:
        ValueError: the fields are no verdict.
    """
    number, score, status, parsed, detail, elapsed_s = fields
    score = math.nan if score is None else score
    if not (
        isinstance(number, int)
        and isinstance(score, int | float)
        and isinstance(elapsed_s, int | float)
        and (parsed is None or isinstance(parsed, str))
        and (detail is None or isinstance(detail, str))
    ):
        raise ValueError("not a verdict")
    return number, Verdict(score, Status(str(status)), parsed, detail, elapsed_s)


def main() -> None:
    """Serve until stdin ends."""
    # The code of a verifier may print: only these two know the real pipes.
    source, sink = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    setup = json.loads(_read(source))
    _die_with(setup["parent"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if setup["memory"]:
        _limit(resource.RLIMIT_AS, setup["memory"])
    try:
        verifier = load_source(VerifierSource.from_json(setup["source"]))
    except GrpoError as problem:
        _write(sink, frame(["refused", problem.problems[0].message]))
        return
    _write(sink, frame(["loaded", verifier.convention]))
    if setup["trial"]:
        _trial(verifier)
    _write(sink, frame(["ready"]))
    own = os.getpid()
    while data := _read(source):
        for number, text, reference in json.loads(data):
            verdict = verifier(text, reference)
            if os.getpid() != own:
                os._exit(0)  # a fork that the verifier let run on: its verdict would be a second
            _write(sink, pack(number, verdict))


def _trial(verifier: LoadedVerifier) -> None:
    """A verdict that nobody reads."""
    text = "1"
    if verifier.answer is not None:
        try:
            text = str(verifier.answer("1"))
        except Exception:  # "1" need not be a reference that this verifier can use
            text = "1"
    verifier(text, "1")


def _read(source: BinaryIO) -> bytes:
    """The next frame, or nothing when the parent has closed the pipe."""
    head = source.read(LENGTH.size)
    return source.read(*LENGTH.unpack(head)) if len(head) == LENGTH.size else b""


def _write(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
