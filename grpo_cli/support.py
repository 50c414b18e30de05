"""Which tokens top-k and top-p keep, and a compact record of them.

Dims: R rows decoded together, T completion tokens, S kept tokens of all positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """The kept tokens of every position of a completion, laid end to end.

    Example:
        Support(ids=tensor([4, 17, 9]), size_T=tensor([2, 1])) keeps the tokens 4 and 17 at the
        first position and 9 alone at the second.
    """

    ids: Tensor
    """Vocabulary ids, ascending within a position, (S,) int32."""
    size_T: Tensor
    """Number of kept tokens of each position, (T,) int32; at least 1."""

    def split(self, length: int) -> list[Support]:
        """The support of every `length` positions; the last piece may be shorter."""
        sizes = self.size_T.split(length)
        ids = self.ids.split([int(size_T.sum()) for size_T in sizes])
        return [Support(*piece) for piece in zip(ids, sizes, strict=True)]

    def mask(self, vocabulary: int) -> Tensor:
        """Whether each token of the vocabulary was kept, (T, V) bool."""
        position = torch.arange(len(self.size_T), device=self.ids.device)
        kept_TV = self.ids.new_zeros(len(self.size_T), vocabulary, dtype=torch.bool)
        kept_TV[position.repeat_interleave(self.size_T.long()), self.ids.long()] = True
        return kept_TV

    def to(self, device: torch.device) -> Support:
        """The same on a device."""
        return Support(self.ids.to(device), self.size_T.to(device))


def joined_support(supports: Sequence[Support]) -> Support:
    """The support of several completions end to end."""
    return Support(torch.cat([s.ids for s in supports]), torch.cat([s.size_T for s in supports]))


def kept_tokens(logits_RV: Tensor, top_p_R: Tensor, top_k_R: Tensor) -> Tensor:
    """Whether each token may be drawn, (R, V) bool.

    As in transformers and vLLM: first the `top_k` likeliest tokens, then of those the smallest set
    whose share of their probability reaches `top_p`. The likeliest token always stays. Of equally
    likely tokens the lower ids come first, so exactly `top_k` tokens pass the first cut
    (transformers and vLLM let all pass that tie with the last).

    Args:
        logits_RV: after temperature.
        top_p_R: 1 cuts nothing.
        top_k_R: the size of the vocabulary cuts nothing.
    """
    ordered_RV, order_RV = logits_RV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)
    kept_RV = rank_V < top_k_R[:, None]
    prob_RV = ordered_RV.masked_fill(~kept_RV, -torch.inf).double().softmax(-1)
    before_RV = prob_RV.cumsum(-1) - prob_RV
    # The sum can round to 1 before the last token.
    kept_RV &= (before_RV < top_p_R[:, None]) | (top_p_R[:, None] >= 1)
    return torch.zeros_like(kept_RV).scatter(-1, order_RV, kept_RV)


def support_scalars(supports: Sequence[Support]) -> dict[str, float]:
    """The `policy/support_*` metrics over the positions of these completions, NaN without any."""
    sizes = [size for s in supports for size in s.size_T.tolist()]
    count = len(sizes) or float("nan")
    return {
        "policy/support_mean": sum(sizes) / count,
        "policy/support_one_frac": sum(size == 1 for size in sizes) / count,
    }
