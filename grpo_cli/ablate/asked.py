"""Options with a syntax of their own: the primary metric and the budget. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.ablate.history import History, estimate
from grpo_cli.compare.health import CURVES, LABELS
from grpo_cli.errors import error
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import check_metric_name

_BUDGETS = ("steps", "tokens", "minutes")


@dataclass(frozen=True, slots=True)
class Primary:
    """The metric that decides, and the step at which it does (None: the last)."""

    metric: str
    step: int | None

    def __str__(self) -> str:
        return f"{self.metric}@{'final' if self.step is None else self.step}"


def parse_primary(text: str, arms: Sequence[tuple[str, Recipe]]) -> Primary:
    """The metric and step of `--primary`, checked against the named recipes.

    Raises:
        GrpoError: GR209 for a metric that no evaluation makes, or a step without one.
    """
    metric, at, when = text.partition("@")
    hint = "write `--primary eval/accuracy@final` or `...@STEP`"
    try:
        check_metric_name(metric)
    except ValueError:
        raise error("GR209", f"`{metric}` cannot be a metric", hint=hint) from None
    known = _known_metrics([recipe for _, recipe in arms])
    if metric not in known:
        raise error(
            "GR209",
            f"`{metric}` cannot decide an ablation of these recipes",
            hint=did_you_mean(metric, known) or f"there are {', '.join(known)}",
        )
    if not at or when == "final":
        return Primary(metric, None)
    if not when.isdecimal():
        raise error("GR209", f"`{when}` is no step", hint=hint)
    step = int(when)
    for name, recipe in arms:
        optim, every = recipe.optim, recipe.eval.every
        evaluated = step == optim.steps or step == 0 or bool(every and step % every == 0)
        if step > optim.steps or (metric.startswith("eval/") and not evaluated):
            what = "ends before" if step > optim.steps else "evaluates nothing at"
            raise error(
                "GR209",
                f"arm `{name}` {what} step {step}",
                hint=f"it has {optim.steps} steps and evaluates every {every}",
            )
    return Primary(metric, step)


def _known_metrics(recipes: Sequence[Recipe]) -> list[str]:
    counts = {recipe.eval.samples_per_question for recipe in recipes}
    names = ("accuracy", "mean_length", "truncated_frac", "unparsed_frac", "verifier_error_frac")
    return [
        *(f"eval/{name}" for name in names),
        *(f"eval/pass_at_{k}" for k in sorted(counts)),
        *dict.fromkeys([*CURVES, *LABELS]),
    ]


def parse_budget(text: str | None) -> tuple[str | None, int]:
    """Kind and amount of `--budget KIND=N`; (None, 0) without one.

    Raises:
        GrpoError: GR209.
    """
    if text is None:
        return None, 0
    kind, _, amount = text.partition("=")
    number = amount.replace("_", "").replace(",", "")
    if kind not in _BUDGETS or not number.isdecimal() or int(number) < 1:
        raise error(
            "GR209",
            f"`--budget {text}` is no budget",
            hint="write steps=N (per cell), tokens=N or minutes=N (of the whole ablation)",
        )
    return kind, int(number)


def affordable(
    kind: str, amount: int, history: History, recipes: Sequence[Recipe], seeds: int
) -> int:
    """The most steps per cell that a budget of tokens or minutes pays for, by the estimate.

    Raises:
        GrpoError: GR209 when it does not pay for one step and its evaluations.
    """

    def cost(steps: int) -> float:
        cut = [
            recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"steps": steps})})
            for recipe in recipes
        ]
        found = estimate(history, cut, seeds, "eval/accuracy")
        return found.tokens if kind == "tokens" else found.seconds / 60

    if cost(1) > amount:
        raise error(
            "GR209",
            f"`--budget {kind}={amount}` does not pay for one step of every cell",
            hint=f"{kind}={math.ceil(cost(1))} would; fewer seeds, arms or `eval.num_questions` "
            "cost less",
        )
    low, high = 1, 2
    while cost(high) <= amount:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= amount else (low, middle)
    return low
