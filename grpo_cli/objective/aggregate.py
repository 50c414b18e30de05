"""Loss normalisation as one weight per sequence. Dims: N sequences of the whole optimizer step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor


class SeqMean(Node):
    """Mean over sequences of each sequence's token mean: w = 1 / (N L_n). GRPO Eq. 3."""

    kind: Literal["seq_mean"] = "seq_mean"


class TokenMean(Node):
    """Mean over all tokens of the optimizer step: w = 1 / sum(L). DAPO Eq. 8."""

    kind: Literal["token_mean"] = "token_mean"


class Constant(Node):
    """Sum over tokens divided by N times a constant: w = 1 / (N length). Dr. GRPO Listing 1."""

    kind: Literal["constant"] = "constant"
    length: int | None = Field(None, ge=1)
    """The constant, in tokens. `null` takes `sampling.max_tokens`."""


Aggregate = Annotated[SeqMean | TokenMean | Constant, Field(discriminator="kind")]


def weights(length_N: Tensor, settings: SeqMean | TokenMean | Constant, max_tokens: int) -> Tensor:
    """Weight of each token of a sequence in the loss, shape (N,), float64.

    Args:
        length_N: number of trainable tokens of each sequence of the *whole optimizer step*. A
            masked sequence enters with length 0: it gets weight 0 and leaves the denominator too.
        max_tokens: the constant of `Constant(length=None)`.

    Example:
        lengths [1, 3]: seq_mean [1/2, 1/6], token_mean [1/4, 1/4], constant with 4: [1/8, 1/8]
    """
    length_N = length_N.double()
    trained_N = length_N > 0
    num_sequences = trained_N.sum().clamp(min=1)
    if isinstance(settings, SeqMean):
        weight_N = 1 / (num_sequences * length_N.clamp(min=1))
    elif isinstance(settings, TokenMean):
        weight_N = (1 / length_N.sum().clamp(min=1)).expand_as(length_N)
    else:
        length = max_tokens if settings.length is None else settings.length
        weight_N = (1 / (num_sequences * length)).expand_as(length_N)
    return weight_N * trained_N
