"""`Objective`: settings and maths of one per-token loss, in one class.

Dims: T completion tokens, N sequences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from grpo_cli.config import Node
from grpo_cli.types import Metric, TokenLoss, Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Objective(Node):
    """One per-token loss. A subclass has a literal `kind` and lives in its own file in `kinds/`.

    The contract every subclass keeps (tests/contract/test_objectives.py): at `logp == old_logp`
    the gradient of `sum_t w[n_t] ell_t` with respect to `logp_T` is `-w[n_t] A[n_t]`.
    """

    kind: str
    source: ClassVar[str] = ""
    """Paper and equation."""
    acts_without_advantage: ClassVar[bool] = False
    """Whether a sequence with advantage 0 has a gradient (off-policy); if not, the trainer saves
    its backward pass."""

    sequence_level: ClassVar[bool] = False
    """Whether it reads one advantage per sequence, which a critic does not give."""

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss of the micro-batch `x`, shape (T,), to be minimised."""
        raise NotImplementedError

    def formula(self) -> str:
        """The per-token loss with its numbers, as text."""
        return self.kind


LOW_PROB = 0.1
"""Old probability below which a token counts as one that explores."""


def clip_metrics(is_low_T: Tensor, is_high_T: Tensor, x: Tokens | None = None) -> dict[str, Metric]:
    """The shares of tokens whose gradient is stopped or capped on either side.

    With `x` also the share on the high side among the tokens that the advantage pushes up from an
    old probability below `LOW_PROB`: those are what a tight upper bound keeps rare (DAPO 3.1).
    """
    num_tokens = is_low_T.numel()
    metrics = {
        "ratio/clipped_low_frac": Metric(int(is_low_T.sum()), num_tokens),
        "ratio/clipped_high_frac": Metric(int(is_high_T.sum()), num_tokens),
    }
    if x is not None:
        rising_T = (x.adv_T > 0) & (x.old_logp_T < math.log(LOW_PROB))
        stopped = int((is_high_T & rising_T).sum())
        metrics["ratio/clipped_low_prob_frac"] = Metric(stopped, int(rising_T.sum()))
    return metrics


def sequence_mean(value_T: Tensor, x: Tokens) -> Tensor:
    """Mean over the tokens of each sequence, shape (N,)."""
    total_N = value_T.new_zeros(len(x.length_N)).index_add(0, x.seq_T, value_T)
    return total_N / x.length_N.clamp(min=1)
