"""The panel, second part: what the learner does, and what both sides cost."""

from __future__ import annotations

from grpo_cli.health.panel_info import MetricInfo

_TRAINED = "steps in which something trained"
_BATCH = "steps with a group left to train on"

POLICY: tuple[MetricInfo, ...] = (
    MetricInfo(
        "policy/entropy",
        "exploration",
        "sum of the entropies of the next-token distribution at the sampling temperature (over the "
        "kept tokens with sampling.keep_sampling_mask) / trained tokens",
        "nats per token",
        "how much choice is left; a fall that outruns the gain in accuracy is collapse",
        healthy="no fall below a fifth of its start before the accuracy is high",
        when=_TRAINED,
    ),
    MetricInfo(
        "policy/prob_mean",
        "exploration",
        "mean probability of the sampled token under the learner before the step's first update, "
        "over trained tokens",
        "probability",
        "the other side of the entropy, on the tokens that were drawn",
        when=_TRAINED,
    ),
    MetricInfo(
        "policy/prob_p10",
        "exploration",
        "10th percentile of the same probabilities",
        "probability",
        "the tokens that explore; the upper clip bound acts on them",
        when=_TRAINED,
    ),
    MetricInfo(
        "policy/kl_base",
        "optimisation",
        "mean of k3 = exp(d) - d - 1, d = log base - log policy, over the tokens of at most 32 "
        "trained sequences taken evenly; policy before the step's first update, base with adapters "
        "off",
        "nats per token",
        "how far training has gone, whatever the objective and whether or not it has a KL term",
        healthy="below 1; runs that end well mostly at 0.01 to 0.3",
        when=_TRAINED,
    ),
    MetricInfo(
        "policy/kl_ref",
        "optimisation",
        "mean of k3 between policy and reference over trained tokens, each minibatch with the "
        "policy it trains",
        "nats per token",
        "the distance that the KL term acts on; the reference moves with kl.refresh_every",
        when="kl.beta above 0 with a KL in the loss",
    ),
    MetricInfo(
        "policy/kl_loss",
        "optimisation",
        "mean over trained tokens and epochs of the estimator that `kl.kind` puts into the loss",
        "nats per token",
        "the term itself; times `kl.beta` it is what the loss adds",
        when="kl.beta above 0 with a KL in the loss",
    ),
)

RATIO: tuple[MetricInfo, ...] = (
    MetricInfo(
        "ratio/mean",
        "optimisation",
        "mean of policy / old probability over trained tokens and epochs",
        "ratio",
        "1 within a fraction of a percent, or the updates are large",
        healthy="close to 1",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/min",
        "optimisation",
        "smallest policy / old probability of a trained token",
        "ratio",
        "the extreme on the low side",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/p1",
        "optimisation",
        "1st percentile of policy / old probability",
        "ratio",
        "the low tail, free of a single odd token",
        healthy="above 0.67",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/p50",
        "optimisation",
        "median of policy / old probability",
        "ratio",
        "1 exactly with one minibatch and one epoch",
        healthy="close to 1",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/p99",
        "optimisation",
        "99th percentile of policy / old probability",
        "ratio",
        "the high tail: beyond the clip bounds the surrogate no longer holds",
        healthy="below 1.5",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/max",
        "optimisation",
        "largest policy / old probability of a trained token",
        "ratio",
        "the extreme on the high side",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/clipped_low_frac",
        "optimisation",
        "share of trained tokens, over all epochs, whose gradient the objective stops or caps at "
        "its lower bound",
        "share",
        "0 throughout: the bound does nothing, and arms that differ in it cannot differ",
        healthy="below 0.1 for token ratios; sequence ratios clip more by design",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/clipped_high_frac",
        "optimisation",
        "share of trained tokens, over all epochs, whose gradient the objective stops or caps at "
        "its upper bound",
        "share",
        "as on the low side",
        healthy="below 0.1 for token ratios; sequence ratios clip more by design",
        when=_TRAINED,
    ),
    MetricInfo(
        "ratio/clipped_low_prob_frac",
        "exploration",
        "among trained tokens with positive advantage and old probability below 0.1, over all "
        "epochs: the share whose gradient the objective stops or caps at its upper bound; NaN "
        "without such a token",
        "share",
        "rare tokens that paid and may not become common: what DAPO's higher upper bound is for",
        when=f"{_TRAINED}; a plug-in objective reports it by passing its tokens to clip_metrics",
    ),
)

