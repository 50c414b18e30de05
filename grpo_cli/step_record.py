"""What a step leaves on record: its metrics, and a row for every completion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from grpo_cli.arm import Arm
from grpo_cli.mismatch import mismatch_scalars
from grpo_cli.rollout.collect import Demand, has_contrast, is_truncated
from grpo_cli.types import Batch, ScoredGroup, Status
from grpo_cli.update_result import UpdateResult


def step_scalars(
    arm: Arm, demand: Demand, batch: Batch | None, result: UpdateResult
) -> dict[str, float]:
    """A step's metrics, with one definition for every arm.

    `reward/*`, `group/*_frac`, `completion/*` and `verifier/*` cover everything sampled in the
    step, whether or not a filter kept it; `policy/*`, `ratio/*` and `mismatch/*` are means over all
    trainable tokens of the batch, each minibatch with the policy it trains, and are absent when
    nothing trained. A fraction with nothing to count is NaN.
    """
    made = demand.kept + demand.dropped
    pairs = [
        (completion, verdict, reward)
        for group in made
        for completion, verdict, reward in zip(
            group.group.completions, group.verdicts, group.rewards, strict=True
        )
    ]
    valid = [p for p in pairs if not p[1].missing]
    lengths = [len(c.token_ids) for c, _, _ in pairs]
    contrast = [has_contrast(group) for group in made]
    best = [_unanimous(group) for group in made]
    progress = arm.progress
    return {
        "reward/mean": _mean(reward for _, _, reward in valid),
        "reward/accuracy": _mean(verdict.score for _, verdict, _ in valid),
        "group/mixed_frac": _mean(contrast),
        "group/all_right_frac": _mean(score == 1 for score in best),
        "group/all_wrong_frac": _mean(score == 0 for score in best),
        "group/zero_variance_frac": _mean(_num_rewards(group) <= 1 for group in made),
        "group/sampled": len(made),
        "group/used": len(demand.kept),
        "group/rounds": demand.rounds,
        "completion/mean_length": _mean(lengths),
        "completion/mean_length_right": _mean(
            len(c.token_ids) for c, verdict, _ in valid if verdict.score == 1
        ),
        "completion/mean_length_wrong": _mean(
            len(c.token_ids) for c, verdict, _ in valid if verdict.score < 1
        ),
        "completion/truncated_frac": _mean(is_truncated(c) for c, _, _ in pairs),
        "verifier/unparsed_frac": _mean(v.status is Status.UNPARSED for _, v, _ in pairs),
        "verifier/error_frac": _mean(v.status is Status.ERROR for _, v, _ in pairs),
        "verifier/timeout_frac": _mean(v.status is Status.TIMEOUT for _, v, _ in pairs),
        **result.scalars(),
        **_batch_scalars(batch),
        **({} if batch is None else mismatch_scalars(result.learner_logp, batch)),
        "optim/updates": result.updates,
        "optim/without_signal": result.without_signal,
        "optim/nonfinite": progress.nonfinite,
        "progress/tokens_generated": progress.tokens_generated,
        "progress/prompts_seen": progress.prompts_seen,
    }


def _batch_scalars(batch: Batch | None) -> dict[str, float]:
    """Sizes and advantages of what trained; a group is effective when an advantage is not 0."""
    if batch is None:
        return {"loss/tokens": 0, "loss/sequences": 0, "group/effective": 0}
    trained_N = batch.length_N > 0
    adv_N = batch.adv_N[trained_N]
    return {
        "loss/tokens": int(batch.length_N.sum()),
        "loss/sequences": int(trained_N.sum()),
        "loss/masked_sequences": int((~trained_N).sum()),
        "loss/masked_tokens": int((batch.full_length_N - batch.length_N).sum()),
        "group/effective": len(batch.prompt_N[trained_N & (batch.adv_N != 0)].unique()),
        **({} if batch.kl_N is None else {"reward/kl_mean": float(batch.kl_N.mean())}),
        "advantage/mean": _mean(adv_N.tolist()),
        "advantage/std": float(adv_N.std()) if len(adv_N) > 1 else float("nan"),
        "advantage/min": min(adv_N.tolist(), default=float("nan")),
        "advantage/max": max(adv_N.tolist(), default=float("nan")),
    }


def rollout_rows(
    demand: Demand, batch: Batch | None, learner_logp: Mapping[int, Tensor]
) -> Iterator[dict[str, object]]:
    """One row per completion; groups that a filter dropped have `kept` false and no advantage.

    `learner_logp` is null where a completion did not train.
    """
    adv_N = iter(batch.adv_N.tolist() if batch else ())
    number = itertools.count()
    for kept, groups in ((True, demand.kept), (False, demand.dropped)):
        for scored in groups:
            for index, (completion, verdict, reward) in enumerate(
                zip(scored.group.completions, scored.verdicts, scored.rewards, strict=True)
            ):
                learned = learner_logp.get(next(number)) if kept else None
                yield {
                    "prompt_id": scored.group.prompt.id,
                    "prompt": [
                        {"role": m.role, "content": m.content} for m in scored.group.prompt.messages
                    ],
                    "reference": scored.group.prompt.reference,
                    "sample": index,
                    "kept": kept,
                    "completion": completion.text,
                    "token_ids": list(completion.token_ids),
                    "sampler_logp": list(completion.logp),
                    "learner_logp": None if learned is None else learned.tolist(),
                    "finish": completion.finish,
                    "adapter_version": completion.adapter_version,
                    "score": _or_none(verdict.score),
                    "status": verdict.status,
                    "parsed": verdict.parsed,
                    "detail": verdict.detail,
                    "reward": _or_none(reward),
                    "advantage": next(adv_N) if kept else None,
                }


def _num_rewards(group: ScoredGroup) -> int:
    """How many different rewards the group has after shaping."""
    return len({r for r, v in zip(group.rewards, group.verdicts, strict=True) if not v.missing})


def _unanimous(group: ScoredGroup) -> float | None:
    """The score that every verdict of the group gave, if there is one."""
    scores = {verdict.score for verdict in group.verdicts if not verdict.missing}
    return scores.pop() if len(scores) == 1 else None


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    kept = [float(value) for value in values]
    return sum(kept) / len(kept) if kept else float("nan")


def _or_none(value: float) -> float | None:
    return None if value != value else value
