"""The optimizer steps on one batch of groups.

Dims: N sequences of the batch, M of a micro-batch, T completion tokens laid end to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from grpo_cli.objective.advantage import advantages
from grpo_cli.objective.aggregate import weights
from grpo_cli.objective.loss import weighted_loss
from grpo_cli.objective.shaping import masks_truncated
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.collect import is_truncated
from grpo_cli.types import Batch, Metric, ScoredGroup, Tokens


@dataclass(slots=True)
class UpdateResult:
    """What the optimizer steps of a batch did. Metrics cover all its trainable tokens."""

    metrics: dict[str, Metric] = field(default_factory=dict)
    updates: int = 0
    without_signal: int = 0
    nonfinite: int = 0
    nonfinite_in_a_row: int = 0
    mismatch_max: float = 0.0

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Merge exactly: totals and counts add up."""
        for name, metric in metrics.items():
            self.metrics[name] = self.metrics.get(name, Metric(0, 0)) + metric


def build_batch(groups: Sequence[ScoredGroup], recipe: Recipe) -> Batch:
    """Advantages from shaped rewards, and how many tokens of each sequence may train."""
    reward_N = torch.tensor([r for g in groups for r in g.rewards], dtype=torch.float64)
    prompt_N = torch.tensor([i for i, g in enumerate(groups) for _ in g.rewards])
    mask = masks_truncated(recipe.overlong)
    completions = [c for g in groups for c in g.group.completions]
    verdicts = [v for g in groups for v in g.verdicts]
    length_N = torch.tensor(
        [
            0 if verdict.missing or (mask and is_truncated(completion)) else len(completion.logp)
            for completion, verdict in zip(completions, verdicts, strict=True)
        ]
    )
    return Batch(
        prompt_ids_N=tuple(g.group.prompt_ids for g in groups for _ in g.rewards),
        completion_ids_N=tuple(c.token_ids for c in completions),
        sampler_logp_N=tuple(c.logp for c in completions),
        adv_N=advantages(reward_N, prompt_N, recipe.advantage),
        length_N=length_N,
        prompt_N=prompt_N,
    )


def update(
    policy: Policy,
    adapter: str,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    recipe: Recipe,
    nonfinite_in_a_row: int,
) -> UpdateResult:
    """Train `adapter` on the batch: `epochs_per_batch` passes of `minibatches` optimizer steps.

    The old policy is the one before the first of these steps. A step whose loss or gradient is not
    finite is not taken; after `optim.max_nonfinite` of them in a row the rest is left undone.
    """
    result = UpdateResult(nonfinite_in_a_row=nonfinite_in_a_row)
    learner = _Learner(policy, adapter, batch, recipe, result)
    parts = _minibatches(batch, recipe.optim.minibatches)
    # The first minibatch needs no pass of its own: its old policy is the one it trains with.
    for part in parts[1:] if recipe.optim.epochs_per_batch == 1 else parts:
        learner.freeze_old(part)
    if recipe.kl.beta:
        for part in parts:
            learner.freeze_reference(part)
    for epoch in range(recipe.optim.epochs_per_batch):
        for part in parts:
            if result.nonfinite_in_a_row >= recipe.optim.max_nonfinite:
                return result
            learner.step(part, optimizer, first_pass=epoch == 0)
    return result


