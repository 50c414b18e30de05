"""What flows through the audit: golds, rows with the verdict they must get, and what came of them.

A *problem* is the unit of the intervals: one question, however many rows were made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from grpo_cli.types import Verdict

Ask = Callable[[Sequence[tuple[str, str]]], list[Verdict]]
"""(text, reference) pairs in, one verdict each out, in order."""

ACCEPT_AT = 0.5
"""A score from here on counts as accepted; below it, and without a score, as rejected."""


class Stratum(StrEnum):
    """Where a row comes from. Strata are reported side by side and never summed up blindly."""

    LABELLED = "labelled"
    """Completions that a person passed with `--cases`."""
    BUNDLED = "bundled"
    """The `cases.jsonl` beside the verifier."""
    GENERATED = "generated"
    """Made from golds by exact rules."""


@dataclass(frozen=True, slots=True)
class Gold:
    """One reference answer with what is known of its question.

    Example:
        Gold(problem="3f1c", reference="16", question="12+7-3", choices=())
    """

    problem: str
    reference: str
    question: str | None = None
    choices: tuple[str, ...] = ()
    """Texts of the options of multiple choice, in the order of their letters."""
    own: bool = False
    """One of the audit's own, because the user's were too few to make variants from."""


@dataclass(frozen=True, slots=True)
class Row:
    """One completion with the verdict it must get.

    Example:
        Row(id="3f1c/plus one", problem="3f1c", kind="plus one", text="#17", reference="16",
            accept=False, stratum=Stratum.GENERATED)
    """

    id: str
    problem: str
    kind: str
    text: str
    reference: str
    accept: bool
    stratum: Stratum
    policy: bool = False
    """A question of taste (units, rounding): reported apart, never as an error."""
    options: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0
    """How many completions of the run a sampled row stands for."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its verdict."""

    row: Row
    verdict: Verdict

    @property
    def accepted(self) -> bool:
        """Whether it was paid."""
        return accepted(self.verdict)

    @property
    def wrong(self) -> bool:
        """Whether the verdict is not the one the row must get."""
        return self.accepted is not self.row.accept


def accepted(verdict: Verdict) -> bool:
    """Whether a verdict pays; a missing one does not."""
    return not verdict.missing and verdict.score >= ACCEPT_AT
