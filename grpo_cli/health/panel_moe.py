"""The panel, fourth part: the routing of a mixture of experts."""

from __future__ import annotations

from grpo_cli.health.panel_info import MetricInfo

_WHEN = "steps in which something trained, with a mixture of experts"

MOE: tuple[MetricInfo, ...] = (
    MetricInfo(
        "moe/sampler_drift",
        "system",
        "mean of 1 - |A and B| / K over layers and the positions that predict trained tokens; A "
        "the K experts chosen by the sampler, B by the learner before the step's first update",
        "share",
        "experts that differ for the same weights put the learner's tokens off-policy; with "
        "moe.replay `sampler` B is chosen behind layers that replay A",
        healthy="0 with the transformers engine in float32",
        when=f"{_WHEN}, where the sampler records its experts (transformers)",
    ),
    MetricInfo(
        "moe/update_drift",
        "optimisation",
        "the same between the learner's choices before the step's first update and after its "
        "last, over at most 32 trained sequences taken evenly",
        "share",
        "token ratios of tokens whose experts changed are noise; about 0.1 per update is reported "
        "for Qwen3-30B-A3B (GSPO arXiv:2507.18071); with replay, behind layers that replay",
        when=_WHEN,
    ),
    MetricInfo(
        "moe/load_imbalance",
        "system",
        "mean over layers of (largest share of the choices that one expert gets) x (experts of the "
        "layer), over the positions that predict trained tokens, before the step's first update",
        "ratio",
        "1 is an even load; experts / K is every token on the same experts",
        when=_WHEN,
    ),
    MetricInfo(
        "moe/router_entropy",
        "exploration",
        "mean entropy of the softmax over all experts of a layer, over the same positions and "
        "layers",
        "nats",
        "near ln(experts) the choice hangs on rounding, near 0 one expert does the work",
        when=f"{_WHEN} whose gate is a softmax",
    ),
)
