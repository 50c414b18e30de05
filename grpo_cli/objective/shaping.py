"""Length shaping, kept apart from correctness. Dims: N sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from grpo_cli.config import Node

if TYPE_CHECKING:
    from torch import Tensor


class NoOverlong(Node):
    """A truncated completion keeps whatever the verifier paid for it."""

    kind: Literal["none"] = "none"
    source: ClassVar[str] = ""

    def formula(self) -> str:
        """The reward."""
        return "score"


class HardOverlong(Node):
    """A truncated completion loses `penalty`."""

    kind: Literal["hard"] = "hard"
    penalty: float = Field(1.0, gt=0)
    """Taken off the reward, in units of reward."""
    source: ClassVar[str] = ""

    def formula(self) -> str:
        """The reward with its numbers."""
        return f"score - {self.penalty:g} [truncated]"


class MaskOverlong(Node):
    """A truncated completion leaves the loss ("overlong filtering", DAPO Section 3.4).

    Its reward still counts in the group's mean and standard deviation, as in TRL and verl.
    """

    kind: Literal["mask"] = "mask"
    source: ClassVar[str] = "overlong filtering DAPO arXiv:2503.14476 Sec. 3.4"

    def formula(self) -> str:
        """The rule."""
        return "score; truncated completions leave the loss"


class SoftOverlong(Node):
    """A penalty that grows linearly over the last tokens of the budget. DAPO Eq. 13."""

    kind: Literal["soft"] = "soft"
    cache_frac: float = Field(0.2, gt=0, le=1)
    """Width of the ramp as a fraction of `sampling.max_tokens` (the paper: 4096 / 20480 = 0.2)."""
    penalty: float = Field(1.0, gt=0)
    """The penalty at the limit, in units of reward. The paper: 1, with rewards of +1 and -1."""
    mask_truncated: bool = False
    """Also take truncated completions out of the loss."""
    source: ClassVar[str] = "soft overlong punishment DAPO arXiv:2503.14476 Eq. 13"

    def formula(self) -> str:
        """The reward with its numbers."""
        ramp = (
            f"score - {self.penalty:g} ramp over the last {100 * self.cache_frac:g} % of max_tokens"
        )
        return ramp + ("; truncated completions leave the loss" if self.mask_truncated else "")


Overlong = Annotated[
    NoOverlong | HardOverlong | MaskOverlong | SoftOverlong, Field(discriminator="kind")
]


def length_penalty(
    length_N: Tensor,
    truncated_N: Tensor,
    settings: NoOverlong | HardOverlong | MaskOverlong | SoftOverlong,
    max_tokens: int,
) -> Tensor:
    """What to add to each reward for its length, shape (N,), float64, never above 0.

    Example:
        soft, max_tokens 20, cache_frac 0.25: lengths 15, 16, 18, 20 -> 0, -0.2, -0.6, -1
    """
    length_N = length_N.double()
    if isinstance(settings, HardOverlong):
        return -settings.penalty * truncated_N.double()
    if isinstance(settings, SoftOverlong):
        cache = settings.cache_frac * max_tokens
        over_N = (length_N - (max_tokens - cache)) / cache
        return -settings.penalty * over_N.clamp(0, 1)
    return length_N.new_zeros(length_N.shape)


def masks_truncated(settings: NoOverlong | HardOverlong | MaskOverlong | SoftOverlong) -> bool:
    """Whether truncated completions are taken out of the loss."""
    return isinstance(settings, MaskOverlong) or (
        isinstance(settings, SoftOverlong) and settings.mask_truncated
    )
