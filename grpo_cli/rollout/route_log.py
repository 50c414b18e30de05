"""The experts of every token while a block of rows is decoded.

Dims: R rows decoded together, U distinct prompts among them, L routed layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from grpo_cli.policy.routing import Pass, Routers


class RouteLog:
    """Records nothing without routers."""

    def __init__(self, routers: Routers | None) -> None:
        self._routers = routers
        self._last = Pass()
        self._prompt_R: list[Tensor] = []
        self._tokens_R: list[list[Tensor]] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record the forward pass made inside."""
        if self._routers is None:
            yield
            return
        with self._routers.watch() as self._last:
            yield

    def prompts(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """The pass read the distinct ones of the rows' prompts, padded on the left."""
        if self._routers is None:
            return
        distinct = list(dict.fromkeys(prompts))
        chosen = self._last.experts().unflatten(0, (len(distinct), -1))
        of = {p: chosen[u, chosen.shape[1] - len(p) :] for u, p in enumerate(distinct)}
        self._prompt_R = [of[p] for p in prompts]
        self._tokens_R = [[] for _ in prompts]

    def tokens(self, alive: Sequence[int], finished: Sequence[bool]) -> None:
        """The pass read one token of each row in `alive`; finished rows only ride along."""
        if self._routers is None:
            return
        for row, done, chosen_LK in zip(alive, finished, self._last.experts(), strict=True):
            if not done:
                self._tokens_R[row].append(chosen_LK)

    def of(self, row: int) -> Tensor | None:
        """The experts of a row's prompt and of all its tokens but the last, (positions, L, K)."""
        if self._routers is None:
            return None
        return torch.cat([self._prompt_R[row], *(t[None] for t in self._tokens_R[row])])
