"""Python programs against hidden tests, run in a sandbox.

The reference is JSON, one of:

    {"kind": "function", "name": "f", "tests": [{"args": [2], "expected": 4}, ...]}
    {"kind": "stdin", "tests": [{"stdin": "2\\n", "stdout": "4\\n"}, ...]}

with at least one test, and optionally `time_limit_s` (default 2) and `solution` (a right program,
used by `answer` only). A function test may have `kwargs`; `name` may be `Class.method`.

**The program** is a closed block fenced by three or more backticks and tagged `python`, `python3`,
`py` or nothing, after the end of any `<think>` part. The last such block is taken; for a function,
the last that defines its name, so that an example of use may follow. Blocks before it are drafts
and never run: one program is tried, chosen by its place alone, so listing several does not pay.
UNPARSED, score 0: no such block, an empty one, a fence left open at the end (a cut completion), an
unfinished `<think>`.

**A function** passes a test when it returns a JSON value equal to `expected`. Values never meet in
the program's own process, and are of strict type:

- true and false are not 1 and 0; text is not a number; null equals only null;
- an int and a float compare by value (2 equals 2.0); against a float that is expected, numbers
  within a relative 1e-9 (or 1e-12 of zero) are equal; against an int that is expected, exactly;
- NaN and infinities never pass; a tuple counts as a list; a list is in order; dict keys are text;
- a set, bytes, complex number or object is not a JSON value and fails.

An exception, a missing value or a call of exit fails that test or, when the program is gone, all
that follow. All tests of a function share one process and its time limit.

**A stdin program** passes a test when it exits with status 0 and its stdout equals `stdout` line by
line, after white space at the ends of lines and empty lines at the end are removed. Each test is a
new process with its own time limit.

**Time.** A program over its limit is wrong (score 0, status OK): the limit is part of the problem.
It is processor time, so a busy machine does not fail a right program; a program that sleeps or
waits is stopped after twice that and 2 s. Status TIMEOUT, without a score, is only for a
program that was kept from running by other work. A sandbox that could not start is Status.ERROR.

All stdin tests of a problem together must fit the worker pool's limit per sample (30 s, or the
recipe's `verifier.sample_limit_s`); beyond it the pool's TIMEOUT comes first, without a score.

**Policy:** `partial: on` pays the fraction of tests passed instead of all or nothing. A program has
the standard library only, one process (threads are fine), 512 MB, no network and no file to write.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from grpo_cli.types import Status, Verdict
from grpo_cli.verify.sandbox import End, Json, Limits, RunResult, call_function, run_program

KIND = "code"
OPTIONS = {"partial": ("off", "on")}
SAMPLE_LIMIT_S = 30.0  # wall time of all tests; a recipe's verifier.sample_limit_s replaces it

_TAGS = ("", "python", "python3", "py")
_FENCE = re.compile(r"([ \t]*)(`{3,})[ \t]*([^`]*)")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
_MAX_PROGRAM = 1 << 20
_RELATIVE, _NEAR_ZERO = 1e-9, 1e-12


@dataclass(frozen=True, slots=True)
class Problem:
    """A checked reference. `calls` and `expected` are for a function, `pairs` for stdin."""

    name: str
    calls: tuple[dict[str, Json], ...]
    expected: tuple[Json, ...]
    pairs: tuple[tuple[str, str], ...]
    time_limit_s: float
    solution: str | None


def verify(text: str, reference: str, *, partial: str = "off") -> Verdict:
    """Score 1.0 when the program in `text` passes every test of `reference`, else 0.0.

    With `partial="on"` the score is the fraction passed. Raises ValueError when the reference is
    not usable and GrpoError (GR212) when this machine offers no sandbox.
    """
    if partial not in OPTIONS["partial"]:
        raise ValueError(f"partial is {partial!r}, not one of {OPTIONS['partial']}")
    problem = read_reference(reference)
    program = find_program(text, problem.name)
    if isinstance(program, Refusal):
        return Verdict(score=0.0, status=Status.UNPARSED, detail=program.why)
    if len(program) > _MAX_PROGRAM:
        return Verdict(0.0, Status.OK, parsed=None, detail="the program is over a million letters")
    run = _check_function if problem.calls else _check_stdin
    passed, detail, status = run(program, problem, stop_early=partial == "off")
    if status is not Status.OK:
        return Verdict(math.nan, status, parsed=program, detail=detail)
    num_tests = len(problem.calls) or len(problem.pairs)
    score = passed / num_tests if partial == "on" else float(passed == num_tests)
    return Verdict(score, Status.OK, parsed=program, detail=detail)


def answer(reference: str) -> str:
    """The reference's own `solution` as a completion. Raises ValueError when it has none."""
    solution = read_reference(reference).solution
    if solution is None:
        raise ValueError("the reference has no 'solution': tests do not determine a program")
    return f"```python\n{solution.rstrip()}\n```"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a completion holds no program."""

    why: str


def find_program(text: str, name: str = "") -> str | Refusal:
    """The program of a completion, by the rule above. `name` is the function's, or empty."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    elif "<think>" in text:
        return Refusal("the <think> part is not finished")
    blocks: list[str] = []
    fence, indent, tag, body = "", "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.rstrip())
        if not fence:
            if match:
                indent, fence, info = match.groups()
                tag, body = (info.lower().split() or [""])[0], []
        elif (
            match
            and len(match[1]) <= len(indent) + 3
            and len(match[2]) >= len(fence)
            and not match[3]
        ):
            if tag in _TAGS:
                blocks.append("\n".join(body))
            fence = ""
        else:
            body.append(line.removeprefix(indent))
    if fence and tag in _TAGS:
        return Refusal("the last code block is not closed")
    if not blocks:
        return Refusal("no closed python code block")
    if name:
        first = re.escape(name.partition(".")[0])
        defines = re.compile(rf"^(?:(?:async )?def|class)\s+{first}\b|^{first}\s*[=:](?!=)", re.M)
        blocks = [block for block in blocks if defines.search(block)] or blocks[-1:]
    return blocks[-1] if blocks[-1].strip() else Refusal("the last code block is empty")


