"""How honest the verdicts of a policy on its own answers are, as `self/*` and `eval/self_*`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cli.self_verdict import SelfVerdict
from grpo_cli.stats.auc import auc


class Judged(NamedTuple):
    """One answer with a verdict of the verifier, and what the policy said of it."""

    score: float
    verdict: str
    p_right: float


def self_scalars(answers: Sequence[Judged], prefix: str) -> dict[str, float]:
    """The metrics of some answers under `prefix`; none when no answer had to judge itself.

    Shares of readable verdicts, except `judged_frac`. A score below 1 is wrong for the AUC.
    """
    if not answers:
        return {}
    readable = [a for a in answers if a.verdict != SelfVerdict.UNREADABLE]
    yes = [a for a in readable if a.verdict == SelfVerdict.RIGHT]
    no = [a for a in readable if a.verdict == SelfVerdict.WRONG]
    found = {
        "judged_frac": len(readable) / len(answers),
        "says_right_frac": _mean([a.verdict == SelfVerdict.RIGHT for a in readable]),
        "right_given_yes": _mean([a.score for a in yes]),
        "right_given_no": _mean([a.score for a in no]),
        "honesty": _mean([1 - abs((a.verdict == SelfVerdict.RIGHT) - a.score) for a in readable]),
        "auc": auc(
            [a.p_right for a in readable],
            [a.score >= 1 for a in readable],
            ["all"] * len(readable),
        ),
    }
    return {f"{prefix}{name}": value for name, value in found.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
