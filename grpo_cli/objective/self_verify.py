"""Pay for honest judgement of one's own answer beside the answer. Must not import torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from grpo_cli.config import Node


class NoSelfVerify(Node):
    """The reward is the verifier's score."""

    kind: Literal["none"] = "none"


class JudgedSelfVerify(Node):
    """The policy answers, then judges its answer, and is paid for both.

    The prompt asks for the verdict (`task.self_check`, on by itself with this) and the verifier
    sees only what stands before it. Without one readable verdict the reward is 0.
    """

    kind: Literal["judged"] = "judged"
    answer_weight: float = Field(0.76, ge=0)
    """Paid for the verifier's score s of the answer."""
    honesty_weight: float = Field(0.24, ge=0)
    """Paid for 1 - |s' - s|, s' being the verdict: 1 for right, 0 for wrong."""
    source: ClassVar[str] = "self-verification DeepSeekMath-V2 arXiv:2511.22570"

    @model_validator(mode="after")
    def _pays_something(self) -> JudgedSelfVerify:
        if self.answer_weight == self.honesty_weight == 0:
            raise ValueError("answer_weight and honesty_weight are both 0: nothing is paid")
        return self

    def formula(self) -> str:
        """The reward before length shaping, with its numbers."""
        honesty = f"{self.honesty_weight:g} (1 - |s' - s|)"
        return f"[readable verdict] ({self.answer_weight:g} s + {honesty})"


SelfVerify = Annotated[NoSelfVerify | JudgedSelfVerify, Field(discriminator="kind")]


def judged_reward(score: float, said: float | None, settings: JudgedSelfVerify) -> float:
    """The reward of an answer that the verifier scored and the policy judged.

    DeepSeekMath-V2's generator reward R_format (alpha R_Y + beta R_Z) with 1 for the meta-verifier,
    who reads analyses in prose: here a verdict is one word.

    Args:
        score: the verifier's, NaN without a verdict; the reward is then NaN too.
        said: the policy's verdict, 0 to 1, or None when it cannot be read.

    Example:
        weights 0.76 and 0.24: a wrong answer called wrong 0.24, called right 0; a right answer
        called right 1, called wrong 0.76; any answer without a readable verdict 0
    """
    if score != score:
        return score
    if said is None:
        return 0.0
    return settings.answer_weight * score + settings.honesty_weight * (1 - abs(said - score))
