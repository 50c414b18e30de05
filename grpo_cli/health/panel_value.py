"""The panel, the part of a critic."""

from __future__ import annotations

from grpo_cli.health.panel_info import MetricInfo

_CRITIC = "a critic, and a batch to train on"

VALUE: tuple[MetricInfo, ...] = (
    MetricInfo(
        "value/explained_variance",
        "optimisation",
        "1 - var(target - V) / var(target) over trained tokens, V before the step's update; NaN "
        "when every target is the same",
        "share",
        "what the critic knows about answers that it has not trained on; at 0 it is a constant, "
        "below 0 worse than one",
        healthy="above 0 when the policy starts to train",
        when=_CRITIC,
    ),
    MetricInfo(
        "value/loss",
        "optimisation",
        "mean over tokens of max((V - target)^2, (V_old + clamp(V - V_old) - target)^2) / 2 in the "
        "first epoch",
        "squared reward",
        "the critic's own loss; with rewards 0 and 1 a constant has at best a half of p (1 - p)",
        when=_CRITIC,
    ),
    MetricInfo(
        "value/clipped_frac",
        "optimisation",
        "share of tokens whose value left V_old +- critic.clip for the worse",
        "share",
        "near 1 the critic wants larger steps than it may take",
        when=_CRITIC,
    ),
    MetricInfo(
        "value/grad_norm",
        "optimisation",
        "mean over the critic's optimizer steps of its gradient norm before clipping",
        "1",
        "a jump comes before a lost critic",
        when=_CRITIC,
    ),
    MetricInfo(
        "value/nonfinite_frac",
        "optimisation",
        "share of the critic's optimizer steps that were not taken, because loss or gradient was "
        "not finite",
        "share",
        "more than a rare one means too large a learning rate",
        healthy="0",
        when=_CRITIC,
    ),
    *(
        MetricInfo(
            f"value/{place}_{name}",
            "optimisation",
            f"mean value before the {place} token of the answers with {score}, before the update",
            "reward",
            why,
            when=_CRITIC,
        )
        for place, why in (
            ("first", "what the critic thinks of the question: right and wrong differ by chance"),
            ("last", "what the critic thinks of the answer: right should lie above wrong"),
        )
        for name, score in (("right", "score 1"), ("wrong", "another score"))
    ),
)
