"""The outer process of the escape attempts: lays out bait, runs each attempt, looks what happened.

Run by `attacks` in private mount, PID, network and IPC namespaces, never without: `python -m
grpo_cli.verify.attacks_outer LEVEL FOLDER MNT_NS PID_NS`, where the last two are the caller's
namespaces. It stops at once when it shares either of them. Prints one JSON list of
[name, contained, detail].

LEVEL is a sandbox level or `bare`: a plain child process without any limit, by which a test can
show that the attempts do get out when nothing holds them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from grpo_cli.verify.attacks_escape import ESCAPES, MAX_FILE
from grpo_cli.verify.sandbox import End, Limits, RunResult, run_program

_LIMITS = Limits(cpu_s=1.0)
_BARE_LIMIT_S = 8.0
_SETTLE_S = 0.5
# Keeps the secret in its environment and at a known address.
_SIBLING = """
import ctypes, os, sys, time
secret = ctypes.create_string_buffer(os.environ["GRPO_SIBLING"].encode())
print(ctypes.addressof(secret), flush=True)
time.sleep(600)
"""


class _Bait:
    """What an attempt may find, all in one private folder and this network namespace."""

    def __init__(self, folder: Path) -> None:
        # The file system of the folder is a private one in memory: nothing reaches the disk.
        _mount(b"none", bytes(folder), b"tmpfs", b"size=700m,mode=755")
        self.secret = secrets.token_hex(16)
        self.secret_file, self.outside = folder / "secret", folder / "outside"
        self.secret_file.write_text(self.secret)
        self.secret_file.chmod(0o644)
        self.outside.mkdir()
        self.outside.chmod(0o777)
        os.environ["GRPO_TOKEN"] = self.secret
        self.open_fd = os.open(self.secret_file, os.O_RDONLY)
        os.set_inheritable(self.open_fd, True)
        _loopback_up()
        self.connections = 0
        self.abstract = f"grpo-{secrets.token_hex(8)}"
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = tcp.getsockname()[1]
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\0" + self.abstract)
        unix.listen()
        for server in (tcp, unix):
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        self.sibling = self._start_sibling()

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            self.connections += 1
            connection.close()

    def _start_sibling(self) -> subprocess.Popen[str]:
        sibling = subprocess.Popen(
            [sys.executable, "-c", _SIBLING],
            stdout=subprocess.PIPE,
            text=True,
            env={"GRPO_SIBLING": self.secret},
        )
        assert sibling.stdout is not None
        self.address = int(sibling.stdout.readline())
        return sibling

    def renew(self) -> None:
        """As it was, after an attempt."""
        self.connections = 0
        for path in self.outside.iterdir():
            path.unlink()
        if self.sibling.poll() is not None:
            self.sibling = self._start_sibling()

    def as_json(self) -> str:
        return json.dumps(
            {
                "secret_file": str(self.secret_file),
                "outside": str(self.outside),
                "port": self.port,
                "abstract": self.abstract,
                "sibling": self.sibling.pid,
                "address": self.address,
                "size": len(self.secret),
            }
        )


def _attempt(program: str, bait: _Bait, level: str) -> tuple[bool, str]:
    """(contained, what was seen) of one attempt."""
    before = _processes()
    begun = time.monotonic()
    if level == "bare":
        run = _run_bare(program, bait.as_json())
    else:
        run = run_program(program, bait.as_json() + "\n", _LIMITS, level=level)
    wall_s = time.monotonic() - begun
    settled_by = time.monotonic() + _SETTLE_S
    while (left_over := _processes() - before) and time.monotonic() < settled_by:
        time.sleep(0.02)
    text = run.stdout[:200_000].decode("utf-8", "replace")
    seen = []
    if run.end is End.NOT_STARTED:
        seen.append(f"the sandbox did not start: {run.stderr_tail.strip()[-200:]}")
    if bait.secret in text:
        seen.append("it read the secret")
    seen += [line[len("ESCAPED ") :] for line in text.splitlines() if line.startswith("ESCAPED ")]
    if bait.connections:
        seen.append("it connected")
    for path in sorted(bait.outside.iterdir()):
        size = path.stat().st_size
        if path.name != "big" or size >= MAX_FILE:
            seen.append(f"it wrote {size} bytes outside")
    if bait.sibling.poll() is not None:
        seen.append("it killed a sibling")
    if left_over:
        seen.append(f"it left {len(left_over)} processes behind")
    if len(run.stdout) > 2 * _LIMITS.output_cap:
        seen.append(f"it put out {len(run.stdout)} bytes")
    if wall_s > _LIMITS.wall_s + 5:
        seen.append(f"it ran for {wall_s:.0f} s")
    for pid in left_over:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap(bait.sibling.pid)
    bait.renew()
    if seen:
        return False, "; ".join(seen)
    last = (run.stderr_tail.strip() or text.strip() or "nothing").splitlines()[-1]
    return True, f"{run.end.value}: {last}"[:200]


def _run_bare(program: str, stdin: str) -> RunResult:
    """A child process with this one's environment and descriptors, and no limit but time."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,
    )
    end = End.EXITED
    try:
        out, err = process.communicate(stdin.encode() + b"\n", timeout=_BARE_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        end = End.TIME
    text = err.decode("utf-8", "replace")
    return RunResult(end, process.returncode, out, text, {}, None, 0.0)


def _processes() -> set[int]:
    """Live processes of this PID namespace, without the dead that wait to be reaped."""
    alive = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    alive.add(int(entry))
    return alive


def _reap(keep: int) -> None:
    """Collect the dead that fell to this process, the first of its namespace."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != keep:
            with contextlib.suppress(OSError):
                os.waitpid(int(entry), os.WNOHANG)


def _mount(source: bytes, target: bytes, kind: bytes, data: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, target, kind, ctypes.c_ulong(0), data) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount on {target.decode()}")


def _loopback_up() -> None:
    """The private network namespace has its loopback down at first."""
    up_and_running = 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        fcntl.ioctl(link, 0x8914, struct.pack("16sH14x", b"lo", up_and_running))


def main(level: str, folder: str, mount_namespace: str, pid_namespace: str) -> None:
    """Run the attempts and print what came of them."""
    own = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid")]
    if own[0] == mount_namespace or own[1] == pid_namespace or os.getpid() != 1:
        raise SystemExit("not in private namespaces: the escape attempts are not run")
    bait = _Bait(Path(folder))
    rows = []
    for name, program in ESCAPES.items():
        contained, detail = _attempt(program, bait, level)
        rows.append([name, contained, detail])
    sys.stdout.write(json.dumps(rows) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:5])
