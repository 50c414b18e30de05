"""Proof, after every sync, that the sampler is the learner's policy.

A fixed sequence is scored by both. They must agree, and an adapter that moves the learner must
move the sampler. Dims: T tokens scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from grpo_cli.errors import GrpoError, error
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.engine import Engine, Scoring

_SCORED = 16
_CONTEXT = 48


def tolerance(recipe: Recipe) -> float:
    """Largest mean |difference| (nats a token) that rounding may cause at this precision.

    Measured on the shipped setups: below 1e-5 in float32, about 0.03 in bfloat16.
    """
    if recipe.engine.quantization:
        return 1.0
    dtypes = {recipe.learner.dtype, recipe.engine.dtype} - {"auto"}
    return 1e-3 if dtypes == {"float32"} else 0.25


class Canary:
    """A sequence with what sampler and learner last said about it."""

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        prompts: Sequence[tuple[int, ...]],
        tolerance: float,
    ) -> None:
        """Take the sequence from `prompts`: it needs real text, not answers."""
        ids = tuple(chain.from_iterable(prompts))[: _CONTEXT + _SCORED]
        cut = max(1, len(ids) - _SCORED)
        self._prompt, self._scored = ids[:cut], ids[cut:]
        self._policy, self._engine = policy, engine
        self._tolerance = tolerance
        self._base: tuple[Tensor, Tensor] | None = None
        self._last: dict[str, tuple[Tensor, Tensor]] = {}

    def check(self, adapter: str) -> dict[str, float]:
        """Compare both sides for an adapter that was just synced.

        Returns:
            `canary/logp_abs_mean`: mean |sampler - learner|, nats a token.
            `canary/moved`: mean |adapter - base| of the learner.

        Raises:
            GrpoError: GR306 (exit code 3), which says which of the two went wrong; GR301 when the
                learner's own log-probabilities are not finite.
        """
        if self._base is None:
            self._base = self._both(None)
        base_sampler, base_learner = self._base
        sampler, learner = self._both(adapter)
        before = self._last.get(adapter)
        self._last[adapter] = (sampler, learner)
        gap, noise = _mean(sampler - learner), _mean(base_sampler - base_learner)
        moved = _mean(learner - base_learner)
        readings = {"canary/logp_abs_mean": gap, "canary/moved": moved}
        if not torch.isfinite(learner).all():
            raise error(
                "GR301",
                "the model's log-probabilities are not finite",
                hint="lower optim.lr; earlier checkpoints are intact",
                exit_code=3,
            )
        finite = bool(torch.isfinite(sampler).all())
        # Below the noise of rounding nobody can say whether the adapter is there.
        if finite and noise <= self._tolerance:
            if moved > max(noise, 1e-6) and torch.equal(sampler, base_sampler):
                raise _failed("the sampler answers as the base model: the adapter is not in effect")
            if before is not None:
                step = _mean(learner - before[1])
                if step > max(noise, 1e-6) and torch.equal(sampler, before[0]):
                    raise _failed("the sampler still answers with the weights before the last sync")
            if moved == 0 and learner.dtype == torch.float32 and self._has_weights(adapter):
                raise _failed("the learner answers as the base model although its adapter is not 0")
            if gap <= self._tolerance:
                return readings
        raise _failed(self._diagnose(sampler, learner, gap, noise, finite))

    def _both(self, adapter: str | None) -> tuple[Tensor, Tensor]:
        scoring = Scoring(adapter, self._prompt, self._scored)
        sampler_T = torch.tensor(self._engine.score([scoring])[0])
        with torch.no_grad():
            learner_T, _ = self._policy.logprobs(adapter, [self._prompt], [self._scored], 1.0)
        return sampler_T, learner_T.cpu()

    def _has_weights(self, adapter: str) -> bool:
        # An adapter whose B matrices are tiny may change no bit of a bfloat16 model.
        if next(self._policy.causal.parameters()).dtype != torch.float32:
            return False
        named = self._policy.parameters(adapter).items()
        return any(bool((p.abs() > 1e-4).any()) for name, p in named if "lora_B" in name)

    def _diagnose(
        self, sampler: Tensor, learner: Tensor, gap: float, noise: float, finite: bool
    ) -> str:
        assert self._base is not None
        if not finite:
            return "the sampler's log-probabilities are not finite"
        if noise > self._tolerance:
            return (
                f"already without an adapter they differ by {noise:.3g} nats a token: the sampler "
                "has other base weights, or another precision, than the learner"
            )
        gap_to_base = _mean(sampler - self._base[1])
        if gap_to_base <= self._tolerance < gap:
            return "the sampler answers as the base model: the adapter is not in effect"
        if _mean(learner - self._base[1]) <= max(noise, 1e-6):
            return "the learner answers as the base model while the sampler does not"
        return "the sampler answers with another adapter or other weights than the learner's"


def _mean(difference: Tensor) -> float:
    return float(difference.double().abs().mean())


def _failed(what: str) -> GrpoError:
    return error(
        "GR306",
        f"sampler and learner are not the same policy: {what}",
        hint="the last checkpoint is intact; try `--engine transformers`",
        exit_code=3,
    )
