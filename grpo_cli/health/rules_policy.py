"""Rules about the policy: whose data it learns from, how far it steps, whether it explores."""

from __future__ import annotations

import math

from grpo_cli.health import thresholds as at
from grpo_cli.health.rules import (
    Rule,
    Severity,
    Symptom,
    from_to,
    lower_lr,
    number,
    percent,
    span,
    values_axis,
)
from grpo_cli.health.series import Rows, RunSeries

_CLIPS_RATIO = ("clip", "gmpo", "gspo_token")
"""Objectives whose clip fractions count tokens at bounds of a token ratio."""

DISTINCT = "different texts among a group's wrong answers"
"""How `Rows.distinct_frac` is called."""


def _off_policy(run: RunSeries) -> Symptom | None:
    """Sampler and learner are not the same policy."""
    k3, rho = run.series("mismatch/k3"), run.series("mismatch/rho_beyond_2_frac")
    logp = run.series("mismatch/logp_abs_mean")
    canary = "[GR306]" in (run.info.reason or "")
    exact = run.setting("learner.dtype") == "float32" and (
        run.setting("engine.dtype") in ("auto", "float32")
        and not run.setting("engine.quantization")
    )
    red = canary or k3.median >= at.K3_RED or rho.median >= at.RHO_RED
    amber = (
        k3.median >= at.K3_AMBER
        or rho.median >= at.RHO_AMBER
        or (exact and logp.median >= at.FLOAT32_LOGP)
    )
    if not (red or amber):
        return None
    corrected = run.setting("correction.kind", "none") != "none"
    severity: Severity = "red" if red and (canary or not corrected) else "amber"
    return Symptom(
        severity,
        "sampler and learner are not the same policy"
        if canary
        else f"the sampler is off the learner's policy by {number(k3.median)} nats per token",
        (
            ("KL(sampler, learner), median", f"{number(k3.median)} nats per token"),
            ("mean |log rho|, median", f"{number(logp.median)} nats"),
            ("tokens with rho outside [1/2, 2]", percent(rho.median)),
            ("effective sample size, sequences", percent(run.series("correction/ess_seq").median)),
            ("correction", str(run.setting("correction.kind", "none"))),
            *([("the run ended with", (run.info.reason or "")[:200])] if canary else []),
        ),
        span(run, k3),
        "sampling runs with another temperature, precision, quantisation or older weights than the "
        "learner assumes, so the data is off-policy before the first update",
        "`canary/logp_abs_mean` (the same weights on fixed text: if it is small, the sampling "
        "settings differ, not the weights); env.json for what disturbed the sampler; "
        "`mismatch/staleness`; `grpo doctor --system`",
        ("correction", "correction.kind=none,icepop", lower_lr(run)),
    )


def _step_size(run: RunSeries) -> Symptom | None:
    """Updates that leave the region in which they are valid."""
    nonfinite = max(run.series("optim/nonfinite").values, default=0.0)
    ended = "[GR301]" in (run.info.reason or "")
    p99, kl_base = run.series("ratio/p99"), run.series("policy/kl_base")
    clipped = _clipped(run)
    moved, moved_step = _moved_per_step(run)
    worst_p99 = max(p99.early, p99.late) if len(p99) else math.nan
    leaves = (
        worst_p99 >= at.P99_AMBER
        or clipped >= at.CLIPPED_AMBER
        or moved >= at.MOVED
        or kl_base.late >= at.KL_BASE
    )
    if not (leaves or nonfinite or ended):
        return None
    fell = _fall(run) is not None
    red = (
        nonfinite
        or ended
        or fell
        or worst_p99 >= at.P99_RED
        or clipped >= at.CLIPPED_RED
        or moved >= at.MOVED
    )
    lr, grad = run.setting("optim.lr"), run.series("optim/grad_norm")
    update = run.series("optim/update_norm")
    return Symptom(
        "red" if red else "amber",
        "loss or gradient is not finite"
        if nonfinite or ended
        else "the updates are too large"
        + (": the policy leaves its base and accuracy falls" * fell),
        (
            ("ratio to the old policy, 99th percentile", from_to(p99)),
            ("tokens at a clip bound", percent(clipped)),
            ("moved per step on fixed text, at the start", f"{number(moved)} nats per token"),
            ("KL to the base model, late", f"{number(kl_base.late)} nats per token"),
            ("gradient norm before scaling, median and largest", _median_and_largest(grad.values)),
            *([("update norm", from_to(update))] if len(update) else []),
            ("updates that were not finite", f"{nonfinite:.0f}"),
            ("accuracy in training", from_to(run.series("reward/accuracy"), percent)),
            ("optim.lr", f"{lr:g}"),
        ),
        (moved_step, span(run)[1]),
        "the learning rate is too high for this model and batch, or a batch is used for too many "
        "updates: the surrogate no longer describes what an update does",
        "`ratio/max`, `optim/grad_norm` and `policy/kl_base` over the first steps; the step at "
        "which `reward/accuracy` drops",
        (lower_lr(run), "kl"),
    )


