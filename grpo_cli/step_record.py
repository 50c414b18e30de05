"""What a step leaves on record: its metrics, and a row for every completion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import pvariance
from typing import NamedTuple

from torch import Tensor

from grpo_cli.arm import Arm
from grpo_cli.completion_signals import (
    distinct_frac,
    marked_frac,
    repeated_frac,
    similarity,
    slope,
)
from grpo_cli.critic import value_scalars
from grpo_cli.mismatch import mismatch_scalars
from grpo_cli.rollout.collect import Demand, has_contrast, is_truncated
from grpo_cli.self_metrics import Judged, self_scalars
from grpo_cli.self_verdict import self_check_of
from grpo_cli.support import support_scalars
from grpo_cli.types import Batch, Completion, Finish, ScoredGroup, Status, Verdict
from grpo_cli.update_result import UpdateResult

GAP_STEPS = 10
"""Steps over which the trend of the length gap is taken."""


def step_scalars(
    arm: Arm, demand: Demand, batch: Batch | None, result: UpdateResult
) -> dict[str, float]:
    """A step's metrics, with one definition for every arm.

    `reward/*`, `group/*`, `completion/*` and `verifier/*` cover everything sampled in the
    step, whether or not a filter kept it; `policy/*`, `ratio/*` and `mismatch/*` are means over all
    trainable tokens of the batch, each minibatch with the policy it trains, and are absent when
    nothing trained. A fraction with nothing to count is NaN.
    """
    made = demand.kept + demand.dropped
    progress = arm.progress
    return {
        **_sampled_scalars(list(_samples(made)), arm.recipe.health.reflection_markers),
        **_group_scalars(made),
        **self_scalars(list(_judged(made)), "self/"),
        "group/used": len(demand.kept),
        "group/kept_frac": _mean([True] * len(demand.kept) + [False] * len(demand.dropped)),
        "group/rounds": demand.rounds,
        "completion/length_gap_slope": slope(progress.length_gaps),
        **result.scalars(),
        **_batch_scalars(batch),
        **({} if batch is None else value_scalars(batch)),
        **({} if batch is None else _support_scalars(batch)),
        **({} if batch is None else mismatch_scalars(result.learner_logp, batch)),
        "optim/update_norm": result.update_norm,
        "optim/updates": result.updates,
        "optim/without_signal": result.without_signal,
        "optim/nonfinite": progress.nonfinite,
        "progress/tokens_generated": progress.tokens_generated,
        "progress/prompts_seen": progress.prompts_seen,
    }


def length_gap(groups: Sequence[ScoredGroup]) -> float | None:
    """How much longer the wrong completions of a step are than the right, in tokens on average.

    None when one of the two kinds is missing.
    """
    right, wrong = _by_score([s for s in _samples(groups) if not s.verdict.missing])
    gap = _mean_length(wrong) - _mean_length(right)
    return _or_none(gap)


class _Sample(NamedTuple):
    completion: Completion
    verdict: Verdict
    reward: float


def _samples(groups: Sequence[ScoredGroup]) -> Iterator[_Sample]:
    for group in groups:
        yield from itertools.starmap(
            _Sample, zip(group.group.completions, group.verdicts, group.rewards, strict=True)
        )


def _judged(groups: Sequence[ScoredGroup]) -> Iterator[Judged]:
    """The completions that had to judge themselves and have a verdict of the verifier."""
    for group in groups:
        for completion, verdict in zip(group.group.completions, group.verdicts, strict=True):
            check = self_check_of(completion, group.group.prompt)
            if check and not verdict.missing:
                yield Judged(verdict.score, check.verdict, check.p_right)


def _by_score(valid: Sequence[_Sample]) -> tuple[list[_Sample], list[_Sample]]:
    """The right ones (score 1) and the wrong."""
    right = [s for s in valid if s.verdict.score == 1]
    return right, [s for s in valid if s.verdict.score < 1]


def _sampled_scalars(samples: Sequence[_Sample], markers: Sequence[str]) -> dict[str, float]:
    """What is known of the completions one by one."""
    valid = [s for s in samples if not s.verdict.missing]
    right, wrong = _by_score(valid)
    repeated = [repeated_frac(s.completion.token_ids) for s in samples]
    return {
        "reward/mean": _mean(s.reward for s in valid),
        "reward/accuracy": _mean(s.verdict.score for s in valid),
        "reward/penalty_mean": _mean(s.reward - s.verdict.score for s in valid),
        "reward/format_frac": _mean(s.verdict.status is Status.OK for s in valid),
        "completion/mean_length": _mean_length(samples),
        "completion/mean_length_right": _mean_length(right),
        "completion/mean_length_wrong": _mean_length(wrong),
        "completion/mean_length_stopped": _mean_length(
            [s for s in samples if s.completion.finish is Finish.STOP]
        ),
        "completion/length_gap": _mean_length(wrong) - _mean_length(right),
        "completion/truncated_frac": _mean(is_truncated(s.completion) for s in samples),
        "completion/repeated_ngram_frac": _mean_of_known(repeated),
        "completion/reflection_right_frac": marked_frac(
            [s.completion.text for s in right], markers
        ),
        "completion/reflection_wrong_frac": marked_frac(
            [s.completion.text for s in wrong], markers
        ),
        "verifier/unparsed_frac": _mean(s.verdict.status is Status.UNPARSED for s in samples),
        "verifier/error_frac": _mean(s.verdict.status is Status.ERROR for s in samples),
        "verifier/timeout_frac": _mean(s.verdict.status is Status.TIMEOUT for s in samples),
    }


def _group_scalars(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """What is known of the completions of a prompt together."""
    best = [_unanimous(group) for group in groups]
    rewards = [_rewards(group) for group in groups]
    return {
        "group/mixed_frac": _mean(has_contrast(group) for group in groups),
        "group/all_right_frac": _mean(score == 1 for score in best),
        "group/all_wrong_frac": _mean(score == 0 for score in best),
        "group/zero_variance_frac": _mean(len(set(found)) <= 1 for found in rewards),
        "group/reward_var_mean": _mean(pvariance(found) for found in rewards if found),
        "group/distinct_answers_frac": _mean_of_known(
            distinct_frac([verdict.parsed for verdict in group.verdicts]) for group in groups
        ),
        "group/similarity": _mean_of_known(
            similarity([c.token_ids for c in group.group.completions]) for group in groups
        ),
        "group/sampled": len(groups),
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
        "advantage/positive_frac": _mean(adv > 0 for adv in adv_N.tolist()),
        "advantage/mean": _mean(adv_N.tolist()),
        "advantage/std": float(adv_N.std()) if len(adv_N) > 1 else float("nan"),
        "advantage/min": min(adv_N.tolist(), default=float("nan")),
        "advantage/max": max(adv_N.tolist(), default=float("nan")),
    }


def _support_scalars(batch: Batch) -> dict[str, float]:
    """How many tokens truncation kept, over the trained tokens; nothing without a mask."""
    if batch.support_N is None:
        return {}
    trained = (batch.length_N > 0).tolist()
    return support_scalars(list(itertools.compress(batch.support_N, trained)))


def rollout_rows(
    demand: Demand, batch: Batch | None, learner_logp: Mapping[int, Tensor]
) -> Iterator[dict[str, object]]:
    """One row per completion; groups that a filter dropped have `kept` false and no advantage.

    `learner_logp` is null where a completion did not train, and so are, with a critic, `value` and
    `token_advantage`, one number per token each.
    """
    adv_N = iter(batch.adv_N.tolist() if batch else ())
    number = itertools.count()
    for kept, groups in ((True, demand.kept), (False, demand.dropped)):
        for scored in groups:
            for index, (completion, verdict, reward) in enumerate(
                zip(scored.group.completions, scored.verdicts, scored.rewards, strict=True)
            ):
                n = next(number)
                learned = learner_logp.get(n) if kept else None
                check = self_check_of(completion, scored.group.prompt)
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
                    **_support_size(completion),
                    "finish": completion.finish,
                    "adapter_version": completion.adapter_version,
                    "score": _or_none(verdict.score),
                    "status": verdict.status,
                    "parsed": verdict.parsed,
                    "detail": verdict.detail,
                    "reward": _or_none(reward),
                    "advantage": next(adv_N) if kept else None,
                    **_critic_columns(batch, n if kept else None),
                    **({} if check is None else check.record()),
                }


def _critic_columns(batch: Batch | None, n: int | None) -> dict[str, list[float] | None]:
    """What a critic adds to the row of sequence `n`; None is one that was not kept."""
    if batch is None or batch.value_N is None or batch.token_adv_N is None:
        return {}
    columns = {"value": batch.value_N, "token_advantage": batch.token_adv_N}
    if n is None or n not in batch.value_N:
        return dict.fromkeys(columns)
    return {name: values[n].tolist() for name, values in columns.items()}


def _support_size(completion: Completion) -> dict[str, list[int]]:
    """With a sampling mask: the number of tokens kept at each position."""
    support = completion.support
    return {} if support is None else {"support_size": support.size_T.tolist()}


def _rewards(group: ScoredGroup) -> list[float]:
    """The group's rewards after shaping, where there is a verdict."""
    return [r for r, v in zip(group.rewards, group.verdicts, strict=True) if not v.missing]


def _unanimous(group: ScoredGroup) -> float | None:
    """The score that every verdict of the group gave, if there is one."""
    scores = {verdict.score for verdict in group.verdicts if not verdict.missing}
    return scores.pop() if len(scores) == 1 else None


def _mean(values: Iterable[float]) -> float:
    kept = [float(value) for value in values]
    return sum(kept) / len(kept) if kept else math.nan


def _mean_of_known(values: Iterable[float]) -> float:
    return _mean(value for value in values if not math.isnan(value))


def _mean_length(samples: Sequence[_Sample]) -> float:
    return _mean(len(s.completion.token_ids) for s in samples)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
