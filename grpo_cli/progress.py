"""What a person sees while a run trains: a live panel, plain lines, JSON lines, or nothing.

Progress goes to stderr; only `--json` records go to stdout.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from grpo_cli.recipe.load import Loaded
from grpo_cli.report import safe_text
from grpo_cli.rundir import read_metrics
from grpo_cli.types import StepRecord

if TYPE_CHECKING:
    from grpo_cli.arm import Arm

Style = Literal["live", "plain", "json", "quiet"]

_PLAIN_EVERY_S = 5.0
_MISMATCH_ALARM = 0.02
"""Nats a token. Float32 engines stay below 1e-5; 2 % is a ratio that clipping begins to see."""


class Progress:
    """Shows one run. The trainer calls `phase` and `record`; the launcher calls the rest."""

    def __init__(self, style: Style, console: Console) -> None:
        self._style = style
        self._console = console
        self._live: Live | None = None
        self._steps = 0
        self._phase = ""
        self._latest: dict[str, float] = {}
        self._curves: dict[str, list[float]] = {"reward/mean": [], "eval/accuracy": []}
        self._step = self._eval_step = 0
        self._first_step = 0
        self._began = 0.0
        self._last_line = -math.inf
        self._warned = False

    def header(self, loaded: Loaded, seed: int, run: Path, verifier: str | None = None) -> None:
        """Who runs where, before anything heavy is loaded; `verifier`: what its audit says."""
        recipe = loaded.recipe
        self._steps = recipe.optim.steps
        if self._style in ("json", "quiet"):
            return
        for label, value in (
            ("recipe", f"{loaded.name}: {recipe.summary}" if recipe.summary else loaded.name),
            ("setup", f"{recipe.setup}   model {recipe.model.id}   seed {seed}"),
            ("run", str(run)),
        ):
            self._say(f"{label:<7} {safe_text(value)}")
        if verifier is not None:
            self._say(safe_text(verifier))

    def begin(self, device: str, resumed: int | None, run: Path) -> None:
        """The model is loaded and the run starts, or goes on after step `resumed`."""
        for record in read_metrics(run):
            self._remember(record)
        self._first_step = self._step = resumed or 0
        self._began = time.monotonic()
        if self._style in ("json", "quiet"):
            return
        self._say(f"device  {device}")
        if resumed is not None:
            self._say(f"continuing after step {resumed}")
        if self._style == "live":
            self._live = Live(self, console=self._console, refresh_per_second=8, transient=True)
            self._live.start()

    def phase(self, text: str) -> None:
        """What is being done now; only the live panel shows it."""
        self._phase = text

    def notice(self, text: str) -> None:
        """Something a person should read."""
        if self._style != "quiet":
            self._say(text)

    def record(self, arm: Arm, record: StepRecord) -> None:
        """A step is on record."""
        self._remember(record)
        self._warn_of_mismatch(arm, record)
        if self._style == "json":
            try:
                print(json.dumps(step_json(record)), flush=True)  # noqa: T201 this is the data
            except BrokenPipeError:
                self._nobody_reads()
        if self._style == "plain" and (
            "eval/accuracy" in record.scalars
            or time.monotonic() - self._last_line >= _PLAIN_EVERY_S
        ):
            self._last_line = time.monotonic()
            self._say(self._line())

    def _warn_of_mismatch(self, arm: Arm, record: StepRecord) -> None:
        """Once a run: sampler and learner are further apart than a ratio of 1 should be."""
        gap = record.scalars.get("mismatch/logp_abs_mean", 0.0)
        if gap > _MISMATCH_ALARM and arm.recipe.correction.kind == "none" and not self._warned:
            self._warned = True
            self.notice(
                f"sampler and learner differ by {gap:.3f} nats a token (step {record.step}) and "
                "nothing corrects it: try learner.fp32_head and engine.fp32_head, or "
                "`--set correction.kind=tis_token`"
            )

    def _remember(self, record: StepRecord) -> None:
        self._step = record.step
        self._latest |= record.scalars
        if "eval/accuracy" in record.scalars:
            self._eval_step = record.step
        for name, curve in self._curves.items():
            if name in record.scalars:
                curve.append(record.scalars[name])

    def _nobody_reads(self) -> None:
        # A viewer that goes away must not end a run.
        self._style = "quiet"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def close(self) -> None:
        """Take the live panel down."""
        if self._live:
            self._live.stop()
            self._live = None

    def __rich__(self) -> Group:
        bar = ProgressBar(total=self._steps, completed=self._step, width=30)
        top = Table.grid(padding=(0, 1))
        top.add_row(
            Text(f"step {self._step}/{self._steps}"),
            bar,
            Text(self._time_left()),
            Spinner("dots", Text(self._phase, style="dim")),
        )
        lines: list[Table | Text] = [top, Text(self._numbers())]
        for name, label in (("reward/mean", "reward  "), ("eval/accuracy", "held-out")):
            if len(self._curves[name]) > 1:
                lines.append(Text(f"{label} {sparkline(self._curves[name])}", style="cyan"))
        return Group(*lines)

    def _say(self, text: str) -> None:
        try:
            self._console.print(Text(text), soft_wrap=True)
        except BrokenPipeError:
            self._style = "quiet"

    def _line(self) -> str:
        return f"step {self._step:>3}/{self._steps}  {self._numbers()}  {self._time_left()}"

    def _numbers(self) -> str:
        get = self._latest.get
        parts = (
            ("reward", _number(get("reward/mean"), "{:+.2f}")),
            ("held-out", _number(get("eval/accuracy"), f"{{:.1%}} @{self._eval_step}")),
            ("entropy", _number(get("policy/entropy"), "{:.2f}")),
            ("length", _number(get("completion/mean_length"), "{:.0f}")),
            ("zero-variance", _number(get("group/zero_variance_frac"), "{:.0%}")),
            ("tokens/s", _number(get("time/tokens_per_s"), "{:,.0f}")),
        )
        return "  ".join(f"{label} {value}" for label, value in parts if value is not None)

    def _time_left(self) -> str:
        done = self._step - self._first_step
        if done <= 0 or self._step >= self._steps:
            return ""
        left = (time.monotonic() - self._began) / done * (self._steps - self._step)
        return f"{int(left // 60)}:{int(left % 60):02d} left"


def step_json(record: StepRecord) -> dict[str, object]:
    """A step as one JSON object; NaN and infinity, which JSON lacks, become null."""
    scalars = {k: v if math.isfinite(v) else None for k, v in record.scalars.items()}
    return {"schema": 1, "type": "step", "step": record.step, "scalars": scalars}


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The last `width` values as block characters, from their least to their greatest."""
    kept = [v for v in values if not math.isnan(v)][-width:]
    if not kept:
        return ""
    low, high = min(kept), max(kept)
    scale = 7 / (high - low) if high > low else 0
    return "".join("▁▂▃▄▅▆▇█"[round((v - low) * scale)] for v in kept)


def _number(value: float | None, form: str) -> str | None:
    if value is None:
        return None
    return "-" if math.isnan(value) else form.format(value)
