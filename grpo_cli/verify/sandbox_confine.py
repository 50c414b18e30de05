"""Confines this process with landlock and seccomp, then runs the launcher in it.

Started by absolute path, without the package: `python ... sandbox_confine.py CONFINE SETUP`.
CONFINE is JSON: {"launcher": path, "filter": fd, "parent": pid, "uid": int | null, "keep_read":
bool, "dirs": [...], "hidden": [...], "files": [...]}; SETUP is the launcher's own argument. After
this the process may read `files`, `dirs` without what is in `hidden`, and /dev/urandom, write
/dev/null, and nothing else of the file system; it has another user id when it was root; and it ends
with its parent.

Standard library only. The calls are from Linux 5.13 (landlock ABI 1); what later ABIs add (cutting
files, TCP, device controls, abstract sockets and signals) is taken where the kernel has it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on x86-64 and aarch64
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 8, 22, 38
_CAP_DAC_READ_SEARCH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, what: str, pointer: object = 0) -> None:
    _check(
        _libc.prctl(
            ctypes.c_int(option),
            ctypes.c_ulong(value),
            pointer,
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        ),
        what,
    )


def _rules(folder: str, hidden: list[str]) -> list[tuple[str, int]]:
    """[path, rights] that open a folder but for `hidden` ones: landlock cannot take back a part."""
    if not any(path.startswith(folder + "/") for path in hidden):
        return [(folder, _EXECUTE | _READ_FILE | _READ_DIR)]
    rules = [(folder, _READ_DIR)]  # names only; Python lists its folders to import
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.path in hidden:
                continue
            if entry.is_dir(follow_symlinks=False):
                rules += _rules(entry.path, hidden)
            elif entry.is_file():
                rules.append((entry.path, _EXECUTE | _READ_FILE))
    return rules


def _ruleset(dirs: list[str], hidden: list[str], files: list[str]) -> int:
    """A landlock ruleset (fd) that refuses everything but reading these paths."""
    abi = _check(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1), "landlock is not available")
    handled = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        handled |= (abi >= since) << bit
    tcp, scoped = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)
    attr = struct.pack("=QQQ", handled, tcp, scoped)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = _check(
        _libc.syscall(_CREATE, attr, ctypes.c_size_t(len(attr)), 0), "landlock_create_ruleset"
    )
    rules = [rule for folder in dirs for rule in _rules(folder, hidden)]
    rules += [(path, _EXECUTE | _READ_FILE) for path in files]
    rules += [("/dev/null", _READ_FILE | _WRITE_FILE), ("/dev/urandom", _READ_FILE)]
    for path, access in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access, fd)
        _check(_libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(fd)
    return ruleset


def _become(uid: int, keep_read: bool) -> None:
    """Another user for good. With `keep_read` the one right that is kept is to look anything up.

    That right is for an interpreter in a folder only root can enter; landlock still decides what
    may be opened.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if keep_read:
        _prctl(_PR_SET_KEEPCAPS, 1, "PR_SET_KEEPCAPS")
    os.setresuid(uid, uid, uid)
    bits = 1 << _CAP_DAC_READ_SEARCH if keep_read else 0
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(_libc.capset(header, struct.pack("=6I", bits, bits, 0, 0, 0, 0)), "capset")


def confine(confine: dict) -> None:  # type: ignore[type-arg]
    """Give up everything; raises OSError when the kernel will not."""
    with open(confine["filter"], "rb") as file:
        code = ctypes.create_string_buffer(file.read())
    ruleset = _ruleset(confine["dirs"], confine["hidden"], confine["files"])
    if confine["uid"] is not None:
        _become(confine["uid"], confine["keep_read"])
    # After the change of user, which clears it.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")
    if os.getppid() != confine["parent"]:
        os._exit(1)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")
    _check(_libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program((len(code) - 1) // 8, ctypes.addressof(code))
    _prctl(_PR_SET_SECCOMP, 2, "PR_SET_SECCOMP", ctypes.byref(program))


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    with open(options["launcher"], "rb") as file:
        launcher = compile(file.read(), options["launcher"], "exec")
    del sys.argv[1]
    confine(options)
    exec(launcher, {"__name__": "__main__", "__builtins__": __builtins__})