def read_reference(reference: str) -> Problem:
    """The reference, checked. Raises ValueError that says what is wrong with it."""
    try:
        data = json.loads(reference, parse_constant=_refuse_constant)
    except RecursionError as exc:
        raise ValueError("the reference is nested too deep") from exc
    if not isinstance(data, dict):
        raise ValueError("the reference is not a JSON object")
    kind, tests = data.get("kind"), data.get("tests")
    if kind not in ("function", "stdin"):
        raise ValueError(f"the reference's kind is {kind!r}, not 'function' or 'stdin'")
    if not isinstance(tests, list) or not tests:
        raise ValueError("the reference has no tests: an empty list would accept everything")
    known = {"kind", "tests", "time_limit_s", "solution"} | (
        {"name"} if kind == "function" else set()
    )
    if extra := sorted(set(data) - known):
        raise ValueError(f"the reference has unknown keys: {', '.join(extra)}")
    limit = data.get("time_limit_s", 2.0)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= 600:
        raise ValueError(f"the time_limit_s {limit!r} is not a number of seconds up to 600")
    solution = data.get("solution")
    if not isinstance(solution, str | None):
        raise ValueError("the solution is not text")
    if kind == "stdin":
        pairs = tuple(_stdin_test(i, test) for i, test in enumerate(tests))
        return Problem("", (), (), pairs, float(limit), solution)
    name = data.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"the function's name {name!r} is not a Python name")
    checked = [_function_test(i, test) for i, test in enumerate(tests)]
    calls, expected = tuple(c for c, _ in checked), tuple(e for _, e in checked)
    return Problem(name, calls, expected, (), float(limit), solution)


