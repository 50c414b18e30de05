"""One arm's failure must not end the others. Must not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from grpo_cli.errors import GrpoError

A = TypeVar("A")
T = TypeVar("T")

RUN_TIME = 3
"""Exit code of errors that a run meets on its way."""


class Guard(Generic[A]):
    """Who still trains. An arm that raises a run-time error is reported to `failed` and left out.

    Without `failed` nothing is caught: a single run ends with its error.
    """

    def __init__(self, failed: Callable[[A, GrpoError], None] | None) -> None:
        self._failed = failed
        self._out: list[A] = []

    def alive(self, arms: Iterable[A]) -> list[A]:
        """Those that have not failed, in order."""
        return [arm for arm in arms if not any(arm is out for out in self._out)]

    @contextmanager
    def of(self, arm: A) -> Iterator[None]:
        """Work for one arm alone; its run-time error takes only this arm out."""
        try:
            yield
        except GrpoError as problem:
            if self._failed is None or problem.exit_code != RUN_TIME:
                raise
            self._out.append(arm)
            self._failed(arm, problem)

    def together(
        self, arms: Sequence[A], work: Callable[[Sequence[A]], Sequence[T]]
    ) -> list[tuple[A, T]]:
        """One call of `work` for all arms, and what it gives for each.

        When that call fails nobody knows for whom: it is then made for each arm by itself. So
        `work` must leave no trace when it raises, and give an arm the same whoever else is there.
        """
        if self._failed is None or not arms:
            return list(zip(arms, work(arms) if arms else (), strict=True))
        if len(arms) > 1:
            try:
                return list(zip(arms, work(arms), strict=True))
            except GrpoError as problem:
                if problem.exit_code != RUN_TIME:
                    raise
        found: list[tuple[A, T]] = []
        for arm in arms:
            with self.of(arm):
                found += zip([arm], work([arm]), strict=True)
        return found
