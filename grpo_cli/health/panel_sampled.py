"""The panel, first part: what a step samples, and what held-out questions say."""

from __future__ import annotations

from grpo_cli.health.panel_info import MetricInfo

_EVAL = "steps with an evaluation, step 0 included"

REWARD: tuple[MetricInfo, ...] = (
    MetricInfo(
        "reward/mean",
        "reward",
        "mean shaped reward (score, or what `self_verify` makes of it, plus length penalty) over "
        "completions with a verdict",
        "reward",
        "what training pushes up; compare it between arms only when they shape alike",
    ),
    MetricInfo(
        "reward/accuracy",
        "reward",
        "mean score of the verifier over completions with a verdict",
        "score, 0 to 1",
        "correctness without shaping; depends on which prompts came, unlike `eval/accuracy`",
    ),
    MetricInfo(
        "reward/penalty_mean",
        "reward",
        "mean of shaped reward minus score over completions with a verdict",
        "reward",
        "how much of the reward is about length (with `self_verify` also honesty) and not about "
        "the answer",
        healthy="close to 0 beside the spread of the scores",
    ),
    MetricInfo(
        "reward/format_frac",
        "reward",
        "share of completions with a verdict whose status is ok: an answer was parsed",
        "share",
        "tells a model that learns to be readable from one that learns to be right",
        healthy="near 1 after the first steps",
    ),
    MetricInfo(
        "reward/kl_mean",
        "reward",
        "mean over the sequences of the batch of the sum over their tokens of log policy - log "
        "reference",
        "nats per sequence",
        "what `kl.beta` takes off the rewards",
        when="kl.kind: k1_reward with kl.beta above 0, and a batch to train on",
    ),
)

GROUPS: tuple[MetricInfo, ...] = (
    MetricInfo(
        "group/mixed_frac",
        "groups",
        "share of sampled groups whose scores differ",
        "share",
        "only these can teach: the supply of signal before any filter",
    ),
    MetricInfo(
        "group/all_right_frac",
        "groups",
        "share of sampled groups in which every verdict scored 1",
        "share",
        "prompts that have become too easy",
    ),
    MetricInfo(
        "group/all_wrong_frac",
        "groups",
        "share of sampled groups in which every verdict scored 0",
        "share",
        "prompts that are too hard, or a verifier that cannot read the answers",
    ),
    MetricInfo(
        "group/zero_variance_frac",
        "groups",
        "share of sampled groups with at most one different shaped reward",
        "share",
        "groups whose advantage is exactly 0; lower than 1 - mixed_frac where length penalties "
        "alone make a difference",
    ),
    MetricInfo(
        "group/reward_var_mean",
        "groups",
        "mean over sampled groups of the variance (ddof 0) of the shaped rewards inside the group",
        "reward squared",
        "how much contrast a group has to learn from; a coin of rate p has p (1 - p)",
    ),
    MetricInfo(
        "group/sampled",
        "groups",
        "groups sampled in the step, refills included",
        "groups",
        "what the step cost in prompts",
    ),
    MetricInfo(
        "group/used",
        "groups",
        "groups that the filter kept and the step trained on",
        "groups",
        "less than `sampling.prompts_per_step` means a smaller batch than the recipe says",
        healthy="sampling.prompts_per_step",
    ),
    MetricInfo(
        "group/kept_frac",
        "groups",
        "groups used / groups sampled",
        "share",
        "the price of the filter: at 0.25 a step samples four times what it trains on",
    ),
    MetricInfo(
        "group/rounds",
        "groups",
        "sampling rounds of the step",
        "rounds",
        "at `filter.max_rounds` dynamic sampling gives up",
    ),
    MetricInfo(
        "group/effective",
        "groups",
        "groups with a trained sequence whose advantage is not 0",
        "groups",
        "the batch size that the gradient sees",
    ),
    MetricInfo(
        "group/distinct_answers_frac",
        "exploration",
        "mean over sampled groups of different parsed answers / completions with a parsed answer",
        "share",
        "whether samples still disagree about the answer; 1 / G when all say the same",
    ),
    MetricInfo(
        "group/similarity",
        "exploration",
        "mean over sampled groups of the mean Jaccard similarity, over all pairs of completions of "
        "at least 3 tokens, of their sets of token 3-grams",
        "share",
        "towards 1 the samples of a group are the same text and a larger group buys nothing",
        healthy="below 0.9",
    ),
)

