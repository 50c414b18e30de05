"""What the optimizer steps of a batch did. Dims: T completion tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_cli.objective.correction import effective_sample_size
from grpo_cli.types import Metric


@dataclass(slots=True)
class UpdateResult:
    """What the optimizer steps of a batch did. Metrics cover all its trainable tokens."""

    metrics: dict[str, Metric] = field(default_factory=dict)
    log_ratios: list[Tensor] = field(default_factory=list)
    log_rhos: list[Tensor] = field(default_factory=list)
    """log rho of the tokens of one sequence each (see objective/correction.py)."""
    learner_logp: dict[int, Tensor] = field(default_factory=dict)
    """Index of a trained sequence -> its log-probabilities before the batch's first update."""
    update_norm: float = 0.0
    """L2 norm of the change of the adapter's parameters over all steps of the batch."""
    routing: dict[str, float] = field(default_factory=dict)
    """The `moe/*` metrics of a mixture of experts."""
    updates: int = 0
    without_signal: int = 0
    nonfinite: int = 0
    nonfinite_in_a_row: int = 0

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Merge exactly: totals and counts add up, maxima stay maxima."""
        for name, metric in metrics.items():
            known = self.metrics.get(name)
            self.metrics[name] = metric if known is None else known + metric

    def scalars(self) -> dict[str, float]:
        """Every metric by name, and the distributions of the policy ratio and probability."""
        found = {name: metric.value for name, metric in sorted(self.metrics.items())}
        if self.log_ratios:
            ratio_T = torch.cat(self.log_ratios).double().exp()
            ordered_T = ratio_T.sort().values
            found |= {
                "ratio/mean": float(ratio_T.mean()),
                "ratio/min": float(ordered_T[0]),
                "ratio/p1": _quantile(ordered_T, 0.01),
                "ratio/p50": _quantile(ordered_T, 0.5),
                "ratio/p99": _quantile(ordered_T, 0.99),
                "ratio/max": float(ordered_T[-1]),
            }
        if self.learner_logp:
            prob_T = torch.cat([logp_T for _, logp_T in sorted(self.learner_logp.items())]).exp()
            found |= {
                "policy/prob_mean": float(prob_T.double().mean()),
                "policy/prob_p10": _quantile(prob_T.sort().values, 0.1),
            }
        if self.log_rhos:
            found["correction/ess_token"] = effective_sample_size(torch.cat(self.log_rhos))
            by_sequence = torch.stack([log_rho_T.double().sum() for log_rho_T in self.log_rhos])
            found["correction/ess_seq"] = effective_sample_size(by_sequence)
        return found | self.routing


def _quantile(ordered_T: Tensor, share: float) -> float:
    """By index: torch.quantile refuses more than 2**24 values; sorting does not."""
    return float(ordered_T[round(share * (len(ordered_T) - 1))])
