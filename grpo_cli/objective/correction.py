"""Weights for the gap between the sampler and the learner, and for staleness; always detached.

rho = old / sampler (decoupled), or policy / sampler with `bypass`. Dims: T tokens, N sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from grpo_cli.config import Node
from grpo_cli.types import Metric

if TYPE_CHECKING:
    from torch import Tensor


class _Correction(Node):
    source: ClassVar[str] = ""
    bypass: bool = False
    """Take the sampler's log-probabilities as the old policy, so that the objective's ratio is
    policy / sampler. A weight then needs `objective.kind: reinforce`, which has no ratio."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return "1"


class NoCorrection(_Correction):
    """Weight 1."""

    kind: Literal["none"] = "none"


class TisToken(_Correction):
    """min(rho_t, cap): truncated importance sampling per token."""

    kind: Literal["tis_token"] = "tis_token"
    source: ClassVar[str] = "Yao et al. 2025, fengyao.notion.site/off-policy-rl"
    cap: float = Field(2.0, gt=0)
    """Largest weight."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"min(rho_t, {self.cap:g})"


class TisSeq(_Correction):
    """min(prod_t rho_t, cap): truncated importance sampling per sequence."""

    kind: Literal["tis_seq"] = "tis_seq"
    source: ClassVar[str] = "Yao et al. 2025; verl rollout_is=sequence"
    cap: float = Field(2.0, gt=0)
    """Largest weight."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"min(prod rho, {self.cap:g})"


class MisToken(_Correction):
    """rho_t where rho_t <= cap, else 0: masked importance sampling per token."""

    kind: Literal["mis_token"] = "mis_token"
    source: ClassVar[str] = "Liu, Li et al. 2025, When Speed Kills Stability"
    cap: float = Field(3.0, gt=0)
    """Weights above it become 0."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"rho_t [rho_t <= {self.cap:g}]"


class MisSeq(_Correction):
    """prod_t rho_t where it is <= cap, else 0: masked importance sampling per sequence."""

    kind: Literal["mis_seq"] = "mis_seq"
    source: ClassVar[str] = "Liu, Li et al. 2025, When Speed Kills Stability; TRL's default"
    cap: float = Field(3.0, gt=0)
    """Weights above it become 0. The product grows with length: past about a thousand tokens it
    shrinks most of the batch."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"prod rho [prod rho <= {self.cap:g}]"


