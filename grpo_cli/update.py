"""The optimizer steps on one batch of groups.

Dims: N sequences of the batch, M of a micro-batch, T completion tokens laid end to end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_cli.batch import minibatches
from grpo_cli.forward import Forward, forward_of, joined
from grpo_cli.objective.aggregate import denominator, weights
from grpo_cli.objective.correction import GeoRs, correct
from grpo_cli.objective.entropy import EntropyBonus, TopQuantile
from grpo_cli.objective.kl import kl_estimate
from grpo_cli.objective.loss import Parts, weighted_loss
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.schema import Recipe
from grpo_cli.types import Batch, Metric, Tokens
from grpo_cli.update_result import UpdateResult

_NOTHING = torch.zeros(0)
_MEASURED_SEQUENCES = 32
"""Most sequences on which the distance to the base model and the drift of the routing are
measured: a forward pass each."""


def update(
    policy: Policy,
    adapter: str,
    reference: str | None,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    recipe: Recipe,
    nonfinite_in_a_row: int,
) -> UpdateResult:
    """Train `adapter` on the batch: `epochs_per_batch` passes of `minibatches` optimizer steps.

    The old policy is the one before the first of these steps (the sampler's, with
    `correction.bypass`). A step whose loss or gradient is not finite is not taken; after
    `optim.max_nonfinite` of them in a row the rest is left undone.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    result = UpdateResult(nonfinite_in_a_row=nonfinite_in_a_row)
    forward = forward_of(policy, batch, recipe, adapter)
    learner = _Learner(forward, adapter, reference, batch, recipe, result, result.learner_logp)
    parts = minibatches(batch, recipe.optim.minibatches)
    # Unless something is needed before it trains, the first minibatch needs no pass of its own:
    # its old policy is the one it trains with.
    first_pass_needed = recipe.optim.epochs_per_batch > 1 or isinstance(recipe.entropy, TopQuantile)
    rejects = isinstance(recipe.correction, GeoRs)
    for part in parts if first_pass_needed or rejects else parts[1:]:
        learner.freeze_old(part)
    if recipe.kl.in_loss:
        for part in parts:
            learner.freeze_reference(part)
    for epoch in range(recipe.optim.epochs_per_batch):
        for part in parts:
            if result.nonfinite_in_a_row < recipe.optim.max_nonfinite:
                learner.step(part, optimizer, first_pass=epoch == 0)
    learner.measure_kl_to_base()
    learner.measure_routing()
    moved = [(p.detach() - old).norm() for p, old in zip(parameters, before, strict=True)]
    result.update_norm = float(torch.stack(moved).norm())
    return result