LOSS: tuple[MetricInfo, ...] = (
    MetricInfo(
        "loss/total",
        "optimisation",
        "mean over the optimizer steps taken of the loss",
        "loss",
        "its size says nothing about progress; not finite is an error",
        when="steps with an update",
    ),
    MetricInfo(
        "loss/positive_nll",
        "optimisation",
        "mean of -log pi over the trained tokens of answers with score 1",
        "nats per token",
        "what `positive_nll.weight` multiplies",
        when="positive_nll.weight above 0, and a right answer to train on",
    ),
    MetricInfo(
        "loss/weight_sum",
        "optimisation",
        "mean over the optimizer steps of the sum over trained tokens of their weight",
        "1",
        "1 for a mean; below it where masked sequences or a constant length stay in the "
        "denominator",
        when=_BATCH,
    ),
    MetricInfo(
        "loss/denominator",
        "optimisation",
        "mean over the optimizer steps of what the loss is divided by",
        "sequences, tokens or prompts",
        "the normalisation in force, in numbers",
        when=_BATCH,
    ),
    MetricInfo(
        "loss/tokens",
        "optimisation",
        "tokens that may train, each counted once; 0 without a batch",
        "tokens",
        "the size of the batch as the loss sees it",
    ),
    MetricInfo(
        "loss/sequences",
        "optimisation",
        "sequences that may train; 0 without a batch",
        "sequences",
        "the size of the batch in sequences",
    ),
    MetricInfo(
        "loss/masked_sequences",
        "optimisation",
        "sequences of the batch that do not train: masked, or without a verdict",
        "sequences",
        "what overlong masking and a failing verifier take away",
        when=_BATCH,
    ),
    MetricInfo(
        "loss/masked_tokens",
        "optimisation",
        "tokens of sequences with a verdict that are masked out of the loss",
        "tokens",
        "what overlong masking takes away",
        when=_BATCH,
    ),
    MetricInfo(
        "loss/effective_tokens_frac",
        "optimisation",
        "share of trained tokens whose advantage is not 0",
        "share",
        "tokens that carry signal; the rest only dilute a token mean",
        when=_TRAINED,
    ),
    MetricInfo(
        "advantage/mean",
        "optimisation",
        "mean advantage over trained sequences",
        "1",
        "0 up to rounding with the group mean as baseline and nothing masked",
        when=_BATCH,
    ),
    MetricInfo(
        "advantage/std",
        "optimisation",
        "standard deviation (ddof 1) of the advantage over trained sequences",
        "1",
        "the scale of the signal; close to 1 with `advantage.scale: group`",
        when=_BATCH,
    ),
    MetricInfo(
        "advantage/min",
        "optimisation",
        "smallest advantage of a trained sequence",
        "1",
        "a rare failure in an easy group gets a large weight",
        when=_BATCH,
    ),
    MetricInfo(
        "advantage/max",
        "optimisation",
        "largest advantage of a trained sequence",
        "1",
        "a rare success in a hard group gets a large weight",
        when=_BATCH,
    ),
    MetricInfo(
        "advantage/positive_frac",
        "optimisation",
        "share of trained sequences with an advantage above 0",
        "share",
        "whether the step pushes up or down more often",
        when=_BATCH,
    ),
    MetricInfo(
        "optim/lr",
        "optimisation",
        "learning rate of the step after warm-up",
        "1",
        "0 in a `no_op` control arm",
    ),
    MetricInfo(
        "optim/grad_norm",
        "optimisation",
        "mean over the optimizer steps taken of the L2 norm of the gradient before it is scaled "
        "down",
        "1",
        "above `optim.max_grad_norm` every step is scaled down",
        when="steps with an update",
    ),
    MetricInfo(
        "optim/update_norm",
        "optimisation",
        "L2 norm of the change of the adapter's parameters over the step",
        "1",
        "how far the step went; with AdamW nearly independent of the size of the gradient",
    ),
    MetricInfo(
        "optim/updates",
        "optimisation",
        "optimizer steps taken",
        "steps",
        "minibatches times epochs, less those without signal or not finite",
        healthy="optim.minibatches x optim.epochs_per_batch",
    ),
    MetricInfo(
        "optim/without_signal",
        "optimisation",
        "optimizer steps left out because no sequence had a gradient",
        "steps",
        "a minibatch without contrast costs time and teaches nothing",
        healthy="0",
    ),
    MetricInfo(
        "optim/nonfinite",
        "optimisation",
        "optimizer steps left out because loss or gradient was not finite, since the start",
        "steps",
        "`optim.max_nonfinite` of them in a row end the run",
        healthy="0",
    ),
)

CORRECTION: tuple[MetricInfo, ...] = (
    MetricInfo(
        "correction/weight_mean",
        "system",
        "mean raw weight before truncation or mask: rho per token or per sequence as "
        "`correction.kind` has it, rho = old policy / sampler (policy / sampler with bypass)",
        "ratio",
        "1 when sampler and learner agree",
        healthy="close to 1",
        when=_TRAINED,
    ),
    MetricInfo(
        "correction/weight_max",
        "system",
        "largest raw weight",
        "ratio",
        "what truncation is for",
        when=_TRAINED,
    ),
    MetricInfo(
        "correction/modified_frac",
        "system",
        "share of trained tokens, over all epochs, whose weight was truncated or masked",
        "share",
        "how often the correction acts; 0 with `correction.kind: none`",
        when=_TRAINED,
    ),
    MetricInfo(
        "correction/rejected_frac",
        "system",
        "share of trained sequences that the correction took out",
        "share",
        "lost data, and not a random part of it",
        when="correction.kind: geo_rs",
    ),
    MetricInfo(
        "correction/ess_token",
        "system",
        "(sum rho)^2 / (n sum rho^2) over the trained tokens",
        "share",
        "the effective share of the tokens under importance weights",
        healthy="close to 1",
        when=_TRAINED,
    ),
    MetricInfo(
        "correction/ess_seq",
        "system",
        "the same over sequences, rho multiplied over each one's tokens",
        "share",
        "falls with length: small differences per token multiply",
        when=_TRAINED,
    ),
)
