"""Rules about the verifier: does it answer, and does it pay for what is meant?"""

from __future__ import annotations

import math

from grpo_cli.health import thresholds as at
from grpo_cli.health.rules import Rule, Symptom, from_to, percent, span
from grpo_cli.health.series import RunSeries

_UNTIMED = "verifier.sample_limit_s=5,30"


def _fails(run: RunSeries) -> Symptom | None:
    """Errors and timeouts, in training or on held-out answers."""
    errors = run.series("verifier/error_frac")
    timeouts = run.series("verifier/timeout_frac")
    held_out = max(run.eval_series("eval/verifier_error_frac").values, default=0.0)
    worst = max(errors.mean, timeouts.mean, held_out)
    none_at_all = "[GR304]" in (run.info.reason or "")
    if not (worst >= at.FAILED_AMBER or none_at_all):
        return None
    said = run.all_rows.failure
    return Symptom(
        "red" if worst >= at.FAILED_RED or none_at_all else "amber",
        "the verifier failed on every held-out answer"
        if none_at_all
        else f"the verifier fails on {percent(worst)} of the answers",
        (
            ("errors", percent(errors.mean)),
            ("timeouts", percent(timeouts.mean)),
            ("held-out, at worst", percent(held_out)),
            *([("it said", said[:200])] if said else []),
        ),
        span(run, errors),
        "a failed check has no score, so its sample leaves the step: groups shrink, and what is "
        "left is no random part of the answers",
        "`grpo verify-verifier` on this verifier; `detail` in rollouts/*.jsonl.gz; "
        "`time/verify_max_s` against `verifier.sample_limit_s`",
        (_limit_axis(run), _UNTIMED),
    )


def _limit_axis(run: RunSeries) -> str:
    limit = float(run.setting("verifier.sample_limit_s") or 5)
    return f"verifier.sample_limit_s={limit:g},{4 * limit:g}"


def _pays(run: RunSeries) -> Symptom | None:
    """Full scores for texts that do not hold the answer."""
    rows = run.all_rows
    if run.setting("control.kind") == "random_reward" or rows.paid < at.MIN_PAID:
        return None
    share = rows.paid_without_gold / rows.paid
    if share < at.PAID_AMBER:
        return None
    accuracy = run.series("reward/accuracy")
    name = run.setting("verifier.name")
    return Symptom(
        "red" if share >= at.PAID_RED else "amber",
        f"{percent(share)} of the paid answers do not hold the reference: the verifier pays for "
        "something else",
        (
            (
                "paid without the reference",
                f"{rows.paid_without_gold} of {rows.paid} answers with score 1, in steps "
                f"{', '.join(map(str, rows.steps))}",
            ),
            ("accuracy as the verifier sees it", from_to(accuracy, percent)),
            ("verifier", str(name)),
        ),
        (rows.steps[0], rows.steps[-1]),
        "the score rewards a look or a format, or accepts a wrong answer; training then raises the "
        "score and not the skill, and held-out scores of the same verifier rise with it",
        f"`grpo verify-verifier {name}`; answers with score 1 in rollouts/*.jsonl.gz beside their "
        "`reference`",
        (f"verifier.name={name},{_other_verifier(run)}",),
    )


def _other_verifier(run: RunSeries) -> str:
    """A shipped verifier that reads the final integer in the style of the task."""
    kind = run.setting("task.kind")
    plain = kind == "arithmetic" and run.setting("task.answer") != "boxed"
    own = "exact_integer" if plain else "gsm8k" if kind == "gsm8k" else "math"
    return own if own != run.setting("verifier.name") else "math"


def _format(run: RunSeries) -> Symptom | None:
    """The format is learned, the answers are not."""
    readable = run.series("reward/format_frac")
    if not len(readable):
        unparsed = run.series("verifier/unparsed_frac")
        readable = type(unparsed)(unparsed.steps, tuple(1 - value for value in unparsed.values))
    trend, reward = readable.trend(), run.series("reward/mean").trend()
    change = run.held_out_change()
    if trend is None or reward is None or change is None:
        return None
    held_out, start, end = change
    gaming = (
        trend.change >= at.FORMAT_RISE
        and trend.z >= at.Z_TREND
        and reward.z >= at.Z_NONE
        and not held_out.low > 0
    )
    if not gaming:
        return None
    return Symptom(
        "amber",
        "format and reward rise while held-out accuracy does not",
        (
            ("answers with a readable format", from_to(trend, percent)),
            ("reward", from_to(reward)),
            ("held-out change", _points(held_out.mean, held_out.low, held_out.high)),
        ),
        (start, end),
        "the cheap part of the reward is learned first, or it is all that can be learned here",
        "`eval/format_frac` beside `eval/accuracy`; `grpo verify-verifier` (format exploits); "
        "a few answers of the last evaluation",
        (f"optim.steps={_steps(run)},{3 * _steps(run)}",),
    )


def _gap(run: RunSeries) -> Symptom | None:
    """The training score rises, the held-out score does not."""
    accuracy, change = run.series("reward/accuracy").trend(), run.held_out_change()
    if accuracy is None or change is None or run.setting("control.kind") == "random_reward":
        return None
    held_out, start, end = change
    rising = accuracy.change >= at.GAP_TRAIN and accuracy.z >= at.Z_TREND
    # A third of the gain inside the interval is enough to doubt.
    if not rising or held_out.high >= accuracy.change / 3:
        return None
    return Symptom(
        "red" if held_out.high < 0 else "amber",
        "the training score rises while the held-out score does not",
        (
            ("training accuracy", from_to(accuracy, percent)),
            ("held-out change", _points(held_out.mean, held_out.low, held_out.high)),
        ),
        (start, end),
        "the verifier pays for something that only training prompts offer, the prompts are few and "
        "are learned by heart, or held-out questions are of another kind",
        "how often a prompt repeats (`progress/prompts_seen` against the task's size); "
        "`grpo verify-verifier`; `task` and `task.eval_path`",
        ("kl", lower_steps(run)),
    )


def lower_steps(run: RunSeries) -> str:
    """The axis that compares the run's number of steps with half of it."""
    return f"optim.steps={_steps(run)},{max(1, _steps(run) // 2)}"


def _steps(run: RunSeries) -> int:
    return int(run.setting("optim.steps", 1))


def _points(mean: float, low: float, high: float) -> str:
    if math.isnan(low):
        return f"{100 * mean:+.1f} points"
    return f"{100 * mean:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


FAILS = Rule(
    "D-VERIFIER-FAILS",
    "verifier errors and timeouts",
    _fails,
    explains=frozenset({"D-NO-SIGNAL", "D-ZERO-GRADIENT", "D-FALLING"}),
)
PAYS = Rule(
    "D-VERIFIER-PAYS",
    "answers paid without the reference in them",
    _pays,
    explains=frozenset({"D-CONTRAST", "D-HELD-OUT-GAP", "D-FORMAT", "D-EXPLORATION"}),
)
FORMAT = Rule("D-FORMAT", "format learned instead of answers", _format, at.MIN_STEPS)
HELD_OUT_GAP = Rule("D-HELD-OUT-GAP", "training up, held-out not", _gap, at.MIN_STEPS)