def _clipped(run: RunSeries) -> float:
    """The larger of early and late share of tokens at a bound; NaN for other kinds of bounds."""
    if run.setting("objective.kind") not in _CLIPS_RATIO:
        return math.nan
    low, high = run.series("ratio/clipped_low_frac"), run.series("ratio/clipped_high_frac")
    return max(low.early + high.early, low.late + high.late) if len(low) and len(high) else math.nan


def _moved_per_step(run: RunSeries) -> tuple[float, int]:
    """How fast the policy left its base in the first steps, nats per token and step, and a step."""
    moved = run.series("canary/moved")
    rates = [value / step for step, value in zip(moved.steps, moved.values, strict=True)][:5]
    return (max(rates), moved.steps[rates.index(max(rates))]) if rates else (math.nan, 1)


def _median_and_largest(values: tuple[float, ...]) -> str:
    if not values:
        return "unknown"
    ordered = sorted(values)
    return f"{number(ordered[len(ordered) // 2])}, {number(ordered[-1])}"


def _fall(run: RunSeries) -> tuple[str, tuple[int, int]] | None:
    """A fall of the held-out accuracy, else of the training accuracy below that of the base model.

    Step 1 samples with the base weights, so a fall within the first steps shows too.
    """
    for after_best in (False, True):
        change = run.held_out_change(after_best)
        if change is not None and change[0].high < 0 and change[0].mean <= -at.FALL:
            held_out, start, end = change
            text = (
                f"held-out {100 * held_out.mean:+.1f} points "
                f"[{100 * held_out.low:+.1f}, {100 * held_out.high:+.1f}], steps {start} to {end}"
            )
            return text, (start, end)
    base = run.eval_series("eval/accuracy")
    trained = run.series("reward/accuracy")
    # Without a second evaluation only a collapse is clear: the prompts differ from step to step.
    if len(base) and base.steps[0] == 0 and len(trained) >= at.MIN_STEPS:
        before, after = base.values[0], trained.late
        if before > 0 and after < before / 2:
            text = f"from {percent(before)} (base model) to {percent(after)} in training"
            return text, (0, trained.steps[-1])
    return None


def _falling(run: RunSeries) -> Symptom | None:
    """Accuracy falls; the earlier rules may say why."""
    fall = _fall(run)
    if fall is None:
        return None
    what, steps = fall
    return Symptom(
        "red",
        "accuracy falls: " + what,
        (
            ("fall", what),
            ("accuracy in training", from_to(run.series("reward/accuracy"), percent)),
            ("entropy", from_to(run.series("policy/entropy"))),
        ),
        steps,
        "no earlier finding explains it: the updates may be slightly too large for the number of "
        "steps, or the score does not reward what the held-out questions ask",
        "the first evaluation that is lower, and `policy/entropy`, `completion/mean_length` and "
        "`group/mixed_frac` around it",
        (lower_lr(run), "kl"),
    )


