"""How the learner's passes over one batch are routed, and the `moe/*` metrics.

Dims: T positions of a sequence (all but its last token, whose output nobody reads), L routed
layers, E experts of a layer, K experts that a token uses, S positions of a padded forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_cli.policy.routing import OWN, Pass, Routers
from grpo_cli.recipe.moe import Replay
from grpo_cli.types import Batch, Metric


@dataclass(slots=True)
class Routes:
    """The routing of one adapter's passes over a batch. Other adapters, and the base model as the
    reference, choose their own experts."""

    routers: Routers
    replay: Replay
    adapter: str
    batch: Batch
    learned: dict[int, Tensor] = field(default_factory=dict)
    """Sequence -> the learner's own choice (T, L, K) before the batch's first update."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    measures_update: bool = False
    """The updates are done: passes are compared with those before them."""
    _load_LE: Tensor | None = None

    @contextmanager
    def during(self, rows: Sequence[int]) -> Iterator[None]:
        """Route one forward pass over right-padded `rows`, and take its metrics.

        A row's first pass is made by the policy before the batch's first update.
        """
        width = max(self._length(n) for n in rows) + 1
        with self.routers.watch(self._replayed(rows, width)) as seen:
            yield
        new = [n for n in rows if n not in self.learned]
        if new or self.measures_update:
            self._take(rows, seen, width)

    def scalars(self) -> dict[str, float]:
        """The `moe/*` metrics."""
        found = {name: metric.value for name, metric in self.metrics.items()}
        if self._load_LE is not None:
            share_LE = self._load_LE / self._load_LE.sum(1, keepdim=True)
            worst_L = share_LE.max(1).values * self.routers.num_experts
            found["moe/load_imbalance"] = float(worst_L.mean())
        return found

    def _length(self, n: int) -> int:
        return len(self.batch.prompt_ids_N[n]) + len(self.batch.completion_ids_N[n]) - 1

    def _replayed(self, rows: Sequence[int], width: int) -> Tensor | None:
        """Experts for every position of the pass, (S, L, K); None without replay."""
        if self.replay == "off":
            return None
        records: Mapping[int, Tensor] = self.learned
        if self.replay == "sampler":
            assert self.batch.routing_N is not None, "the sampler recorded no routing"
            records = {n: self.batch.routing_N[n] for n in rows}
        shape = (len(rows), width, self.routers.num_layers, self.routers.top_k)
        replay = torch.full(shape, OWN, dtype=torch.int16)
        for i, n in enumerate(rows):
            if n in records:
                replay[i, : self._length(n)] = records[n]
        return replay.flatten(0, 1)

    def _take(self, rows: Sequence[int], seen: Pass, width: int) -> None:
        chosen = seen.experts().unflatten(0, (len(rows), width))
        entropy = seen.entropy().unflatten(0, (len(rows), width))
        for i, n in enumerate(rows):
            own_TLK = chosen[i, : self._length(n)]
            # The positions that predict the completion.
            start = len(self.batch.prompt_ids_N[n]) - 1
            if n in self.learned:
                if self.measures_update:
                    self._add("moe/update_drift", *_changed(self.learned[n], own_TLK, start))
                continue
            self.learned[n] = own_TLK.clone()
            if self.batch.routing_N is not None:
                drift = _changed(self.batch.routing_N[n], own_TLK, start)
                self._add("moe/sampler_drift", *drift)
            if self.routers.renormalised is not None:
                entropy_TL = entropy[i, start : self._length(n)].double()
                self._add("moe/router_entropy", float(entropy_TL.sum()), entropy_TL.numel())
            self._count(own_TLK[start:])

    def _count(self, chosen_TLK: Tensor) -> None:
        experts = torch.arange(self.routers.num_experts)
        load_LE = (chosen_TLK[..., None] == experts).sum((0, 2)).double()
        self._load_LE = load_LE if self._load_LE is None else self._load_LE + load_LE

    def _add(self, name: str, total: float, count: int) -> None:
        metric = Metric(total, count)
        self.metrics[name] = self.metrics[name] + metric if name in self.metrics else metric


def routes_for(
    routers: Routers | None, replay: Replay, adapter: str, batch: Batch
) -> Routes | None:
    """The routes of a batch; None for a dense model."""
    return None if routers is None else Routes(routers, replay, adapter, batch)


def _changed(before_TLK: Tensor, after_TLK: Tensor, start: int) -> tuple[float, int]:
    """Sum of 1 - |A and B| / K over layers and positions from `start` on, and their number."""
    a, b = before_TLK[start:], after_TLK[start:]
    common_TL = (a[..., :, None] == b[..., None, :]).any(-1).double().mean(-1)
    return float((1 - common_TL).sum()), common_TL.numel()