@dataclass(slots=True)
class _Learner:
    policy: Policy
    adapter: str
    batch: Batch
    recipe: Recipe
    result: UpdateResult
    old: dict[int, Tensor] = field(default_factory=dict)
    reference: dict[int, Tensor] = field(default_factory=dict)

    def freeze_old(self, part: Sequence[int]) -> None:
        self._freeze(part, self.adapter, self.old)

    def freeze_reference(self, part: Sequence[int]) -> None:
        self._freeze(part, None, self.reference)

    @torch.no_grad()
    def _freeze(self, part: Sequence[int], adapter: str | None, into: dict[int, Tensor]) -> None:
        for rows in self._micro_batches(part):
            logp_T, _ = self._logprobs(rows, adapter)
            into.update(zip(rows, logp_T.split(self._lengths(rows)), strict=True))

    def step(
        self, part: Sequence[int], optimizer: torch.optim.Optimizer, *, first_pass: bool
    ) -> None:
        """One optimizer step on the sequences `part`."""
        batch, recipe = self.batch, self.recipe
        length_N = torch.zeros_like(batch.length_N)
        length_N[list(part)] = batch.length_N[list(part)]
        weight_N = weights(length_N, recipe.aggregate, recipe.sampling.max_tokens)
        # Without a KL term a sequence with advantage 0 has no gradient: a forward pass without
        # one is enough for its metrics.
        inert = [] if recipe.kl.beta else [n for n in part if batch.adv_N[n] == 0]
        active = [n for n in part if n not in set(inert)]
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for rows in self._micro_batches(active):
            share = self._share(rows, weight_N, first_pass)
            share.backward()
            loss += float(share.detach())
        if first_pass:
            with torch.no_grad():
                for rows in self._micro_batches(inert):
                    loss += float(self._share(rows, weight_N, first_pass))
        if not any(batch.length_N[n] for n in active):
            self.result.without_signal += 1
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.optim.max_grad_norm))
        if not (_finite(loss) and _finite(norm)):
            self.result.nonfinite += 1
            self.result.nonfinite_in_a_row += 1
            return
        optimizer.step()
        self.result.updates += 1
        self.result.nonfinite_in_a_row = 0
        self.result.add({"loss/total": Metric(loss, 1), "optim/grad_norm": Metric(norm, 1)})

    def _share(self, rows: Sequence[int], weight_N: Tensor, first_pass: bool) -> Tensor:
        """The micro-batch's share of the step's loss; adds its metrics on the first pass."""
        batch, recipe = self.batch, self.recipe
        logp_T, entropy_T = self._logprobs(rows, self.adapter)
        lengths = self._lengths(rows)
        if rows[0] not in self.old:
            self.old.update(zip(rows, logp_T.detach().split(lengths), strict=True))
        old_T = torch.cat([self.old[n] for n in rows])
        ref_T = torch.cat([self.reference[n] for n in rows]) if recipe.kl.beta else None
        device = logp_T.device
        index = list(rows)
        length_M = torch.tensor(lengths, device=device)
        tokens = Tokens(
            logp_T=logp_T,
            old_logp_T=old_T,
            adv_N=batch.adv_N[index].to(device, logp_T.dtype),
            seq_T=torch.arange(len(rows), device=device).repeat_interleave(length_M),
            length_N=length_M,
        )
        loss, token_loss = weighted_loss(
            recipe.objective, recipe.kl, tokens, ref_T, weight_N[index].to(device)
        )
        if first_pass:
            sampler_T = torch.tensor(
                [x for n in rows for x in batch.sampler_logp_N[n]], device=device
            )
            gap_T = (old_T - sampler_T).abs()
            self.result.mismatch_max = max(self.result.mismatch_max, float(gap_T.max()))
            self.result.add(
                {
                    **token_loss.metrics,
                    "policy/entropy": Metric(float(entropy_T.sum()), len(entropy_T)),
                    "mismatch/logp_abs_mean": Metric(float(gap_T.sum()), len(gap_T)),
                }
            )
        return loss

    def _logprobs(self, rows: Sequence[int], adapter: str | None) -> tuple[Tensor, Tensor]:
        return self.policy.logprobs(
            adapter,
            [self.batch.prompt_ids_N[n] for n in rows],
            [self.batch.completion_ids_N[n] for n in rows],
            self.recipe.sampling.temperature,
        )

    def _lengths(self, rows: Sequence[int]) -> list[int]:
        return [len(self.batch.completion_ids_N[n]) for n in rows]

    def _micro_batches(self, part: Sequence[int]) -> Iterator[list[int]]:
        """Sequences of like length together, the longest first; those outside the loss left out."""

        def total(n: int) -> int:
            return len(self.batch.prompt_ids_N[n]) + len(self.batch.completion_ids_N[n])

        rows: list[int] = []
        for n in sorted((n for n in part if self.batch.length_N[n]), key=lambda n: (-total(n), n)):
            if rows and (len(rows) + 1) * total(rows[0]) > self.recipe.learner.micro_batch_tokens:
                yield rows
                rows = []
            rows.append(n)
        if rows:
            yield rows


def _minibatches(batch: Batch, count: int) -> list[list[int]]:
    """The batch cut into `count` runs of whole groups, as equal as they can be."""
    num_groups = int(batch.prompt_N.max()) + 1
    edges = [round(i * num_groups / count) for i in range(count + 1)]
    groups = batch.prompt_N.tolist()
    parts = [[n for n, g in enumerate(groups) if low <= g < high] for low, high in pairwise(edges)]
    return [part for part in parts if part]


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")
