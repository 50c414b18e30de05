"""Sampling with the learner's own weights through `transformers`: exact, slow, runs everywhere.

Dims: R rows decoded together, U distinct prompts among them, V vocabulary.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor
from transformers import DynamicCache

from grpo_cli.errors import error
from grpo_cli.policy.policy import Policy
from grpo_cli.rollout.engine import Request, Scoring
from grpo_cli.rollout.route_log import RouteLog
from grpo_cli.rollout.truncation import Truncation
from grpo_cli.types import Completion, Finish

_SMALL_MODEL = 10_000_000
"""Parameters below which decoding uses one thread: handing a matrix this small to a second one
costs as much time as it saves, and far more on a busy machine."""


class TransformersEngine:
    """An `Engine` on the policy's own modules, so sampler and learner cannot drift apart.

    Rows of one adapter are decoded in blocks of at most `batch_rows`. A block holds rows of one
    adapter only, so an arm's completions do not depend on which other arms are sampled.
    """

    def __init__(self, policy: Policy, batch_rows: int) -> None:
        self._policy = policy
        self._batch_rows = batch_rows
        self._versions: dict[str, int] = {}
        # transformers renamed it; a model takes the other name silently and without effect.
        arguments = inspect.signature(policy.body.forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        assert self._cache_argument in arguments, arguments
        num_parameters = sum(p.numel() for p in policy.causal.parameters())
        self._one_thread = policy.device.type == "cpu" and num_parameters < _SMALL_MODEL

    def sync(self, adapter: str, version: int) -> None:
        """Nothing to copy; the version is written into every later completion."""
        self._versions[adapter] = version

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order.

        Raises:
            GrpoError: GR301 when the model's probabilities are not finite.
        """
        by_adapter: dict[str | None, list[int]] = {}
        for index, request in enumerate(requests):
            by_adapter.setdefault(request.adapter, []).append(index)
        out: dict[int, Completion] = {}
        for adapter, indices in by_adapter.items():
            for start in range(0, len(indices), self._batch_rows):
                block = indices[start : start + self._batch_rows]
                with self._threads(), torch.inference_mode(), self._policy.using(adapter):
                    done = self._decode([requests[i] for i in block])
                out.update(zip(block, done, strict=True))
        return [out[i] for i in range(len(requests))]

    def score(self, scorings: Sequence[Scoring]) -> list[tuple[float, ...]]:
        """Log-probabilities of given completions, read through the decoding cache."""
        return [self._score(scoring) for scoring in scorings]

    def rest(self) -> None:
        """Nothing to give back: the weights are the learner's own."""

    @torch.inference_mode()
    def _score(self, scoring: Scoring) -> tuple[float, ...]:
        row = Request(scoring.prompt_ids, 0, scoring.adapter, len(scoring.completion_ids), 1.0)
        ids = torch.tensor([scoring.completion_ids], device=self._policy.device)
        with self._threads(), self._policy.using(scoring.adapter):
            cache, mask, hidden = self._prefill([row])
            width = mask.shape[1] + ids.shape[1] - 1
            later = self._policy.body(
                input_ids=ids[:, :-1],
                attention_mask=mask.new_ones(1, width),
                position_ids=torch.arange(mask.shape[1], width, device=mask.device)[None],
                use_cache=True,
                **{self._cache_argument: cache},
            ).last_hidden_state
            logits = self._policy.logits(torch.cat([hidden[:, None], later], dim=1))
            logp = logits.log_softmax(-1).gather(-1, ids[..., None])[0, :, 0]
        return tuple(logp.tolist())

    @contextmanager
    def _threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        if self._one_thread:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _decode(self, rows: Sequence[Request]) -> list[Completion]:
        policy, device = self._policy, self._policy.device
        limits = torch.tensor([row.max_tokens for row in rows])
        temperature_R = torch.tensor([row.temperature for row in rows], device=device)[:, None]
        # All of a row's randomness is drawn up front from its own generator.
        uniform_RT = torch.stack([_uniforms(r.seed, int(limits.max())) for r in rows]).to(device)
        eos = torch.tensor(sorted(policy.eos_ids), device=device)
        ids_R: list[list[int]] = [[] for _ in rows]
        logp_R: list[list[float]] = [[] for _ in rows]
        stopped = [False] * len(rows)

        log = RouteLog(policy.routers if any(row.routing for row in rows) else None)
        with log.watch():
            cache, mask, hidden = self._prefill(rows)
        log.prompts([row.prompt_ids for row in rows])
        truncation = Truncation(rows, policy.head.weight.shape[0], device)
        alive = torch.arange(len(rows))  # rows of the original block that still decode
        finished = torch.zeros(len(rows), dtype=torch.bool)
        for t in range(int(limits.max())):
            logits = policy.logits(hidden) / temperature_R
            logp_RV = truncation.cut(logits, alive, finished).log_softmax(-1)
            token_R = _inverse_cdf(logp_RV, uniform_RT[:, t])
            chosen_R = logp_RV.gather(-1, token_R[:, None])[:, 0]
            is_eos = torch.isin(token_R, eos).cpu()
            done_now = is_eos | (limits <= t + 1)
            for j, (token, logp) in enumerate(
                zip(token_R.tolist(), chosen_R.tolist(), strict=True)
            ):
                if not finished[j]:
                    row = int(alive[j])
                    ids_R[row].append(token)
                    logp_R[row].append(logp)
                    stopped[row] = bool(is_eos[j])
            finished |= done_now
            if finished.all():
                break
            # Finished rows ride along until a quarter of the block is done; dropping them copies
            # the cache once, which a decoding step does anyway.
            if finished.sum() * 4 >= len(finished):
                keep = (~finished).nonzero()[:, 0]
                cache.batch_select_indices(keep.to(device))
                mask, token_R = mask[keep], token_R[keep]
                uniform_RT, temperature_R = uniform_RT[keep], temperature_R[keep]
                alive, limits, finished = alive[keep], limits[keep], finished[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            with log.watch():
                hidden = policy.body(
                    input_ids=token_R[:, None],
                    attention_mask=mask,
                    position_ids=mask.sum(1, keepdim=True) - 1,
                    use_cache=True,
                    **{self._cache_argument: cache},
                ).last_hidden_state[:, -1]
            log.tokens(alive.tolist(), finished.tolist())
        if not all(map(math.isfinite, chain.from_iterable(logp_R))):
            # Sampling would go on with arbitrary tokens, all wrong, and look like a bad policy.
            raise error(
                "GR301",
                "the model's log-probabilities are not finite",
                hint="lower optim.lr; earlier checkpoints are intact",
                exit_code=3,
            )
        return [
            Completion(
                token_ids=tuple(ids),
                text=policy.decode(ids),
                logp=tuple(logp),
                finish=Finish.STOP if stop else Finish.LENGTH,
                adapter_version=self._versions.get(row.adapter or "", 0),
                routing=log.of(i),
                support=truncation.of(i),
            )
            for i, (row, ids, logp, stop) in enumerate(
                zip(rows, ids_R, logp_R, stopped, strict=True)
            )
        ]

    def _prefill(self, rows: Sequence[Request]) -> tuple[DynamicCache, Tensor, Tensor]:
        """Cache, mask (R, S) and last hidden state (R, D); each distinct prompt is read once."""
        device = self._policy.device
        distinct = list(dict.fromkeys(row.prompt_ids for row in rows))
        width = max(len(prompt) for prompt in distinct)
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in distinct], device=device)
        mask = torch.tensor(
            [[0] * (width - len(p)) + [1] * len(p) for p in distinct], device=device
        )
        cache = DynamicCache()
        hidden = self._policy.body(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            use_cache=True,
            **{self._cache_argument: cache},
        ).last_hidden_state[:, -1]
        place = {prompt: i for i, prompt in enumerate(distinct)}
        spread = torch.tensor([place[row.prompt_ids] for row in rows], device=device)
        cache.batch_select_indices(spread)
        return cache, mask[spread], hidden[spread]


def _uniforms(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _inverse_cdf(logp_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Draw one token per row, (R,): the first whose cumulative probability passes the uniform."""
    cdf_RV = logp_RV.double().exp().cumsum(-1)
    target_R = uniform_R * cdf_RV[:, -1]
    token_R = torch.searchsorted(cdf_RV, target_R[:, None], right=True)[:, 0]
    return token_R.clamp(max=logp_RV.shape[-1] - 1)
