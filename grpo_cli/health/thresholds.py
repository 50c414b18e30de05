"""Every number that a rule of `grpo doctor` compares with, and why it is that number.

A threshold stands for a mechanism, not for a data set: where a metric's healthy level depends on
the model (entropy, length), the rule compares a run with itself.
"""

from __future__ import annotations

WINDOW = 0.25
"""Share of the steps in the early and in the late window: `grpo compare` averages the same
quarter, and four windows still leave several steps each in a run of 20."""

LEAST_ROLLOUTS, MOST_ROLLOUTS = 4, 8
"""Early and late steps whose rollouts are read: a quarter of the run, between dozens of groups and
a bounded amount of JSON."""

MIN_STEPS = 8
"""Steps before a trend is judged: two per window, below which no noise can be estimated."""

MIN_STEPS_NOISE = 16
"""Steps before "no trend" is said: absence of evidence needs more than its presence."""

Z_TREND = 3.0
"""Standard errors that make a trend: a dozen trends are looked at, so the usual 2 would call one
healthy run in three sick."""

Z_NONE = 2.0
"""Below so many standard errors nothing is said to rise or fall."""

SOLVED = 0.9
"""An accuracy above which a flat curve, low entropy and groups without contrast are success."""

# Verifier

FAILED_AMBER, FAILED_RED = 0.005, 0.05
"""Share of verdicts that are errors or timeouts. A working verifier has none; a failure is often
long or odd answers, so the samples lost are no random ones. At 5 % of the samples a group of 8
loses one every third time."""

MIN_PAID = 20
"""Paid answers before a share of them is judged."""

PAID_AMBER, PAID_RED = 0.05, 0.2
"""Share of full scores whose text holds an integer reference nowhere. A right answer spells it out,
and 5 % leaves room for other spellings (words, units). Beyond a fifth the gradient of the policy is
mostly something else's."""

# Sampler and learner

K3_AMBER, K3_RED = 2e-3, 5e-3
"""KL(sampler, learner) in nats per token. Published: 6.4e-4 for dense models in bfloat16, 1.5e-3
for mixtures of experts without routing replay (arXiv:2510.11370). Above both it is no rounding."""

RHO_AMBER, RHO_RED = 2e-3, 1e-2
"""Share of tokens with rho outside [1/2, 2], IcePop's and TIS's bounds: rounding does not change a
probability twofold, another temperature or stale weights do."""

FLOAT32_LOGP = 1e-3
"""Mean |log rho| that float32 on both sides cannot reach by rounding (measured: below 1e-5)."""

# Step size

P99_AMBER, P99_RED = 1.5, 2.0
"""99th percentile of policy / old policy within a batch. Clip bounds are 1.2 to 1.28: one token in
a hundred beyond 1.5 means updates that leave the region in which the surrogate holds."""

CLIPPED_AMBER, CLIPPED_RED = 0.1, 0.3
"""Share of tokens at a bound of the clip, lower plus upper. Normal is below 0.02 for token ratios;
rules leave out objectives with other bounds (GSPO's are 3e-4 and clip 15 % by design)."""

KL_BASE = 1.0
"""Nats per token from the base model, late. RLVR runs end at 0.01 to 0.3; at 1 the base model gives
the policy's tokens a third of their probability on average."""

MOVED = 1.0
"""Mean |change of a token's log-probability| on the canary's fixed text per step, in nats, in the
first steps. That text is never sampled, so nothing holds it (0.03 to 0.5 in runs that learn), but
at 1 every such token changes by a factor e in one step."""

FALL = 0.03
"""Fall in held-out accuracy that is worth a finding when its interval excludes 0."""

# Signal

NO_SIGNAL = 0.7
"""Share of steps without any advantage other than 0 that makes a run without signal."""

EXHAUSTED_AMBER, EXHAUSTED_RED = 0.6, 0.8
"""Share of groups that are all right. At 0.6 dynamic sampling pays 2.5 groups for one that trains
(its refill), at 0.8 five. Where the held-out accuracy rose, late and below 0.8 is success."""

EASY = 0.4
"""Share of groups that are all right in the first steps, before anything was learned, from which
the prompts are too easy: two in five train nothing."""

ZERO_GRAD = 0.5
"""Share of groups without contrast from which growth is worth a finding: half of the budget."""

# Exploration

DISTINCT = 0.5
"""Different texts among the wrong answers of a group. At one half every wrong sample is there
twice; a sound group's wrong answers are wrong in ways of their own (0.8 to 1)."""

MIN_REPEATABLE = 20
"""Wrong answers before a share of them is judged."""

SIMILAR = 0.9
"""Mean similarity (token 3-grams) of a group's completions that means nearly the same text."""

ENTROPY_RATIO = 0.2
"""Late entropy as a share of the early one. A fall to a third or half goes with learning; below a
fifth little is left to sample from."""

ENTROPY_COLD = 0.02
"""Nats per token from the first steps on: about one token in 300 is a choice at all."""

COLD_TEMPERATURE = 0.6
"""Sampling temperature below which it is the likely cause: 0.6 is the lowest that reasoning models
are commonly sampled with."""

AGREE = 0.8
"""Share of groups without contrast at which a low temperature is named for it."""

# Length

GROWTH = 0.25
"""Growth of wrong answers, relative to the start, that is inflation and not drift."""

GAP_GROWTH = 0.15
"""Growth of the gap (wrong minus right tokens, inside the same groups) as a share of the early
length of wrong answers. Inside groups, because the questions that are still answered wrongly are
the long ones."""

LONGER, MUCH_LONGER = 0.05, 0.15
"""How much longer than the right ones of their group wrong answers are in the end, as a share of
the right ones. Wrong answers that only catch up are a policy that stops guessing."""

MIN_GAPS = 8
"""Groups with right and wrong answers at either end before their gap is judged."""

TRUNCATED_AMBER, TRUNCATED_RED = 0.1, 0.25
"""Share of completions that the limit cut off. At 25 % a group of 8 has two, and their wrongness
says nothing about the reasoning."""

TRUNCATED_WRONG = 0.3
"""Share of the wrong answers that were cut off, from which truncation explains wrongness."""

# Format and held-out

FORMAT_RISE = 0.1
"""Rise of the share of answers with a readable format that is worth naming."""

GAP_TRAIN = 0.1
"""Rise of the training accuracy that the held-out accuracy must show a part of."""
