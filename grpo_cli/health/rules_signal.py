"""Rules about the learning signal: contrast inside groups, and a reward that moves."""

from __future__ import annotations

import math

from grpo_cli.health import thresholds as at
from grpo_cli.health.rules import (
    Rule,
    Symptom,
    from_to,
    lower_lr,
    number,
    percent,
    span,
    values_axis,
)
from grpo_cli.health.series import RunSeries, Series


def _no_signal(run: RunSeries) -> Symptom | None:
    """Steps in which no advantage differs from 0."""
    effective = run.series("group/effective")
    if not len(effective) or run.setting("control.kind", "none") != "none":
        return None
    silent = sum(value == 0 for value in effective.values) / len(effective)
    right, wrong = run.series("group/all_right_frac"), run.series("group/all_wrong_frac")
    # Groups that are all right are D-CONTRAST's.
    if silent < at.NO_SIGNAL or right.median >= at.EXHAUSTED_AMBER:
        return None
    unreadable = run.series("verifier/unparsed_frac").mean
    all_wrong = wrong.mean >= 0.5
    if all_wrong and unreadable >= 0.5:
        cause = "the verifier finds no answer in most completions: the format is not produced"
    elif all_wrong:
        cause = "the questions are too hard for this model and group size: no sample is right"
    else:
        cause = (
            "the groups have contrast, but nothing of it trains: masks, filters or missing scores"
        )
    return Symptom(
        "red",
        f"no learning signal in {percent(silent)} of the steps",
        (
            ("steps without an advantage", percent(silent)),
            ("groups all wrong", percent(wrong.mean)),
            ("groups all right", percent(right.mean)),
            ("answers that cannot be read", percent(unreadable)),
            ("masked sequences per step", number(run.series("loss/masked_sequences").mean)),
        ),
        span(run, effective),
        cause,
        "`grpo verify-verifier`; a few completions of step 1 in rollouts/; `grpo tasks show` for "
        "difficulty",
        (*_easier(run), _larger_groups(run)),
    )


def _easier(run: RunSeries) -> tuple[str, ...]:
    high, low = run.setting("task.max_level"), run.setting("task.min_level")
    if not isinstance(high, int) or not isinstance(low, int) or high <= low:
        return ()
    return (f"task.max_level={high},{max(low, high - 2)}",)


def _harder(run: RunSeries) -> tuple[str, ...]:
    high = run.setting("task.max_level")
    return (f"task.max_level={high},{min(5, high + 2)}",) if isinstance(high, int) else ()


def _larger_groups(run: RunSeries) -> str:
    size = int(run.setting("sampling.group_size", 8))
    return f"sampling.group_size={size},{4 * size}"


def _contrast(run: RunSeries) -> Symptom | None:
    """Nearly every group is solved."""
    right, mixed = run.series("group/all_right_frac"), run.series("group/mixed_frac")
    if not right.late >= at.EXHAUSTED_AMBER:
        return None
    since = right.smoothed().first_step_where(at.EXHAUSTED_AMBER) or span(run)[1]
    soon = right.early >= at.EASY
    if not soon and right.late < at.EXHAUSTED_RED and _learned(run):
        return None
    tokens = run.series("group/rounds")
    return Symptom(
        # Late, it is what success looks like; early, it is most of the budget.
        "red" if soon and right.late >= at.EXHAUSTED_RED else "amber",
        f"contrast is used up: {percent(right.late)} of the groups are all right"
        + (", many from the start" if soon else ""),
        (
            ("groups all right", from_to(right, percent)),
            ("groups with contrast", from_to(mixed, percent)),
            ("accuracy in training", from_to(run.series("reward/accuracy"), percent)),
            ("sampling rounds per step", from_to(tokens)),
            ("first step above the threshold", str(since)),
        ),
        (since, span(run)[1]),
        "the prompts are too easy for this model"
        if soon
        else "the prompts are learned: what is left costs sampling and teaches little",
        "the held-out accuracy (if it is high, the run is done); `group/rounds` and "
        "`time/rollout_s`; `grpo tasks show` for harder prompts",
        (*_harder(run), "filter", lower_half(run)),
    )


