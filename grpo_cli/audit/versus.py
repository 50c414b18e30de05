"""`--compare OTHER`: two verifiers on the same rows.

Only rows on which exactly one of them is right can tell them apart (McNemar 1947). Rows of one
problem are not independent, so each problem gives one vote, to whichever is right on more of its
rows; the p value is the exact binomial one of those votes. With one row per problem that is
McNemar's test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.audit.rows import Judged


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row on which the two differ."""

    row_id: str
    kind: str
    text: str
    reference: str
    must_accept: bool
    accepted: bool
    """By the verifier under audit; the other did the opposite."""

    @property
    def right(self) -> bool:
        """Whether the verifier under audit is the one that is right."""
        return self.accepted is self.must_accept


@dataclass(frozen=True, slots=True)
class Versus:
    """Two verifiers side by side.

    Example:
        Versus(other="verl", rows=800, only_this=8, only_other=1, problems_this=2,
               problems_other=1, p=1.0, disagreements=(...))
    """

    other: str
    rows: int
    only_this: int
    """Rows that only the verifier under audit judges rightly."""
    only_other: int
    problems_this: int
    """Problems on which it is right more often."""
    problems_other: int
    p: float
    """Two-sided exact binomial over those problems; 1 when there is none."""
    disagreements: tuple[Disagreement, ...]


def versus(this: Sequence[Judged], other: Sequence[Judged], name: str) -> Versus:
    """Compare the verdicts on the same rows, policy rows left out."""
    votes: dict[str, int] = {}
    differ = []
    only_this = only_other = count = 0
    for mine, theirs in zip(this, other, strict=True):
        assert mine.row.id == theirs.row.id
        if mine.row.policy:
            continue
        count += 1
        if mine.accepted == theirs.accepted:
            continue
        row = mine.row
        only_this += not mine.wrong
        only_other += mine.wrong
        votes[row.problem] = votes.get(row.problem, 0) + (-1 if mine.wrong else 1)
        differ.append(
            Disagreement(row.id, row.kind, row.text, row.reference, row.accept, mine.accepted)
        )
    ahead = sum(vote > 0 for vote in votes.values())
    behind = sum(vote < 0 for vote in votes.values())
    return Versus(
        name, count, only_this, only_other, ahead, behind, sign_test(ahead, behind), tuple(differ)
    )


def sign_test(ahead: int, behind: int) -> float:
    """Two-sided exact binomial p value of `ahead` against `behind` at even odds.

    Example:
        sign_test(8, 1)  # 0.0390625
    """
    n = ahead + behind
    tail = sum(math.comb(n, i) for i in range(min(ahead, behind) + 1))
    return min(1.0, float(2 * tail / 2**n))
