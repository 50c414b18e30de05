"""The panel, the part of the sampling mask."""

from __future__ import annotations

from grpo_cli.health.panel_info import MetricInfo

_WHEN = "sampling.keep_sampling_mask, and a batch to train on"

SUPPORT: tuple[MetricInfo, ...] = (
    MetricInfo(
        "policy/support_mean",
        "exploration",
        "mean number of tokens that top-k and top-p kept, over the positions of trained tokens",
        "tokens",
        "what the policy chooses among; near 1 sampling is almost greedy",
        when=_WHEN,
    ),
    MetricInfo(
        "policy/support_one_frac",
        "exploration",
        "share of these positions at which one token was kept",
        "share",
        "there the renormalised probability is 1 whatever the policy is, so the token has ratio 1 "
        "and no gradient: the higher, the fewer tokens train",
        when=_WHEN,
    ),
)
