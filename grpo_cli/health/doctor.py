"""`grpo doctor RUN`: what is wrong with a run, from its record alone.

Rules stand in causal order, from the verifier over the sampler to the policy and its answers. A
cause is as severe as the worst finding that it explains, so the first finding names the root cause:
an off-policy gap explains a falling accuracy, never the reverse.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_cli.health import rules_length, rules_policy, rules_signal, rules_verifier
from grpo_cli.health.command import Commands
from grpo_cli.health.rules import Rule, Severity, Symptom, from_to, number, percent
from grpo_cli.health.series import RunSeries
from grpo_cli.report import safe_text

RULES: tuple[Rule, ...] = (
    rules_verifier.FAILS,
    rules_verifier.PAYS,
    rules_policy.OFF_POLICY,
    rules_policy.STEP_SIZE,
    rules_policy.EXPLORATION,
    rules_length.LENGTH,
    rules_length.TRUNCATION,
    rules_signal.NO_SIGNAL,
    rules_signal.CONTRAST,
    rules_verifier.FORMAT,
    rules_verifier.HELD_OUT_GAP,
    rules_policy.FALLING,
    rules_signal.ZERO_GRADIENT,
    rules_signal.NOISE,
)
"""In causal order."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with what it rests on and the experiment that would test it."""

    id: str
    severity: Severity
    headline: str
    evidence: tuple[tuple[str, str], ...]
    """(what, its value in words)."""
    steps: tuple[int, int]
    """First and last step that it rests on."""
    cause: str
    look_at: str
    command: str | None
    """None when the run's recipe file is gone, or no axis fits it."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, the root cause first, and the numbers that were looked at."""

    run: str
    last_step: int
    """-1 without a record."""
    findings: tuple[Finding, ...]
    evidence: tuple[tuple[str, str], ...]
    unjudged: tuple[tuple[str, str], ...]
    """(what, why it cannot be judged yet)."""

    @property
    def is_red(self) -> bool:
        """Whether there is a red finding."""
        return any(finding.severity == "red" for finding in self.findings)

    @property
    def headline(self) -> str:
        """One line: healthy and on what grounds, or the first finding."""
        if self.findings:
            first = self.findings[0]
            return f"{first.severity} {first.id}: {first.headline}"
        if self.unjudged:
            return f"nothing found so far; {len(self.unjudged)} checks cannot be made yet"
        shown = ", ".join(f"{label} {value}" for label, value in self.evidence[:3])
        return f"healthy ({len(RULES)} checks): {shown}"

    def summary(self, run: str) -> str:
        """The headline as one safe line; a finding with the command that says more of `run`."""
        line = " ".join(safe_text(self.headline, 300).split())
        return f"{line}   grpo doctor {shlex.quote(run)}" if self.findings else line

    def as_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {**asdict(self), "headline": self.headline}


def diagnose(run: Path) -> Diagnosis:
    """The findings of a run folder, also of one that is still being written.

    Raises:
        GrpoError: GR206 when `run` is no run folder, GR204 when a file of it cannot be read.
    """
    series = RunSeries.open(run)
    steps = len(series.trained)
    symptoms: dict[str, Symptom] = {}
    unjudged: list[tuple[str, str]] = []
    for rule in RULES:
        # A run that ended by itself says something at any length.
        found = rule.check(series) if steps >= rule.min_steps or series.info.reason else None
        if found is not None:
            symptoms[rule.id] = found
        elif steps < rule.min_steps:
            needed = f"{rule.min_steps} step{'s' * (rule.min_steps > 1)}"
            unjudged.append((rule.about, f"needs {needed}, has {steps}"))
    if len(series.eval_series("eval/accuracy")) < 2:
        unjudged.append(("held-out change", "needs two evaluations"))
    severities = _severities(symptoms)
    commands = Commands(series)
    findings = [
        Finding(
            id=rule.id,
            severity=severities[rule.id],
            headline=symptom.headline,
            evidence=symptom.evidence,
            steps=symptom.steps,
            cause=symptom.cause,
            look_at=symptom.look_at,
            command=commands.test(symptom.axes),
        )
        for rule in RULES
        if (symptom := symptoms.get(rule.id)) is not None
    ]
    findings.sort(key=lambda finding: finding.severity != "red")  # stable: causal order stays
    return Diagnosis(
        run=str(run),
        last_step=series.records[-1].step if series.records else -1,
        findings=tuple(findings),
        evidence=tuple(_evidence(series)),
        unjudged=tuple(unjudged),
    )


def _severities(symptoms: Mapping[str, Symptom]) -> dict[str, Severity]:
    """A cause is red when something that it explains is. From the last rule to the first, so that
    a chain of causes ends at its beginning."""
    found: dict[str, Severity] = {}
    for rule in reversed(RULES):
        if (symptom := symptoms.get(rule.id)) is not None:
            worse = any(found.get(effect) == "red" for effect in rule.explains)
            found[rule.id] = "red" if worse else symptom.severity
    return found


def _evidence(run: RunSeries) -> Sequence[tuple[str, str]]:
    """The numbers that every diagnosis looks at; what a run does not have is left out."""
    shown = [
        ("training accuracy", "reward/accuracy", percent),
        ("groups with contrast", "group/mixed_frac", percent),
        ("groups all right", "group/all_right_frac", percent),
        ("groups all wrong", "group/all_wrong_frac", percent),
        ("entropy, nats per token", "policy/entropy", number),
        ("tokens, right answers", "completion/mean_length_right", number),
        ("tokens, wrong answers", "completion/mean_length_wrong", number),
        ("answers cut off", "completion/truncated_frac", percent),
        ("KL(sampler, learner), nats per token", "mismatch/k3", number),
        ("ratio to the old policy, 99th percentile", "ratio/p99", number),
        ("KL to the base model, nats per token", "policy/kl_base", number),
        ("verifier errors", "verifier/error_frac", percent),
        ("verifier timeouts", "verifier/timeout_frac", percent),
    ]
    found = []
    change = run.held_out_change()
    if change is not None:
        held_out, start, end = change
        interval = f"[{100 * held_out.low:+.1f}, {100 * held_out.high:+.1f}]"
        found.append(
            (
                "held-out accuracy",
                f"{100 * held_out.mean:+.1f} points {interval}, steps {start} to {end}",
            )
        )
    for label, name, words in shown:
        series = run.series(name)
        if not math.isnan(series.mean):
            found.append((label, from_to(series, words)))
    distinct = run.early_rows.distinct_frac, run.late_rows.distinct_frac
    if not math.isnan(distinct[0]):
        found.append(
            (
                rules_policy.DISTINCT,
                " → ".join(percent(value) for value in distinct if not math.isnan(value)),
            )
        )
    rows = run.all_rows
    if rows.paid:
        found.append(
            ("paid without the reference in the text", f"{rows.paid_without_gold} of {rows.paid}")
        )
    if run.info.reason:
        found.append(("the run ended with", run.info.reason[:200]))
    if run.setting("control.kind", "none") != "none":
        found.append(("control arm", str(run.setting("control.kind"))))
    return found