class IcePop(_Correction):
    """rho_t inside [low, high], else 0."""

    kind: Literal["icepop"] = "icepop"
    source: ClassVar[str] = "Ring-1T arXiv:2510.18855 Eq. 1 and 2"
    low: float = Field(0.5, ge=0, le=1)
    """Lowest weight that is kept."""
    high: float = Field(5.0, ge=1)
    """Highest weight that is kept."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"rho_t [{self.low:g} <= rho_t <= {self.high:g}]"


class GeoRs(_Correction):
    """Reject a sequence whose geometric-mean rho leaves [low, high]; weight 1 otherwise."""

    kind: Literal["geo_rs"] = "geo_rs"
    source: ClassVar[str] = "arXiv:2512.23075; verl rollout_rs=seq_mean_k1"
    low: float = Field(0.999, gt=0, le=1)
    """Lowest geometric mean that is kept."""
    high: float = Field(1.001, ge=1)
    """Highest geometric mean that is kept."""

    @model_validator(mode="after")
    def _no_bypass(self) -> GeoRs:
        if self.bypass:
            raise ValueError("geo_rs compares old policy and sampler: bypass must be false")
        return self

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"[{self.low:g} <= exp(mean log rho) <= {self.high:g}]"


class Opsm(_Correction):
    """Off-policy sequence mask: weight 0 where A < 0 and mean_t(log sampler - log pi) > delta."""

    kind: Literal["opsm"] = "opsm"
    source: ClassVar[str] = "DeepSeek-V3.2 arXiv:2512.02556 Eq. 9"
    delta: float = Field(0.5, gt=0)
    """Not published by DeepSeek; TRL suggests 0.5."""

    def formula(self) -> str:
        """The weight with its numbers."""
        return f"[A >= 0 or mean(log sampler - log pi) <= {self.delta:g}]"


AnyCorrection = NoCorrection | TisToken | TisSeq | MisToken | MisSeq | IcePop | GeoRs | Opsm
CorrectionSettings = Annotated[AnyCorrection, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Correction:
    """Detached token weights, sequences to take out of the loss, and metrics of the raw weights."""

    weight_T: Tensor
    rejected_N: Tensor
    metrics: dict[str, Metric]


def correct(
    settings: AnyCorrection,
    logp_T: Tensor,
    old_logp_T: Tensor,
    sampler_logp_T: Tensor,
    adv_N: Tensor,
    seq_T: Tensor,
    num_seqs: int,
) -> Correction:
    """The correction of a micro-batch of whole sequences.

    `correction/*` metrics describe the weights *before* truncation or masking.
    """
    import torch

    logp_T = logp_T.detach()
    top_T = logp_T if settings.bypass else old_logp_T
    log_rho_T = (top_T - sampler_logp_T).detach()
    count_N = torch.bincount(seq_T, minlength=num_seqs).clamp(min=1)
    log_rho_N = log_rho_T.new_zeros(num_seqs).index_add(0, seq_T, log_rho_T)
    rho_T, rho_N = log_rho_T.exp(), log_rho_N.exp()
    ones_T = torch.ones_like(rho_T)
    rejected_N = torch.zeros(num_seqs, dtype=torch.bool, device=rho_T.device)
    raw, kept_T = rho_T, ones_T
    if isinstance(settings, TisToken):
        kept_T = rho_T.clamp(max=settings.cap)
    elif isinstance(settings, MisToken):
        kept_T = torch.where(rho_T <= settings.cap, rho_T, 0.0)
    elif isinstance(settings, IcePop):
        kept_T = torch.where((rho_T >= settings.low) & (rho_T <= settings.high), rho_T, 0.0)
    elif isinstance(settings, TisSeq):
        raw, kept_T = rho_N, rho_N.clamp(max=settings.cap)[seq_T]
    elif isinstance(settings, MisSeq):
        raw, kept_T = rho_N, torch.where(rho_N <= settings.cap, rho_N, 0.0)[seq_T]
    elif isinstance(settings, GeoRs):
        raw = (log_rho_N / count_N).exp()
        rejected_N = (raw < settings.low) | (raw > settings.high)
        kept_T = (~rejected_N)[seq_T].to(rho_T.dtype)
    elif isinstance(settings, Opsm):
        drift_T = (sampler_logp_T - logp_T).detach()
        drift_N = drift_T.new_zeros(num_seqs).index_add(0, seq_T, drift_T) / count_N
        masked_N = (adv_N < 0) & (drift_N > settings.delta)
        kept_T = (~masked_N)[seq_T].to(rho_T.dtype)
    # What the weight would be without truncation or mask.
    if isinstance(settings, TisSeq | MisSeq):
        free_T = rho_N[seq_T]
    else:
        free_T = ones_T if isinstance(settings, NoCorrection | GeoRs | Opsm) else rho_T
    modified = int((kept_T != free_T).sum())
    metrics = {
        "correction/weight_mean": Metric(float(raw.sum()), raw.numel()),
        "correction/weight_max": Metric(float(raw.max()), 1, is_max=True),
        "correction/modified_frac": Metric(modified, len(rho_T)),
    }
    return Correction(kept_T, rejected_N, metrics)


def effective_sample_size(log_weight: Tensor) -> float:
    """(sum w)^2 / (n sum w^2), a share of the samples: 1 when all weights are equal.

    Over tokens pass log rho_t, over sequences its sums. It does not merge, so it wants all weights
    of a step at once; subtracting the maximum keeps long products finite.
    """
    if not log_weight.numel():
        return float("nan")
    weight = (log_weight.double() - log_weight.double().max()).exp()
    return float(weight.sum() ** 2 / (weight.numel() * (weight**2).sum()))
