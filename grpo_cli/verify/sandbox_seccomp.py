"""The system calls that a candidate program may not make, as a BPF program for Linux seccomp.

The filter is a list of refusals: a refused call fails with EPERM and the program goes on. Calls
that are newer than the list fail with ENOSYS, which is what an older kernel would say. What is
refused: making processes (threads are allowed), sockets of every kind, signals, tracing and other
processes' memory, mounts and namespaces, kernel keys, BPF, io_uring, userfaultfd, shared memory and
queues that outlive the process, memory files (they would escape the memory limit), changing the
metadata of files, scheduling, and typing into a terminal.

Numbers are from the kernel's `asm/unistd_64.h` (x86-64) and `asm-generic/unistd.h` (aarch64).
Standard library only; no system library is needed.
"""

from __future__ import annotations

import platform
import struct

_LAST_KNOWN = 451
_EPERM, _ENOSYS = 1, 38
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86-64, aarch64); None where that machine does not have the call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None),
    "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "connect": (42, 203),
    "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242), "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "acct": (163, 89), "syslog": (103, 116), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "vhangup": (153, 58),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "personality": (135, 92),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "fanotify_init": (300, 262), "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    "set_mempolicy": (238, 237),
}  # fmt: skip
_EXEC: dict[str, tuple[int | None, int | None]] = {"execve": (59, 221), "execveat": (322, 281)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_CLONE_THREAD = 0x10000
_PRLIMIT64 = (302, 261)
# F_SETOWN, F_SETSIG, F_SETOWN_EX (signals to others); F_SETPIPE_SZ (kernel memory); leases.
_FCNTL, _FCNTL_REFUSED = (72, 25), (8, 10, 15, 1024, 1026, 1031)
# TIOCSTI, TIOCLINUX, TIOCSETD, TIOCSCTTY (typing into terminals); FIOSETOWN, SIOCSPGRP (signals).
_IOCTL, _IOCTL_REFUSED = (16, 29), (0x5412, 0x541C, 0x5423, 0x540E, 0x8901, 0x8902)

# BPF: op codes and the offsets in `struct seccomp_data` (little endian, low words of arguments).
_LOAD, _JEQ, _JGT, _JSET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_AT_NR, _AT_ARCH, _AT_ARG0, _AT_ARG1 = 0, 4, 16, 24
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def machine_supported() -> bool:
    """True when there is a table for this machine (x86-64 or aarch64)."""
    return platform.machine() in _ARCHES


def seccomp_filter(*, allow_exec: bool) -> bytes:
    """The BPF program as an array of `struct sock_filter` (8 bytes each).

    `allow_exec` is needed when another program (bubblewrap) installs the filter and then starts
    Python. Check `machine_supported` first.
    """
    column = list(_ARCHES).index(platform.machine())
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _AT_ARCH),
        (_JEQ, 1, 0, _ARCHES[platform.machine()]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NR),
        # Also true for the x32 numbers of x86-64, which have bit 30 set.
        (_JGT, 0, 1, _LAST_KNOWN),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        # The C library falls back to clone, whose flags a filter can read.
        (_JEQ, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for numbers in {**_REFUSED, **({} if allow_exec else _EXEC)}.values():
        if (number := numbers[column]) is not None:
            code += [(_JEQ, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    # Each block below starts with the call's number loaded, and leaves for ALLOW or EPERM.
    refuse = (_RETURN, 0, 0, _ERRNO | _EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    code += [(_JEQ, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _AT_ARG0)]
    code += [(_JSET, 1, 0, _CLONE_THREAD), refuse, allow]
    code += [(_JEQ, 0, 4, _PRLIMIT64[column]), (_LOAD, 0, 0, _AT_ARG0), (_JEQ, 1, 0, 0)]
    code += [refuse, allow]
    for call, values in ((_FCNTL, _FCNTL_REFUSED), (_IOCTL, _IOCTL_REFUSED)):
        code += [(_JEQ, 0, 2 * len(values) + 2, call[column]), (_LOAD, 0, 0, _AT_ARG1)]
        for value in values:
            code += [(_JEQ, 0, 1, value), refuse]
        code.append(allow)
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *step) for step in code)