def equal(got: Json, expected: Json) -> bool:
    """Whether two JSON values are equal by the rule above."""
    if isinstance(expected, bool) or isinstance(got, bool) or expected is None or got is None:
        return got is expected
    if isinstance(expected, int | float):
        if not isinstance(got, int | float):
            return False
        if got == expected or isinstance(expected, int):
            return got == expected
        try:
            return math.isclose(got, expected, rel_tol=_RELATIVE, abs_tol=_NEAR_ZERO)
        except OverflowError:  # an int beyond every float
            return False
    if isinstance(expected, list):
        return (
            isinstance(got, list)
            and len(got) == len(expected)
            and all(equal(g, e) for g, e in zip(got, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(equal(got[key], value) for key, value in expected.items())
        )
    return isinstance(got, str) and got == expected


def same_output(got: str, expected: str) -> bool:
    """Whether two outputs have the same lines, by the rule above."""
    return _lines(got) == _lines(expected)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _check_function(program: str, problem: Problem, stop_early: bool) -> tuple[int, str, Status]:
    """(tests passed, detail, status) of one run of all tests."""
    del stop_early  # the tests are one run
    run = call_function(program, problem.name, problem.calls, Limits(cpu_s=problem.time_limit_s))
    if status := _not_its_fault(run):
        return 0, _how_it_ended(run), status
    if run.damaged:
        return 0, run.damaged, Status.OK
    passed, first = 0, ""
    for index, expected in enumerate(problem.expected):
        outcome = run.outcomes.get(index)
        if outcome is None:
            first = first or f"test {index + 1}: no result ({_how_it_ended(run)})"
        elif outcome.error is not None:
            first = first or f"test {index + 1}: {outcome.error}"
        elif equal(outcome.value, expected):
            passed += 1
        else:
            first = first or f"test {index + 1}: a wrong value"
    if passed == len(problem.expected) and (run.end is not End.EXITED or run.exit_code != 0):
        return 0, _how_it_ended(run), Status.OK
    return passed, first or "all tests passed", Status.OK


def _check_stdin(program: str, problem: Problem, stop_early: bool) -> tuple[int, str, Status]:
    """(tests passed, detail, status), one run per test."""
    limits = Limits(cpu_s=problem.time_limit_s)
    passed, first = 0, ""
    for index, (stdin, expected) in enumerate(problem.pairs):
        run = run_program(program, stdin, limits)
        if status := _not_its_fault(run):
            return 0, _how_it_ended(run), status
        if run.end is End.EXITED and run.exit_code == 0:
            if same_output(run.stdout.decode("utf-8", "replace"), expected):
                passed += 1
                continue
            why = "a wrong output"
        else:
            why = _how_it_ended(run)
        first = first or f"test {index + 1}: {why}"
        # A slow program is not run to its limit on every test.
        if stop_early or run.end is not End.EXITED:
            break
    return passed, first or "all tests passed", Status.OK


def _not_its_fault(run: RunResult) -> Status | None:
    return {End.NOT_STARTED: Status.ERROR, End.STARVED: Status.TIMEOUT}.get(run.end)


def _how_it_ended(run: RunResult) -> str:
    said = run.stderr_tail.strip().splitlines()
    match run.end:
        case End.NOT_STARTED:
            return f"the sandbox did not start: {said[-1] if said else 'no reason given'}"[:300]
        case End.STARVED:
            return "the machine was too busy to run the program"
        case End.TIME:
            return "over the time limit"
        case End.OUTPUT:
            return "too much output"
    return f"exit status {run.exit_code}{': ' + said[-1] if said else ''}"[:300]


def _stdin_test(index: int, test: Json) -> tuple[str, str]:
    if not isinstance(test, dict) or set(test) != {"stdin", "stdout"}:
        raise ValueError(f"test {index + 1} is not an object with 'stdin' and 'stdout'")
    stdin, stdout = test["stdin"], test["stdout"]
    if not isinstance(stdin, str) or not isinstance(stdout, str):
        raise ValueError(f"test {index + 1}: 'stdin' and 'stdout' must be text")
    return stdin, stdout


def _function_test(index: int, test: Json) -> tuple[dict[str, Json], Json]:
    if not isinstance(test, dict) or not {"args", "expected"} <= set(test) <= {
        "args", "kwargs", "expected",
    }:  # fmt: skip
        raise ValueError(f"test {index + 1} is not an object with 'args' and 'expected'")
    args, kwargs = test["args"], test.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError(f"test {index + 1}: 'args' must be a list and 'kwargs' an object")
    return {"args": args, "kwargs": kwargs}, test["expected"]


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"the reference holds {name}, which is not JSON")