COMPLETIONS: tuple[MetricInfo, ...] = (
    MetricInfo(
        "completion/mean_length",
        "length",
        "mean tokens of all sampled completions, end-of-sequence token included",
        "tokens",
        "the cost of a sample; read it with right and wrong apart",
    ),
    MetricInfo(
        "completion/mean_length_right",
        "length",
        "mean tokens of completions with score 1",
        "tokens",
        "growth here can be reasoning",
    ),
    MetricInfo(
        "completion/mean_length_wrong",
        "length",
        "mean tokens of completions with a verdict and a score below 1",
        "tokens",
        "growth here alone is the length bias of a loss that divides by each answer's length "
        "(Dr. GRPO, arXiv:2503.20783)",
    ),
    MetricInfo(
        "completion/mean_length_stopped",
        "length",
        "mean tokens of completions that ended by themselves",
        "tokens",
        "length that the limit did not cut",
    ),
    MetricInfo(
        "completion/length_gap",
        "length",
        "mean tokens of wrong completions minus mean tokens of right ones",
        "tokens",
        "hard questions are wrong and long, so its level says little and its trend much",
    ),
    MetricInfo(
        "completion/length_gap_slope",
        "length",
        "least-squares slope of length_gap over the last up to 10 steps, this one included; NaN "
        "with fewer than 3 known",
        "tokens per step",
        "whether wrong answers grow away from right ones",
        healthy="around 0",
    ),
    MetricInfo(
        "completion/truncated_frac",
        "length",
        "share of sampled completions that the length limit ended",
        "share",
        "a cut answer is wrong whatever its reasoning was",
        healthy="below 0.1",
    ),
    MetricInfo(
        "completion/repeated_ngram_frac",
        "length",
        "mean over completions of at least 4 tokens of the share of their token 4-grams that "
        "occurred earlier in the same completion",
        "share",
        "loops, which fill a length limit and read as reasoning in a length curve",
    ),
    MetricInfo(
        "completion/reflection_right_frac",
        "reflection",
        "share of completions with score 1 whose text holds one of `health.reflection_markers`, "
        "whatever the case of the letters",
        "share",
        "looking back that pays; compare it with the base model's `eval/reflection_right_frac` "
        "before calling it learned",
        when="every training step; NaN without markers",
    ),
    MetricInfo(
        "completion/reflection_wrong_frac",
        "reflection",
        "the same share of the completions with a verdict and a score below 1",
        "share",
        "looking back that does not pay: a marker alone is no evidence of reasoning",
        when="every training step; NaN without markers",
    ),
)

VERIFIER: tuple[MetricInfo, ...] = (
    MetricInfo(
        "verifier/unparsed_frac",
        "verifier",
        "share of sampled completions in which the verifier found no answer (score 0)",
        "share",
        "a format problem looks like wrong answers in the reward",
        healthy="near 0 after the first steps",
    ),
    MetricInfo(
        "verifier/error_frac",
        "verifier",
        "share of sampled completions on which the verifier failed; they do not train",
        "share",
        "what is lost is not a random part of the samples",
        healthy="0",
    ),
    MetricInfo(
        "verifier/timeout_frac",
        "verifier",
        "share of sampled completions on which the verifier ran out of time; they do not train",
        "share",
        "as for error_frac; long or odd answers are lost first",
        healthy="0",
    ),
)

EVALUATION: tuple[MetricInfo, ...] = (
    MetricInfo(
        "eval/accuracy",
        "evaluation",
        "mean over held-out questions of the mean score of their answers with a verdict",
        "score, 0 to 1",
        "the primary result: the same questions and random numbers at every step and in every arm",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/pass_at_{k}",
        "evaluation",
        "mean over held-out questions of the unbiased pass@k (arXiv:2107.03374), k = "
        "eval.samples_per_question",
        "share",
        "when accuracy rises and pass@k falls, the policy has become surer and not more able",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/format_frac",
        "evaluation",
        "share of held-out answers with a verdict whose status is ok",
        "share",
        "at step 0 it tells how much of a later gain can be format alone",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/mean_length",
        "evaluation",
        "mean tokens of the held-out answers",
        "tokens",
        "length on fixed questions, free of which prompts a step drew",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/mean_length_right",
        "evaluation",
        "mean tokens of held-out answers with score 1",
        "tokens",
        "as the training metric, on fixed questions",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/mean_length_wrong",
        "evaluation",
        "mean tokens of held-out answers with a verdict and a score below 1",
        "tokens",
        "as the training metric, on fixed questions",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/truncated_frac",
        "evaluation",
        "share of held-out answers that the length limit ended",
        "share",
        "a gain that is only less truncation is a gain in length control",
        healthy="below 0.1",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/unparsed_frac",
        "evaluation",
        "share of held-out answers in which the verifier found no answer",
        "share",
        "a gain that is only readable answers is a gain in format",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/verifier_error_frac",
        "evaluation",
        "share of held-out answers on which the verifier failed or ran out of time",
        "share",
        "these are left out of the accuracy",
        healthy="0",
        when=_EVAL,
    ),
    MetricInfo(
        "eval/reflection_right_frac",
        "reflection",
        "share of held-out answers with score 1 whose text holds one of "
        "`health.reflection_markers`",
        "share",
        "step 0 is the base model's own habit, which is often taken for something learned",
        when=f"{_EVAL}; NaN without markers",
    ),
    MetricInfo(
        "eval/reflection_wrong_frac",
        "reflection",
        "the same share of the held-out answers with a verdict and a score below 1",
        "share",
        "as much reflection in wrong answers as in right ones: the marker is a style",
        when=f"{_EVAL}; NaN without markers",
    ),
    MetricInfo(
        "eval/next_token_direct",
        "evaluation",
        "share of the held-out positions at which the likeliest next token after the bare context, "
        "without reasoning, is the text's",
        "share",
        "what the model knows without reasoning; eval/accuracy is the same after reasoning",
        when=f"{_EVAL}; a `next_token` task",
    ),
)
