"""What runs inside the sandbox: sets the limits, then runs one candidate program.

Started by absolute path, without the package: `python -P -s -S -B sandbox_launch.py SETUP`. SETUP
is JSON: {"job": fd, "result": fd, "uid": int | null, "tie": bool, "rlimits": [[resource, soft,
hard], ...]}. The job, read from its file, is JSON: {"nonce", "kind": "function" | "stdin",
"source", "name", "calls": [{"args", "kwargs"}, ...]}. It holds no expected value.

Everything here after the first line of the job is known to the candidate, which shares this
process and may patch any of it. All it can gain is to send some other value: it must still send
the right one, and that is not here. Lines on the result pipe are `NONCE JSON\n`: first
{"ready": true}, sent when all limits are on, then {"call": i, "value": v} or, when it failed,
{"call": i, "error": text}.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import types

_MAX_DEPTH = 100


def _plain(value: object, depth: int = 0) -> object:
    """The value in JSON's own types: a tuple becomes a list; what JSON cannot say is an error."""
    if depth > _MAX_DEPTH:
        raise TypeError(f"the result is nested more than {_MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the result has a dict whose keys are not all text")
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    raise TypeError(f"the result holds a {type(value).__name__}, which JSON cannot hold")


def _describe(exc: BaseException) -> str:
    try:
        return f"{type(exc).__name__}: {exc}"[:300]
    except BaseException:
        return "an exception whose text cannot be read"


def _find(space: dict[str, object], name: str) -> object:
    """The function `name`, or for `Class.method` the method of a new instance."""
    first, _, method = name.partition(".")
    found = space[first]
    if not method:
        return found
    return getattr(found(), method)  # type: ignore[operator]


def _run_calls(job: dict, send) -> None:  # type: ignore[no-untyped-def,type-arg]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module  # dataclasses look their module up
    calls = job["calls"]
    name = job["name"]
    try:
        exec(compile(job["source"], "solution.py", "exec"), module.__dict__)
        _find(module.__dict__, name)
    except BaseException as exc:
        send({"call": 0, "error": f"the program does not load: {_describe(exc)}"})
        os._exit(1)
    for index, call in enumerate(calls):
        try:
            function = _find(module.__dict__, name)
            value = _plain(function(*call["args"], **call["kwargs"]))  # type: ignore[operator]
        except BaseException as exc:
            send({"call": index, "error": _describe(exc)})
        else:
            send({"call": index, "value": value})
    # No exit handlers and no waiting for threads: the values are sent.
    os._exit(0)


def main(setup: dict) -> None:  # type: ignore[type-arg]
    """Set the limits, say so, and run the job."""
    if setup["uid"] is not None:
        os.setgroups([])
        os.setresgid(setup["uid"], setup["uid"], setup["uid"])
        os.setresuid(setup["uid"], setup["uid"], setup["uid"])
    if setup["tie"]:  # the other levels have tied this process to its parent
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    with open(setup["job"], "rb") as file:
        job = json.load(file)
    for number, soft, hard in setup["rlimits"]:
        resource.setrlimit(number, (soft, hard))
    # -S leaves these out; programs use them.
    import builtins

    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    sys.argv = ["solution.py"]
    sys.path[:] = [path for path in sys.path if path]
    prefix = job["nonce"].encode() + b" "
    fd = setup["result"]

    def send(message: dict) -> None:  # type: ignore[type-arg]
        try:
            line = json.dumps(message, allow_nan=False)
        except BaseException as exc:
            line = json.dumps({"call": message.get("call", 0), "error": _describe(exc)})
        data = prefix + line.encode("ascii") + b"\n"
        while data:
            data = data[os.write(fd, data) :]

    send({"ready": True})
    if job["kind"] == "function":
        _run_calls(job, send)
    os.close(fd)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(job["source"], "solution.py", "exec"), module.__dict__)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
