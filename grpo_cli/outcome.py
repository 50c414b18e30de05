"""What `grpo train` says at the end: before and after with intervals, and what to type next."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grpo_cli.errors import error
from grpo_cli.evaluate import accuracy, paired_difference, summarise
from grpo_cli.health.doctor import diagnose
from grpo_cli.launch import Outcome
from grpo_cli.progress import Style
from grpo_cli.rundir import read_eval, read_info, read_metrics
from grpo_cli.stats import Interval
from grpo_cli.types import EvalRow, RunStatus


def show_outcome(outcome: Outcome, style: Style, command: Sequence[str], seed: int) -> None:
    """Print the summary to standard output: a table, one JSON object, or only the run's folder."""
    if style == "quiet":
        print(outcome.run)  # noqa: T201 this is the data
        return
    metrics = read_metrics(outcome.run)
    evals = [r.step for r in metrics if "eval/accuracy" in r.scalars]
    try:
        before = read_eval(outcome.run, evals[0]) if evals else ()
        after = read_eval(outcome.run, evals[-1]) if len(evals) > 1 else ()
    except FileNotFoundError as problem:
        raise error(
            "GR204",
            f"{problem.filename} is missing",
            hint="put it back, or pass --restart to begin a new run",
        ) from problem
    if style == "json":
        print(json.dumps(_as_json(outcome, before, after, evals)))  # noqa: T201 this is the data
        return
    out = Console(highlight=False)
    if outcome.already_done:
        out.print(Text(f"already finished: {_shown(outcome.run)}   (--restart begins anew)"))
    elif outcome.status is RunStatus.STOPPED:
        out.print(Text("stopped; the same command continues it"))
    last = metrics[-1].scalars if metrics else {}
    for label, value in _rows(outcome, before, after, evals, last):
        out.print(Text(f"{label:<16} {value}"), soft_wrap=True)
    for line in _next_commands(outcome, command, seed):
        out.print(Text(line, style="dim"), soft_wrap=True)


def _rows(
    outcome: Outcome,
    before: tuple[EvalRow, ...],
    after: tuple[EvalRow, ...],
    evals: list[int],
    last: dict[str, float],
) -> Iterator[tuple[str, str]]:
    if before:
        yield "held-out before", f"{_percent(accuracy(before))}   step {evals[0]}"
    if after:
        questions = len({r.question_id for r in after})
        yield "held-out after", f"{_percent(accuracy(after))}   step {evals[-1]}"
        yield (
            "difference",
            f"{_points(paired_difference(before, after))}   paired over {questions} questions "
            f"x {len(after) // questions} samples",
        )
        old, new = summarise(before), summarise(after)
        yield (
            "truncated",
            f"{old['eval/truncated_frac']:.1%} → {new['eval/truncated_frac']:.1%}"
            f"   without an answer {old['eval/unparsed_frac']:.1%} → "
            f"{new['eval/unparsed_frac']:.1%}   tokens {old['eval/mean_length']:.1f} → "
            f"{new['eval/mean_length']:.1f}",
        )
        if new["eval/verifier_error_frac"] > 0:
            yield "verifier failed", f"on {new['eval/verifier_error_frac']:.1%} of the answers"
    if outcome.train_s:
        yield (
            "training",
            f"{outcome.train_s:.0f} s with evaluation; in all "
            f"{last.get('progress/tokens_generated', 0):,.0f} tokens sampled over "
            f"{last.get('progress/prompts_seen', 0):,.0f} prompts",
        )
    yield "doctor", diagnose(outcome.run).summary(str(_shown(outcome.run)))
    yield "run folder", str(_shown(outcome.run))
    if outcome.mirror:
        yield "MLflow", outcome.mirror.summary


def _next_commands(outcome: Outcome, command: Sequence[str], seed: int) -> list[str]:
    if outcome.status is RunStatus.STOPPED:
        return []
    return [
        "",
        "This is one seed: a statement about this checkpoint, not about the method. Next:",
        f"  {shlex.join(with_seed(command, seed + 1))}",
        f"  grpo report {shlex.quote(str(_shown(outcome.run)))} --html report.html",
        "  grpo ablate --axis std_norm --seeds 3 --dry-run",
    ]


def with_seed(command: Sequence[str], seed: int) -> list[str]:
    """The same `grpo train` command with another seed, and not beginning anew."""
    words = ["grpo"]
    arguments = iter(command[1:])
    for word in arguments:
        if word == "--seed":
            next(arguments, None)
        elif word != "--restart" and not word.startswith("--seed="):
            words.append(word)
    return [*words, "--seed", str(seed)]


def _as_json(
    outcome: Outcome, before: tuple[EvalRow, ...], after: tuple[EvalRow, ...], evals: list[int]
) -> dict[str, object]:
    def interval(value: Interval) -> dict[str, float | int | None]:
        # JSON has no NaN.
        return {k: None if v != v else v for k, v in asdict(value).items()}

    info = read_info(outcome.run)
    return {
        "schema": 1,
        "type": "summary",
        "run": str(outcome.run),
        "status": outcome.status,
        "already_done": outcome.already_done,
        "seed": info.seed,
        "recipe_hash": info.recipe_hash,
        "train_s": round(outcome.train_s, 3),
        "eval_steps": evals,
        "before": interval(accuracy(before)) if before else None,
        "after": interval(accuracy(after)) if after else None,
        "difference": interval(paired_difference(before, after)) if after else None,
    }


def _percent(value: Interval) -> str:
    if math.isnan(value.low):
        return f"{value.mean:.1%}  (no interval from {value.n} questions)"
    # A t interval does not know that an accuracy ends at 0 and 1.
    return f"{value.mean:.1%}  [{max(value.low, 0):.1%}, {min(value.high, 1):.1%}]"


def _points(value: Interval) -> str:
    if math.isnan(value.low):
        return f"{100 * value.mean:+.1f} points"
    return f"{100 * value.mean:+.1f} points  [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def _shown(path: Path) -> Path:
    try:
        return Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path
    except ValueError:
        return path


def exit_code(outcome: Outcome) -> int:
    """130 for a run that was interrupted, otherwise 0."""
    return 130 if outcome.status is RunStatus.STOPPED else 0
