"""Rules about length: answers that are cut off, and wrong answers that grow."""

from __future__ import annotations

import numpy as np

from grpo_cli.health import thresholds as at
from grpo_cli.health.rules import Rule, Symptom, errors, from_to, number, percent, span
from grpo_cli.health.series import RunSeries, standard_errors


def _truncation(run: RunSeries) -> Symptom | None:
    """Answers that the limit cut off and that then count as wrong."""
    truncated = run.series("completion/truncated_frac")
    worst = max(truncated.early, truncated.late)
    rows = run.late_rows if run.late_rows.wrong else run.early_rows
    if rows.wrong:
        of_wrong = rows.wrong_truncated / rows.wrong
    else:  # no rollouts: at most all truncated answers are wrong
        wrong = 1 - run.series("reward/accuracy").late
        of_wrong = min(1.0, truncated.late / wrong) if wrong > 0 else 0.0
    masked = run.setting("overlong.kind") == "mask" or run.setting("overlong.mask_truncated")
    if not worst >= at.TRUNCATED_AMBER or of_wrong < at.TRUNCATED_WRONG:
        return None
    limit = int(run.setting("sampling.max_tokens", 1))
    return Symptom(
        "red" if truncated.late >= at.TRUNCATED_RED and not masked else "amber",
        f"{percent(worst)} of the answers are cut off, and count as wrong",
        (
            ("cut off", from_to(truncated, percent)),
            ("cut off, of the wrong answers", percent(of_wrong)),
            ("mean tokens", from_to(run.series("completion/mean_length"))),
            ("sampling.max_tokens", str(limit)),
            ("overlong.kind", str(run.setting("overlong.kind"))),
        ),
        span(run, truncated),
        "the token limit is too low for this task, or answers grew into it: being long is punished "
        "as being wrong",
        "`completion/mean_length_stopped`; accuracy of the answers that ended by themselves; a few "
        "cut answers (loops?)",
        (f"sampling.max_tokens={limit},{2 * limit}", "overlong"),
    )


def _length(run: RunSeries) -> Symptom | None:
    """Wrong answers outgrow the right ones of the same groups."""
    early, late = run.early_rows, run.late_rows
    if min(len(early.gaps), len(late.gaps)) < at.MIN_GAPS:
        return None
    before, after = np.array(early.gaps), np.array(late.gaps)
    length = float(np.mean(early.wrong_lengths))
    error = float(np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after)))
    change = float(after.mean() - before.mean())
    z = standard_errors(change, error)
    wrong = run.series("completion/mean_length_wrong")
    right = run.series("completion/mean_length_right")
    late_error = float(after.std(ddof=1) / np.sqrt(len(after)))
    longer = (
        standard_errors(float(after.mean()), late_error) >= at.Z_TREND
        and after.mean() >= at.LONGER * right.late
    )
    grew = wrong.late >= (1 + at.GROWTH) * wrong.early
    if not (longer and grew and change >= at.GAP_GROWTH * length and z >= at.Z_TREND):
        return None
    cause = "nothing in the objective holds wrong answers short, or they loop"
    axes = ("loss_norm", "overlong")
    if run.setting("aggregate.kind") == "seq_mean":
        cause = (
            "a mean per sequence divides a wrong answer's penalty by its length, so being long is "
            "the cheaper way to be wrong"
        )
    elif run.setting("overlong.kind") == "mask" or run.setting("overlong.mask_truncated"):
        cause = "answers that run into the limit are masked, so being long costs nothing"
        axes = ("overlong", "loss_norm")
    much = wrong.late >= 2 * wrong.early and after.mean() >= at.MUCH_LONGER * right.late
    return Symptom(
        "red" if much else "amber",
        "wrong answers grow longer than the right ones",
        (
            ("tokens, wrong answers", from_to(wrong)),
            ("tokens, right answers", from_to(right)),
            (
                "wrong minus right, in the same group",
                f"{number(float(before.mean()))} → {number(float(after.mean()))} tokens "
                f"({errors(z)})",
            ),
            ("cut off, late", percent(run.series("completion/truncated_frac").late)),
            ("aggregate.kind", str(run.setting("aggregate.kind"))),
        ),
        span(run, wrong),
        cause,
        "`completion/repeated_ngram_frac` (loops); held-out `eval/mean_length_wrong`; "
        "`completion/length_gap_slope`",
        axes,
    )


TRUNCATION = Rule(
    "D-TRUNCATION",
    "answers cut off",
    _truncation,
    min_steps=2,
    explains=frozenset({"D-FALLING", "D-NO-SIGNAL"}),
)
LENGTH = Rule(
    "D-LENGTH",
    "growth of wrong answers",
    _length,
    at.MIN_STEPS,
    explains=frozenset({"D-TRUNCATION"}),
)