def _exploration(run: RunSeries) -> Symptom | None:
    """The samples of a group agree: too cold from the start, or the entropy collapsed."""
    entropy, likeness = run.series("policy/entropy"), run.series("group/similarity")
    temperature = float(run.setting("sampling.temperature", 1.0))
    cold = temperature < at.COLD_TEMPERATURE
    wasted = 1 - run.series("group/mixed_frac").late
    # A group that is solved may well agree.
    unsolved = run.series("reward/accuracy").late < at.SOLVED
    from_start = (
        _repeats(run.early_rows)
        or entropy.early < at.ENTROPY_COLD
        or (unsolved and likeness.early >= at.SIMILAR)
    )
    collapsed = (
        _repeats(run.late_rows)
        or (unsolved and likeness.late >= at.SIMILAR)
        or (
            unsolved
            and len(entropy) >= at.MIN_STEPS
            and entropy.late <= at.ENTROPY_RATIO * entropy.early
        )
    )
    if not (from_start or collapsed or (cold and wasted >= at.AGREE)):
        return None
    headline = (
        f"hardly any exploration: a group repeats itself at temperature {temperature:g}"
        if cold
        else "hardly any exploration from the start: the samples of a group repeat each other"
        if from_start
        else "entropy collapsed: the samples of a group repeat each other"
    )
    cause = (
        f"the sampling temperature is {temperature:g}, so a group holds the likeliest text again "
        "and again, and its advantages come from few different answers"
        if cold
        else "the base model is nearly certain of its answers at this temperature"
        if from_start
        else "likely tokens are pushed up and unlikely ones are clipped or never sampled, until a "
        "group holds one answer"
    )
    warmer = values_axis("sampling.temperature", temperature, 1.0 if cold else 1.2 * temperature)
    return Symptom(
        "red" if wasted >= at.AGREE and (cold or unsolved) else "amber",
        headline,
        (
            (DISTINCT, _distinct(run)),
            ("entropy", f"{from_to(entropy)} nats per token"),
            *([("likeness of a group's texts", from_to(likeness))] if len(likeness) else []),
            ("groups without contrast, late", percent(wasted)),
            ("sampling.temperature", f"{temperature:g}"),
        ),
        span(run, entropy),
        cause,
        "`group/distinct_answers_frac` and `group/all_wrong_frac`; a few groups of "
        "rollouts/*.jsonl.gz; the clip's upper bound (`ratio/clipped_high_frac`); held-out pass@k",
        (warmer, "temperature") if cold or from_start else ("clip", warmer),
    )


def _repeats(rows: Rows) -> bool:
    """Whether the wrong answers of a group are mostly copies of each other."""
    return rows.repeatable >= at.MIN_REPEATABLE and rows.distinct_frac < at.DISTINCT


def _distinct(run: RunSeries) -> str:
    early, late = run.early_rows, run.late_rows
    shown = percent(early.distinct_frac)
    return f"{shown} → {percent(late.distinct_frac)}" if late.steps else shown


OFF_POLICY = Rule(
    "D-OFF-POLICY",
    "sampler against learner",
    _off_policy,
    explains=frozenset({"D-FALLING", "D-STEP-SIZE", "D-EXPLORATION"}),
)
STEP_SIZE = Rule(
    "D-STEP-SIZE",
    "size of the updates",
    _step_size,
    min_steps=2,
    explains=frozenset({"D-FALLING", "D-NO-SIGNAL", "D-EXPLORATION"}),
)
EXPLORATION = Rule(
    "D-EXPLORATION",
    "exploration",
    _exploration,
    min_steps=4,
    explains=frozenset({"D-NO-SIGNAL", "D-CONTRAST", "D-ZERO-GRADIENT"}),
)
FALLING = Rule("D-FALLING", "falling accuracy", _falling)