def lower_half(run: RunSeries) -> str:
    """The axis that compares the run's steps with half of them."""
    steps = int(run.setting("optim.steps", 2))
    return f"optim.steps={steps},{max(1, steps // 2)}"


def _learned(run: RunSeries) -> bool:
    """Whether the held-out accuracy rose beyond its interval."""
    change = run.held_out_change()
    return change is not None and change[0].low > 0


def _zero_gradient(run: RunSeries) -> Symptom | None:
    """The share of groups without contrast grows."""
    mixed = run.series("group/mixed_frac")
    zero = Series(mixed.steps, tuple(1 - value for value in mixed.values))
    trend = zero.trend()
    if run.series("group/all_right_frac").late >= at.EXHAUSTED_AMBER:
        return None  # D-CONTRAST says it
    if trend is None or trend.z < at.Z_TREND or trend.late < at.ZERO_GRAD:
        return None
    wrong = run.series("group/all_wrong_frac")
    hard = wrong.late > trend.late / 2
    if not hard and _learned(run):
        return None  # the prompts are being solved
    return Symptom(
        "amber",
        f"the share of groups without contrast grows to {percent(trend.late)}",
        (
            ("groups without contrast", from_to(trend, percent)),
            ("of them all wrong, late", percent(wrong.late)),
            ("filter", str(run.setting("filter.kind"))),
        ),
        (trend.first_step, trend.last_step),
        "more and more groups are all wrong: the policy loses what it could do"
        if hard
        else "more and more prompts are solved, so ever less of a batch trains",
        "`group/all_right_frac` against `group/all_wrong_frac`; `group/effective`",
        ("filter", _larger_groups(run)),
    )


def _noise(run: RunSeries) -> Symptom | None:
    """The training accuracy has no trend above its step-to-step noise."""
    accuracy = run.series("reward/accuracy")
    trend = accuracy.trend()
    if trend is None or run.setting("control.kind", "none") != "none":
        return None
    change = run.held_out_change()
    if abs(trend.z) >= at.Z_NONE or _learned(run) or trend.late >= at.SOLVED:
        return None
    prompts = int(run.setting("sampling.prompts_per_step", 1))
    more = f"sampling.prompts_per_step={prompts},{4 * prompts}"
    lr = float(run.setting("optim.lr", math.nan))
    return Symptom(
        "amber",
        "the reward has no trend above its step-to-step noise",
        (
            ("accuracy in training", from_to(trend, percent)),
            ("noise of one step", percent(trend.noise)),
            ("a batch", f"{prompts} prompts x {run.setting('sampling.group_size')} samples"),
            *(
                [
                    (
                        "held-out change",
                        f"{100 * change[0].mean:+.1f} points "
                        f"[{100 * change[0].low:+.1f}, {100 * change[0].high:+.1f}]",
                    )
                ]
                if change
                else []
            ),
            ("optim.lr", f"{lr:g}"),
        ),
        span(run, accuracy),
        "too few prompts per step for the size of the effect, a learning rate that is too low, or "
        "nothing that these prompts can teach",
        "`optim/grad_norm` and `canary/moved` (does the policy move at all?); `group/effective`",
        (more, values_axis("optim.lr", lr, 3 * lr), lower_lr(run)),
    )


NO_SIGNAL = Rule("D-NO-SIGNAL", "steps without signal", _no_signal, min_steps=4)
CONTRAST = Rule(
    "D-CONTRAST",
    "groups that are all right",
    _contrast,
    min_steps=4,
    explains=frozenset({"D-ZERO-GRADIENT", "D-NOISE"}),
)
ZERO_GRADIENT = Rule("D-ZERO-GRADIENT", "groups without contrast", _zero_gradient, at.MIN_STEPS)
NOISE = Rule("D-NOISE", "trend against noise", _noise, at.MIN_STEPS_NOISE)