@dataclass(slots=True)
class _Learner:
    forward: Forward
    adapter: str
    reference_adapter: str | None
    batch: Batch
    recipe: Recipe
    result: UpdateResult
    learned: dict[int, Tensor]
    """Log-probabilities under the policy before the batch's first step."""
    entropies: dict[int, Tensor] = field(default_factory=dict)
    reference: dict[int, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def freeze_old(self, part: Sequence[int]) -> None:
        for rows in self._pieces(part):
            logp_T, entropy_T = self.forward.logprobs(rows, self.adapter)
            self.learned |= self.forward.by_sequence(rows, logp_T)
            self.entropies |= self.forward.by_sequence(rows, entropy_T)

    @torch.no_grad()
    def freeze_reference(self, part: Sequence[int]) -> None:
        for rows in self._pieces(part):
            logp_T, _ = self.forward.logprobs(rows, self.reference_adapter)
            self.reference |= self.forward.by_sequence(rows, logp_T)

    @torch.no_grad()
    def measure_kl_to_base(self) -> None:
        """KL(policy before the first step, base) on a part of the sequences, taken evenly."""
        for rows in self.forward.micro_batches(self._sample()):
            base_T, _ = self.forward.logprobs(rows, None)
            # In float32 the sum of k3's terms would round away what a few small steps move.
            learned_T, base_T = joined(self.learned, rows).double(), base_T.double()
            k3_T = kl_estimate("k3", learned_T, base_T, learned_T)
            self.result.add({"policy/kl_base": Metric(float(k3_T.sum()), len(k3_T))})

    @torch.no_grad()
    def measure_routing(self) -> None:
        """What the steps changed in the routing of the same sequences; nothing if it is dense."""
        routes = self.forward.routes
        if routes is None:
            return
        routes.measures_update = True
        for rows in self.forward.micro_batches(self._sample()):
            self.forward.logprobs(rows, self.adapter)
        self.result.routing = routes.scalars()

    def _sample(self) -> list[int]:
        """A part of the trained sequences, taken evenly."""
        trained = sorted(self.learned)
        count = min(len(trained), _MEASURED_SEQUENCES)
        return [trained[i * len(trained) // count] for i in range(count)]

    def step(
        self, part: Sequence[int], optimizer: torch.optim.Optimizer, *, first_pass: bool
    ) -> None:
        """One optimizer step on the sequences `part`."""
        batch, recipe = self.batch, self.recipe
        rejected = self._rejected(part, first_pass)
        length_N, full_length_N = torch.zeros_like(batch.length_N), torch.zeros_like(batch.length_N)
        full_length_N[list(part)] = batch.full_length_N[list(part)]
        kept = [n for n in part if n not in rejected]
        length_N[kept] = batch.length_N[kept]
        weight_N = weights(
            length_N,
            recipe.aggregate,
            recipe.sampling.max_tokens,
            full_length_N=full_length_N,
            prompt_N=batch.prompt_N,
        )
        num_tokens = int(length_N.sum())
        threshold = self._entropy_threshold(kept)
        nll_N = self._nll_weights(length_N)
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        active = [n for n in kept if self._has_gradient(n)]
        for rows in self._pieces(part, without=rejected):
            if self._has_gradient(rows[0]):
                share = self._share(rows, weight_N, num_tokens, threshold, first_pass, nll_N)
                share.backward()
                loss += float(share.detach())
            else:
                # A forward pass is enough for the metrics.
                with torch.no_grad():
                    share = self._share(rows, weight_N, num_tokens, threshold, first_pass, nll_N)
                    loss += float(share)
        counted_N = full_length_N if recipe.aggregate.masked_in_denominator else length_N
        divisor = denominator(
            counted_N, recipe.aggregate, recipe.sampling.max_tokens, prompt_N=batch.prompt_N
        )
        self.result.add(
            {
                "loss/weight_sum": Metric(float((weight_N * length_N).sum()), 1),
                "loss/denominator": Metric(divisor, 1),
            }
        )
        if not any(batch.length_N[n] for n in active):
            self.result.without_signal += 1
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.optim.max_grad_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.result.nonfinite += 1
            self.result.nonfinite_in_a_row += 1
            return
        optimizer.step()
        self.result.updates += 1
        self.result.nonfinite_in_a_row = 0
        self.result.add({"loss/total": Metric(loss, 1), "optim/grad_norm": Metric(norm, 1)})

    def _share(
        self,
        rows: Sequence[int],
        weight_N: Tensor,
        num_tokens: int,
        threshold: float | None,
        first_pass: bool,
        nll_weight_N: Tensor | None,
    ) -> Tensor:
        """The micro-batch's share of the step's loss; adds its metrics."""
        batch, recipe = self.batch, self.recipe
        bonus = isinstance(recipe.entropy, EntropyBonus)
        logp_T, entropy_T = self.forward.logprobs(rows, self.adapter, entropy_grad=bonus)
        if rows[0] not in self.learned:
            self.learned |= self.forward.by_sequence(rows, logp_T.detach())
        index, device, lengths = list(rows), logp_T.device, self.forward.lengths(rows)
        learned_T = joined(self.learned, rows)
        sampler_T = torch.tensor(
            [x for n in rows for x in batch.sampler_logp_N[n]], device=device, dtype=logp_T.dtype
        )
        length_M = torch.tensor(lengths, device=device)
        tokens = Tokens(
            logp_T=logp_T,
            old_logp_T=sampler_T if recipe.correction.bypass else learned_T,
            adv_N=batch.adv_N[index].to(device, logp_T.dtype),
            seq_T=torch.arange(len(rows), device=device).repeat_interleave(length_M),
            length_N=length_M,
            token_adv_T=None
            if batch.token_adv_N is None
            else joined(batch.token_adv_N, rows).to(device, logp_T.dtype),
        )
        ref_T = joined(self.reference, rows) if recipe.kl.in_loss else None
        keep_T = None
        if threshold is not None:
            keep_T = joined(self.entropies, rows) >= threshold
        loss, token_loss = weighted_loss(
            Parts(recipe.objective, recipe.kl, recipe.correction, recipe.entropy),
            tokens,
            weight_N=weight_N[index].to(device),
            ref_logp_T=ref_T,
            sampler_logp_T=sampler_T,
            entropy_T=entropy_T,
            keep_T=keep_T,
            entropy_weight=1 / max(num_tokens, 1),
            nll_weight_N=None if nll_weight_N is None else nll_weight_N[index].to(device),
        )
        counted = isinstance(recipe.correction, GeoRs)
        self.result.add(
            {
                name: metric
                for name, metric in token_loss.metrics.items()
                if not (counted and name.startswith("correction/"))
            }
        )
        self.result.log_ratios.append((logp_T - tokens.old_logp_T).detach().cpu())
        if first_pass:
            top_T = logp_T.detach() if recipe.correction.bypass else learned_T
            if not counted:
                self.result.log_rhos += (top_T - sampler_T).cpu().split(lengths)
            moved = tokens.adv_T != 0
            self.result.add(
                {
                    "policy/entropy": Metric(float(entropy_T.detach().sum()), len(entropy_T)),
                    "loss/effective_tokens_frac": Metric(int(moved.sum()), len(moved)),
                }
            )
            if ref_T is not None:
                k3_T = kl_estimate("k3", logp_T.detach(), ref_T, learned_T)
                self.result.add({"policy/kl_ref": Metric(float(k3_T.sum()), len(k3_T))})
        return loss

    def _nll_weights(self, length_N: Tensor) -> Tensor | None:
        """Weight of each sequence's tokens in `positive_nll`; None when it is off."""
        if not self.recipe.positive_nll.weight:
            return None
        assert self.batch.right_N is not None
        right_N = self.batch.right_N & (length_N > 0)
        num_tokens = int(length_N[right_N].sum())
        return self.recipe.positive_nll.weight / max(num_tokens, 1) * right_N.double()

    def _has_gradient(self, n: int) -> bool:
        """Whether a sequence can have one: mostly not when its advantage is 0."""
        recipe, batch = self.recipe, self.batch
        adv = batch.adv_N[n] if batch.token_adv_N is None else batch.token_adv_N.get(n, _NOTHING)
        return bool((adv != 0).any()) or (
            recipe.kl.in_loss
            or bool(recipe.positive_nll.weight and batch.right_N is not None and batch.right_N[n])
            or isinstance(recipe.entropy, EntropyBonus)
            or recipe.objective.acts_without_advantage
        )

    def _pieces(self, part: Sequence[int], without: Collection[int] = ()) -> Iterator[list[int]]:
        """The micro-batches of an optimizer step: first those with gradient, then those without.

        The old policy is measured in the same cut in which it trains, so that kernels which round
        by shape give the same log-probabilities and the ratio is 1 where it should be.
        """
        for wanted in (True, False):
            trained = (n for n in part if self.batch.length_N[n])
            chosen = [n for n in trained if self._has_gradient(n) is wanted]
            for rows in self.forward.micro_batches(chosen):
                if kept := [n for n in rows if n not in without]:
                    yield kept

    def _rejected(self, part: Sequence[int], first_pass: bool) -> set[int]:
        """Sequences that a rejecting correction takes out before anything is weighed.

        Its metrics are taken here, where the rejected are still there to be counted.
        """
        if not isinstance(self.recipe.correction, GeoRs):
            return set()
        rejected: set[int] = set()
        for rows in self._pieces(part):
            old_T = joined(self.learned, rows)
            sampler_T = torch.tensor([x for n in rows for x in self.batch.sampler_logp_N[n]])
            lengths = self.forward.lengths(rows)
            seq_T = torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))
            found = correct(
                self.recipe.correction,
                old_T,
                old_T,
                sampler_T.to(old_T),
                self.batch.adv_N[list(rows)].to(old_T),
                seq_T.to(old_T.device),
                len(rows),
            )
            rejected |= {n for n, out in zip(rows, found.rejected_N.tolist(), strict=True) if out}
            if first_pass:
                out = Metric(int(found.rejected_N.sum()), len(rows))
                self.result.add({**found.metrics, "correction/rejected_frac": out})
                gap_T = (old_T - sampler_T.to(old_T)).cpu()
                self.result.log_rhos += gap_T.split(lengths)
        return rejected

    def _entropy_threshold(self, part: Sequence[int]) -> float | None:
        """The entropy from which on a token of this optimizer step trains."""
        if not isinstance(self.recipe.entropy, TopQuantile):
            return None
        found = [self.entropies[n] for n in part if n in self.entropies]
        if not found:
            return None
        ordered_T = torch.cat(found).sort(descending=True).values
        return float(ordered_T[max(math.ceil(self.recipe.entropy.frac * len(ordered_T)), 1) - 1])
