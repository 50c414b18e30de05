"""The panel, the part about a policy's verdicts on its own answers: `self/*` and `eval/self_*`."""

from __future__ import annotations

from dataclasses import replace

from grpo_cli.health.panel_info import MetricInfo

_WHEN = "task.self_check"
_READABLE = "over completions with a verdict of the verifier and a readable one of the policy"

SELF: tuple[MetricInfo, ...] = (
    MetricInfo(
        "self/judged_frac",
        "reward",
        "share of completions with a verdict of the verifier that end with one readable verdict of "
        "the policy on its own answer",
        "share",
        "without one `self_verify` pays nothing, however right the answer is",
        healthy="near 1 after the first steps",
        when=_WHEN,
    ),
    MetricInfo(
        "self/says_right_frac",
        "reward",
        f"share of verdicts `right` {_READABLE}",
        "share",
        "always the same verdict costs no thought: towards 1 it says nothing, even when it is true",
        when=_WHEN,
    ),
    MetricInfo(
        "self/right_given_yes",
        "reward",
        "mean score of the answers that the policy called right",
        "score, 0 to 1",
        "what a `right` is worth",
        healthy="above right_given_no",
        when=_WHEN,
    ),
    MetricInfo(
        "self/right_given_no",
        "reward",
        "mean score of the answers that the policy called wrong",
        "score, 0 to 1",
        "what a `wrong` is worth; as high as right_given_yes, the verdicts know nothing",
        when=_WHEN,
    ),
    MetricInfo(
        "self/honesty",
        "reward",
        f"mean of 1 - |s' - s| {_READABLE}: s the score, s' 1 for right and 0 for wrong",
        "0 to 1",
        "what `self_verify.honesty_weight` pays; always `right` earns the accuracy, so compare it "
        "with that",
        when=_WHEN,
    ),
    MetricInfo(
        "self/auc",
        "reward",
        "share of pairs of a right and a wrong answer in which the right one has the higher p, "
        f"ties one half, {_READABLE}; p is the probability of the verdict's last token, or 1 minus "
        "it where the verdict is `wrong`",
        "0 to 1",
        "whether the policy is surer of its right answers, whatever it says; knowing how hard a "
        "question is suffices for more than 0.5 (benchmarks/self_verify.py compares within levels)",
        healthy="above 0.5",
        when=_WHEN,
    ),
)

EVAL_SELF: tuple[MetricInfo, ...] = tuple(
    replace(
        info,
        name=info.name.replace("self/", "eval/self_"),
        area="evaluation",
        why=f"{info.name} on held-out questions",
        when=f"steps with an evaluation, step 0 included; {_WHEN}",
    )
    for info in SELF
)
