"""Top-k and top-p while a block of rows is decoded. Dims: R rows, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_cli.rollout.engine import Request
from grpo_cli.support import Support, kept_tokens


class Truncation:
    """Cuts the rows that ask for it, and records what stays where a row asks for that.

    When no row is cut, logits pass through untouched.
    """

    def __init__(self, rows: Sequence[Request], vocabulary: int, device: torch.device) -> None:
        self._cuts = any(row.top_p < 1 or row.top_k is not None for row in rows)
        self._top_p_R = torch.tensor([row.top_p for row in rows], device=device).double()
        self._top_k_R = torch.tensor([row.top_k or vocabulary for row in rows], device=device)
        self._records_R = [row.support for row in rows]
        self._kept_R: list[list[Tensor]] = [[] for _ in rows]

    def cut(self, logits_RV: Tensor, alive_R: Tensor, finished_R: Tensor) -> Tensor:
        """The logits (after temperature), minus infinity where a token may not be drawn.

        Args:
            alive_R: index, in the block, of each row that still decodes.
            finished_R: rows that only ride along.
        """
        if not self._cuts:
            return logits_RV
        at = alive_R.to(logits_RV.device)
        kept_RV = kept_tokens(logits_RV, self._top_p_R[at], self._top_k_R[at])
        alive, finished = alive_R.tolist(), finished_R.tolist()
        if any(self._records_R):
            # `nonzero` goes row by row with ascending ids.
            ids = kept_RV.nonzero()[:, 1].int().cpu().split(kept_RV.sum(-1).tolist())
            for row, done, kept in zip(alive, finished, ids, strict=True):
                if self._records_R[row] and not done:
                    self._kept_R[row].append(kept)
        return logits_RV.masked_fill(~kept_RV, -torch.inf)

    def of(self, row: int) -> Support | None:
        """What stayed at each token of a row; None where nothing was recorded."""
        kept = self._kept_R[row]
        if not kept:
            return None
        return Support(torch.cat(kept), torch.tensor([len(k) for k in kept], dtype=torch.int32))
