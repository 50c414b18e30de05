"""`Objective`: settings and maths of one per-token loss, in one class."""

from __future__ import annotations

from grpo_cli.config import Node
from grpo_cli.types import TokenLoss, Tokens


class Objective(Node):
    """One per-token loss. A subclass has a literal `kind` and lives in its own file in `kinds/`.

    The contract every subclass keeps (tests/contract/test_objectives.py): at
    `logp == old_logp` the gradient of `ell_T` with respect to `logp_T` is exactly `-adv_T`, up to a
    factor that the class documents.
    """

    kind: str

    def __call__(self, x: Tokens) -> TokenLoss:
        """Per-token loss of the micro-batch `x`, shape (T,), to be minimised."""
        raise NotImplementedError
