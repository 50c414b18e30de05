"""What a recipe says about mixtures of experts. Must not import torch."""

from __future__ import annotations

from typing import Literal

from grpo_cli.config import Node

Replay = Literal["off", "learner", "sampler"]


class Moe(Node):
    """Routing replay: which experts the learner's passes use. Only for a mixture of experts."""

    replay: Replay = "off"
    """`off`: each pass chooses anew. `learner` (R2): the choice of the pass before the batch's
    first update. `sampler` (R3, arXiv:2510.11370): the choice at generation."""

    def formula(self) -> str:
        """The experts and their gate."""
        if self.replay == "off":
            return "each pass chooses its own experts"
        side = "sampler" if self.replay == "sampler" else "old policy"
        return f"I = experts chosen by the {side}, g_e = I_e exp(s_e) / sum I exp(s)"
