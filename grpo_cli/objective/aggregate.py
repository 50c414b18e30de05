"""Loss normalisation as one weight per sequence. Dims: N sequences of the whole optimizer step."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor


class _Aggregate(Node):
    masked_in_denominator: bool = False
    """Whether sequences taken out of the loss still count in the denominator (as in TRL). By
    default they leave both sides (as in verl)."""


class SeqMean(_Aggregate):
    """Mean over sequences of each sequence's token mean: w = 1 / (N L_n)."""

    kind: Literal["seq_mean"] = "seq_mean"
    source: ClassVar[str] = "GRPO arXiv:2402.03300 Eq. 3"

    def formula(self) -> str:
        """The weight of a token."""
        return "1 / (N L_n)"


class TokenMean(_Aggregate):
    """Mean over all tokens of the optimizer step: w = 1 / sum(L)."""

    kind: Literal["token_mean"] = "token_mean"
    source: ClassVar[str] = "DAPO arXiv:2503.14476 Eq. 8"

    def formula(self) -> str:
        """The weight of a token."""
        return "1 / sum(L)"


class Constant(_Aggregate):
    """Sum over tokens divided by N times a constant: w = 1 / (N length)."""

    kind: Literal["constant"] = "constant"
    source: ClassVar[str] = "Dr. GRPO arXiv:2503.20783 Listing 1"
    length: int | None = Field(None, ge=1)
    """The constant, in tokens. `null` takes `sampling.max_tokens`."""

    def formula(self) -> str:
        """The weight of a token."""
        return f"1 / (N {'max_tokens' if self.length is None else self.length})"


class SeqSum(_Aggregate):
    """Mean over sequences of each sequence's token sum: w = 1 / N."""

    kind: Literal["seq_sum"] = "seq_sum"
    source: ClassVar[str] = "Dr. GRPO arXiv:2503.20783 Fig. 1; LUSPO arXiv:2602.05261"

    def formula(self) -> str:
        """The weight of a token."""
        return "1 / N"


class PromptMean(_Aggregate):
    """Mean over prompts of the token mean over the prompt's samples: w = 1 / (P sum_p(L))."""

    kind: Literal["prompt_mean"] = "prompt_mean"
    source: ClassVar[str] = "ScaleRL arXiv:2510.13786"

    def formula(self) -> str:
        """The weight of a token."""
        return "1 / (P sum of L over the prompt's samples)"


AnyAggregate = SeqMean | TokenMean | Constant | SeqSum | PromptMean
Aggregate = Annotated[AnyAggregate, Field(discriminator="kind")]


def weights(
    length_N: Tensor,
    settings: AnyAggregate,
    max_tokens: int,
    *,
    full_length_N: Tensor | None = None,
    prompt_N: Tensor | None = None,
) -> Tensor:
    """Weight of each token of a sequence in the loss, shape (N,), float64.

    Args:
        length_N: number of trainable tokens of each sequence of the *whole optimizer step*; 0 for
            one that is out of the loss, which gets weight 0.
        max_tokens: the constant of `Constant(length=None)`.
        full_length_N: lengths before anything was taken out; needed by `masked_in_denominator`.
        prompt_N: each sequence's group; needed by `prompt_mean`.

    Example:
        lengths [1, 3]: seq_mean [1/2, 1/6], token_mean [1/4, 1/4], constant with 4: [1/8, 1/8],
        seq_sum [1/2, 1/2]
    """
    trained_N = length_N > 0
    counted_N = length_N
    if settings.masked_in_denominator:
        assert full_length_N is not None, "masked_in_denominator needs the full lengths"
        counted_N = full_length_N
    counted_N = counted_N.double()
    count = denominator(counted_N, settings, max_tokens, prompt_N=prompt_N)
    if isinstance(settings, SeqMean):
        weight_N = 1 / (count * counted_N.clamp(min=1))
    elif isinstance(settings, PromptMean):
        weight_N = 1 / (count * _prompt_tokens(counted_N, prompt_N)[prompt_N].clamp(min=1))
    else:
        weight_N = counted_N.new_full(counted_N.shape, 1 / count)
    return weight_N * trained_N


def denominator(
    counted_N: Tensor,
    settings: AnyAggregate,
    max_tokens: int,
    *,
    prompt_N: Tensor | None = None,
) -> float:
    """What the step is divided by: sequences, tokens or prompts that count; at least 1.

    For seq_mean and prompt_mean it divides means, for the others sums of token losses.
    """
    sequences = int((counted_N > 0).sum())
    if isinstance(settings, TokenMean):
        count = int(counted_N.sum())
    elif isinstance(settings, PromptMean):
        count = int((_prompt_tokens(counted_N, prompt_N) > 0).sum())
    elif isinstance(settings, Constant):
        count = sequences * (max_tokens if settings.length is None else settings.length)
    else:
        count = sequences
    return float(max(count, 1))


def _prompt_tokens(counted_N: Tensor, prompt_N: Tensor | None) -> Tensor:
    """Tokens of each prompt's sequences together, shape (P,)."""
    assert prompt_N is not None, "prompt_mean needs the groups"
    tokens_P = counted_N.new_zeros(int(prompt_N.max()) + 1)
    return tokens_P.index_add(0, prompt_N, counted_N)


def minibatch_of(num_groups: int, count: int) -> list[int]:
    """The minibatch of every group: runs of whole groups, as equal as they can be."""
    edges = [round(i * num_groups / count) for i in range(count + 1)]
    return [part for part, (low, high) in enumerate(pairwise(edges)) for _ in range(low, high)]
