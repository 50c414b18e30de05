"""The panel, third part: sampler against learner, time, memory and progress."""

from __future__ import annotations

from grpo_cli.health.panel_info import MetricInfo

_TRAINED = "steps in which something trained"

MISMATCH: tuple[MetricInfo, ...] = (
    MetricInfo(
        "mismatch/logp_abs_mean",
        "system",
        "mean |log learner - log sampler| over trained tokens, same weights",
        "nats per token",
        "0 in exact arithmetic; other kernels and precision make it grow",
        healthy="below 1e-3 in float32",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/logp_abs_p99",
        "system",
        "99th percentile of the same",
        "nats per token",
        "the tail, which a mean hides",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/logp_abs_max",
        "system",
        "largest of the same",
        "nats per token",
        "one wrong token (a mask, an end-of-sequence token) shows here first",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/k1",
        "system",
        "mean of log sampler - log learner",
        "nats per token",
        "KL(sampler, learner), unbiased and noisy; may be negative",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/k3",
        "system",
        "mean of rho - 1 - log rho, rho = learner / sampler",
        "nats per token",
        "KL(sampler, learner), never negative",
        healthy="below 2e-3",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/rho_beyond_2_frac",
        "system",
        "share of trained tokens with rho outside [1/2, 2]",
        "share",
        "rounding does not change a probability twofold; stale weights and another temperature do",
        healthy="below 2e-3",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/worst_seq_log_rho",
        "system",
        "sum of log rho over the sequence in which it is largest in absolute value",
        "nats",
        "what a sequence-level weight makes of the gap",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/worst_seq_length",
        "system",
        "tokens of that sequence",
        "tokens",
        "the gap of a sequence grows with its length",
        when=_TRAINED,
    ),
    MetricInfo(
        "mismatch/staleness",
        "system",
        "optimizer steps between the oldest weights that sampled and those that train first",
        "optimizer steps",
        "above 0 the data is off-policy before the first update",
        healthy="0",
    ),
    MetricInfo(
        "canary/logp_abs_mean",
        "system",
        "mean |log sampler - log learner| on a fixed text after the weights were handed over",
        "nats per token",
        "proof after every step that both sides hold the same weights; too much of it ends the run",
        healthy="below 1e-3 in float32",
    ),
    MetricInfo(
        "canary/moved",
        "system",
        "mean |log policy - log base| of the learner on the same fixed text",
        "nats per token",
        "movement on text that was not sampled: forgetting, or far too large steps",
        healthy="less than 0.2 more per step",
    ),
)

TIME: tuple[MetricInfo, ...] = (
    MetricInfo(
        "time/rollout_s",
        "system",
        "seconds of sampling, as this arm's share by tokens of calls that serve several arms",
        "s",
        "what sampling costs",
    ),
    MetricInfo(
        "time/verify_s",
        "system",
        "seconds of the verifier, shared in the same way",
        "s",
        "a slow verifier keeps everything waiting",
    ),
    MetricInfo(
        "time/verify_max_s",
        "system",
        "seconds of the slowest verdict",
        "s",
        "how near verdicts come to `verifier.sample_limit_s`",
    ),
    MetricInfo(
        "time/learner_s",
        "system",
        "seconds of advantages, log-probabilities and optimizer steps",
        "s",
        "what learning costs",
    ),
    MetricInfo(
        "time/sync_s",
        "system",
        "seconds of handing the weights over, the canary included",
        "s",
        "the price of the proof that both sides agree",
    ),
    MetricInfo(
        "time/step_s",
        "system",
        "seconds of the step without sync and evaluation",
        "s",
        "what a step of this arm costs, whoever else trained in the same process",
    ),
    MetricInfo(
        "time/eval_s",
        "system",
        "seconds of the held-out evaluation, shared equally by the arms that were due",
        "s",
        "what evaluation costs",
        when="steps with an evaluation, step 0 included",
    ),
    MetricInfo(
        "time/tokens_per_s",
        "system",
        "sampled tokens / time/step_s",
        "tokens/s",
        "throughput of the whole step",
    ),
    MetricInfo(
        "time/rollout_tokens_per_s",
        "system",
        "sampled tokens / time/rollout_s",
        "tokens/s",
        "throughput of the sampler alone",
    ),
    MetricInfo(
        "time/learner_tokens_per_s",
        "system",
        "loss/tokens / time/learner_s",
        "tokens/s",
        "throughput of the learner alone; each token counts once, however many epochs train it",
    ),
    MetricInfo(
        "system/gpu_peak_gib",
        "system",
        "most GPU memory that PyTorch has reserved so far",
        "GiB",
        "how near the learner is to running out of memory; vLLM's own part is not in it",
        when="on a GPU",
    ),
)

PROGRESS: tuple[MetricInfo, ...] = (
    MetricInfo(
        "progress/tokens_generated",
        "progress",
        "tokens sampled for training since the start, dropped groups included",
        "tokens",
        "the budget: arms with filters reach a step at another cost",
    ),
    MetricInfo(
        "progress/prompts_seen",
        "progress",
        "groups sampled for training since the start, dropped ones included",
        "groups",
        "the budget in prompts",
    ),
)
