"""One arm's run-time error takes only that arm out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpo_cli.errors import GrpoError, error
from grpo_cli.guard import Guard


def diverged() -> GrpoError:
    return error("GR301", "not finite", exit_code=3)


def test_without_anybody_to_tell_the_error_ends_everything() -> None:
    guard: Guard[str] = Guard(None)
    with pytest.raises(GrpoError), guard.of("a"):
        raise diverged()
    with pytest.raises(GrpoError):
        guard.together(["a", "b"], lambda some: (_ for _ in ()).throw(diverged()))


def test_an_arm_that_failed_is_left_out_and_reported_once() -> None:
    told: list[tuple[str, str]] = []
    guard: Guard[str] = Guard(lambda arm, problem: told.append((arm, problem.problems[0].code)))
    with guard.of("b"):
        raise diverged()
    assert guard.alive(["a", "b", "c"]) == ["a", "c"]
    assert told == [("b", "GR301")]


def test_a_batched_call_that_fails_is_made_arm_by_arm() -> None:
    calls: list[tuple[str, ...]] = []

    def work(some: Sequence[str]) -> list[str]:
        calls.append(tuple(some))
        if "b" in some:
            raise diverged()
        return [arm.upper() for arm in some]

    guard: Guard[str] = Guard(lambda arm, problem: None)
    assert guard.together(["a", "b", "c"], work) == [("a", "A"), ("c", "C")]
    assert calls == [("a", "b", "c"), ("a",), ("b",), ("c",)]
    assert guard.together(["a", "c"], work) == [("a", "A"), ("c", "C")]
    assert calls[4:] == [("a", "c")], "one call for all as long as it goes well"
    assert guard.together([], work) == []


def test_a_usage_error_and_a_bug_are_everybodys() -> None:
    guard: Guard[str] = Guard(lambda arm, problem: None)
    with pytest.raises(GrpoError), guard.of("a"):
        raise error("GR201", "no model")
    with pytest.raises(ZeroDivisionError), guard.of("a"):
        raise ZeroDivisionError
