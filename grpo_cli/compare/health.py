"""The metrics of the health table: what a run spent, and whether its signal was clean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_cli.compare.model import RunRecord

TOKENS = "progress/tokens_generated"
PROMPTS = "progress/prompts_seen"
_SECONDS = ("time/rollout_s", "time/verify_s", "time/learner_s")

LABELS = {
    "completion/mean_length_right": "tokens, right answers",
    "completion/mean_length_wrong": "tokens, wrong answers",
    "completion/truncated_frac": "truncated",
    "verifier/unparsed_frac": "without an answer",
    "verifier/error_frac": "verifier failed",
    "group/zero_variance_frac": "groups without contrast",
    "policy/entropy": "entropy, nats per token",
    "ratio/clipped_low_frac": "clipped low",
    "ratio/clipped_high_frac": "clipped high",
    "mismatch/logp_abs_mean": "sampler mismatch, nats",
}
"""Means over the last quarter of the training steps."""

EVAL_LABELS = {
    "eval/mean_length": "held-out tokens",
    "eval/truncated_frac": "held-out truncated",
    "eval/unparsed_frac": "held-out without an answer",
    "eval/verifier_error_frac": "held-out verifier failed",
}
"""At the step that is scored."""

SPENT_LABELS = {
    "steps": "steps",
    "prompts": "prompts",
    "tokens": "tokens sampled",
    "seconds": "seconds, without evaluation",
}

CURVES = ("policy/entropy", "completion/mean_length", "group/zero_variance_frac", "reward/mean")
"""Drawn beside the curve of the metric."""

HEALTH = (*LABELS, *EVAL_LABELS, TOKENS, PROMPTS, *_SECONDS)
"""Every metric that the table needs."""


def health(run: RunRecord, step: int | None) -> dict[str, float]:
    """The health table's numbers of one run up to `step` (None: to its end). NaN is unknown."""
    records = [r for r in run.records if step is None or r.step <= step]
    trained = [r.scalars for r in records if r.step > 0]
    late = trained[-max(1, len(trained) // 4) :] if trained else []
    found = {key: _mean([s.get(key, math.nan) for s in late]) for key in LABELS}
    evals = [r.scalars for r in records if any(key in r.scalars for key in EVAL_LABELS)]
    last = evals[-1] if evals else {}
    found |= {key: last.get(key, math.nan) for key in EVAL_LABELS}
    spent = trained[-1] if trained else {}
    seconds = [sum(s.get(key, 0.0) for key in _SECONDS) for s in trained]
    return found | {
        "steps": float(records[-1].step) if records else math.nan,
        "prompts": spent.get(PROMPTS, math.nan),
        "tokens": spent.get(TOKENS, math.nan),
        "seconds": sum(seconds) or math.nan,
    }


def mean_health(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean over seeds, key by key; unknown values are left out."""
    keys = [*LABELS, *EVAL_LABELS, *SPENT_LABELS]
    return {key: _mean([table[key] for table in tables]) for key in keys}


def _mean(values: Sequence[float]) -> float:
    kept = [value for value in values if not math.isnan(value)]
    return sum(kept) / len(kept) if kept else math.nan
