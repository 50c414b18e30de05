"""22 programs that try to get out of the sandbox. To be run by `attacks_outer` and by nothing else.

Each reads one line of JSON (where the bait is) and prints `ESCAPED ...` when it thinks that it got
out; what counts is mostly what the outer process sees: its secret in the output, a connection
made, a file written, a process dead or left alive. All are bounded: at most 300 forks, 2 GiB of
memory, 300 MB of disk and loopback; they touch only bait that the outer process made for them.
"""

from __future__ import annotations

MAX_FORKS = 300
MAX_MEMORY = 2 << 30
MAX_FILE = 300_000_000

_HEAD = """
import ctypes, json, os, sys, time
bait = json.loads(sys.stdin.readline())
libc = ctypes.CDLL(None, use_errno=True)
def escaped(*what):
    print("ESCAPED", *what, flush=True)
"""

_READ_SECRET = """
print(open(bait["secret_file"]).read())
"""

_OTHER_ENVIRON = """
for entry in os.listdir("/proc"):
    if entry.isdigit() and int(entry) != os.getpid():
        try:
            print(open(f"/proc/{entry}/environ", "rb").read())
        except OSError:
            pass
"""

_INHERITED_FD = """
for fd in range(3, 256):
    try:
        print(os.pread(fd, 4096, 0))
    except OSError:
        pass
"""

_CONNECT_TCP = """
import socket
with socket.create_connection(("127.0.0.1", bait["port"]), timeout=1) as s:
    s.sendall(b"hello")
"""

_CONNECT_ABSTRACT = """
import socket
with socket.socket(socket.AF_UNIX) as s:
    s.connect("\\0" + bait["abstract"])
    s.sendall(b"hello")
"""

_PTRACE = """
# PTRACE_SEIZE, which does not stop the target.
if libc.ptrace(0x4206, ctypes.c_long(bait["sibling"]), None, None) == 0:
    escaped("tracing a sibling")
"""

_OTHER_MEMORY = """
address, size = bait["address"], bait["size"]
try:
    fd = os.open(f"/proc/{bait['sibling']}/mem", os.O_RDONLY)
    print(os.pread(fd, size, address))
except OSError as error:
    print(error)
buffer = ctypes.create_string_buffer(size)
class Vec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
local, remote = Vec(ctypes.addressof(buffer), size), Vec(address, size)
libc.process_vm_readv(
    bait["sibling"], ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote),
    ctypes.c_ulong(1), ctypes.c_ulong(0),
)
print(buffer.raw)
"""

_FORKS = f"""
children = []
try:
    for _ in range({MAX_FORKS}):
        pid = os.fork()
        if pid == 0:
            time.sleep(0.5)
            os._exit(0)
        children.append(pid)
finally:
    for pid in children:
        os.waitpid(pid, 0)
    print(len(children), "forks")
    if len(children) == {MAX_FORKS}:
        escaped(len(children), "processes")
"""

_MEMORY = f"""
blocks, step = [], 64 << 20
while len(blocks) * step < {MAX_MEMORY}:
    blocks.append(b"x" * step)
escaped("2 GiB in one process")
"""

_MEMORY_SUM = f"""
step, share = 16 << 20, {MAX_MEMORY} // 5
read, write = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.close(read)
        blocks = []
        try:
            while len(blocks) * step < share:
                blocks.append(b"x" * step)
        except MemoryError:
            pass
        os.write(write, b"%d\\n" % (len(blocks) * step))
        time.sleep(0.5)
        os._exit(0)
os.close(write)
total = sum(map(int, open(read).read().split()))
print(total, "bytes at once")
if total > 1 << 30:
    escaped(total, "bytes over four processes")
"""

_DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        time.sleep(20)
    os._exit(0)
"""

_FLOOD = """
line = b"x" * 65535 + b"\\n"
for _ in range(200_000_000 // len(line)):
    os.write(1, line)
"""

_BIG_FILE = f"""
with open(bait["outside"] + "/big", "wb") as file:
    for _ in range({MAX_FILE} // 1_000_000):
        file.write(b"x" * 1_000_000)
"""

_SPIN = """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
while True:
    pass
"""

_USER_NAMESPACE = """
if libc.unshare(0x10000000) == 0:
    escaped("a user namespace")
"""

_MOUNT = """
def mount():
    return libc.mount(b"none", bait["outside"].encode(), b"tmpfs", ctypes.c_ulong(0), None) == 0
if mount() or (libc.unshare(0x10020000) == 0 and mount()):
    escaped("a mount")
"""

_KEYS = """
import platform
keyctl, add_key = (250, 248) if platform.machine() == "x86_64" else (219, 217)
# -2: the keyring of this process, which goes with it.
key = libc.syscall(add_key, b"user", b"grpo-probe", b"x", ctypes.c_size_t(1), -2)
if key > 0 or libc.syscall(keyctl, 0, -2, 1) > 0:
    escaped("a kernel key")
"""

_TYPE = """
import fcntl
for path in ("/dev/tty", "/dev/stdin", "/dev/stdout", "/dev/stderr"):
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, 0x5412, b"x")
        escaped("typed into", path)
    except OSError as error:
        print(path, error)
"""

_PROGRAMS: dict[str, str] = {
    "read /etc/passwd": 'if "root:" in open("/etc/passwd").read():\n    escaped("/etc/passwd")\n',
    "read a file that all may read": _READ_SECRET,
    "write outside the work folder": 'open(bait["outside"] + "/written", "w").write("x")\n',
    "read another process's environment": _OTHER_ENVIRON,
    "find a secret in its own environment": "print(dict(os.environ))\n",
    "read a descriptor left open": _INHERITED_FD,
    "connect to loopback": _CONNECT_TCP,
    "connect to an abstract socket": _CONNECT_ABSTRACT,
    "kill a sibling": 'os.kill(bait["sibling"], 9)\n',
    "trace a sibling": _PTRACE,
    "read a sibling's memory": _OTHER_MEMORY,
    "300 forks": _FORKS,
    "2 GiB in one process": _MEMORY,
    "2 GiB over four processes": _MEMORY_SUM,
    "leave a daemon behind": _DAEMON,
    "200 MB of output": _FLOOD,
    "a file of 300 MB": _BIG_FILE,
    "ignore signals and spin": _SPIN,
    "make a user namespace": _USER_NAMESPACE,
    "mount a file system": _MOUNT,
    "add a kernel key": _KEYS,
    "type into the terminal": _TYPE,
}
ESCAPES: dict[str, str] = {name: _HEAD + body for name, body in _PROGRAMS.items()}
"""name: program, in the order they are run."""
