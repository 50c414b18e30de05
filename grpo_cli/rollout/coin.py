"""Rewards from a coin, for the control arm `random_reward`. Must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grpo_cli.seeds import coin_seed
from grpo_cli.types import Verdict


def tossed(
    verdicts: Sequence[Verdict], rate: float, run_seed: int, step: int, prompt_id: str
) -> tuple[Verdict, ...]:
    """The verdicts of a group with scores from a coin that pays 1 with chance `rate`.

    The coin knows seed, step, prompt and place in the group, and nothing of the text. A missing
    verdict stays missing, and statuses stay as they are, so the health metrics keep their meaning.
    """
    return tuple(
        verdict
        if verdict.missing
        else replace(verdict, score=float(coin_seed(run_seed, step, prompt_id, k) < rate * 2**63))
        for k, verdict in enumerate(verdicts)
    )
