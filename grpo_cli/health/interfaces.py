"""The four interfaces of a run (signal, optimisation, system, evaluation), each with a light.

A light comes from the doctor's findings that belong to the interface and from what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grpo_cli.compare.model import RunRecord
from grpo_cli.health.doctor import Finding
from grpo_cli.verify.audit_file import AuditFile


class Light(StrEnum):
    """How an interface stands, from good to bad."""

    GREEN = "green"
    AMBER = "amber"
    RED = "red"


@dataclass(frozen=True, slots=True)
class Interface:
    """One link of the chain, and the metrics that are drawn for it."""

    key: str
    question: str
    metrics: tuple[str, ...]


INTERFACES = (
    Interface(
        "signal",
        "Do rewards tell right from wrong, and differ within groups?",
        (
            "reward/mean",
            "reward/accuracy",
            "group/mixed_frac",
            "group/zero_variance_frac",
            "completion/truncated_frac",
            "verifier/unparsed_frac",
            "verifier/error_frac",
            "verifier/timeout_frac",
        ),
    ),
    Interface(
        "optimisation",
        "Does every update move the policy, and not too far?",
        (
            "policy/entropy",
            "optim/grad_norm",
            "advantage/std",
            "completion/mean_length",
            "ratio/clipped_high_frac",
            "ratio/clipped_low_frac",
            "policy/kl_ref",
            "optim/nonfinite",
        ),
    ),
    Interface(
        "system",
        "Are sampler and learner the same policy, and what does a step cost?",
        (
            "mismatch/logp_abs_mean",
            "mismatch/logp_abs_max",
            "canary/logp_abs_mean",
            "time/tokens_per_s",
            "time/rollout_s",
            "time/learner_s",
        ),
    ),
    Interface(
        "evaluation",
        "Is it better on questions that it was not trained on, and honestly so?",
        (
            "eval/accuracy",
            "eval/pass_at_8",
            "eval/mean_length",
            "eval/truncated_frac",
            "eval/unparsed_frac",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class SeedFinding:
    """A finding, and the seeds of the arm that have it."""

    finding: Finding
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AuditLine:
    """The light of an interface, why it is that, what was measured, and the findings behind it."""

    interface: Interface
    light: Light
    why: tuple[str, ...]
    measured: str
    findings: tuple[SeedFinding, ...]


def audit_lines(
    runs: Sequence[RunRecord],
    found: Sequence[SeedFinding],
    audit: AuditFile | None,
    *,
    blind: Sequence[str] = (),
    early: bool = False,
) -> tuple[AuditLine, ...]:
    """One line per interface for the seeds of an arm, or for a run alone.

    Args:
        blind: why the doctor could not look at some of the runs.
        early: whether it needs more steps for some of its checks.
    """
    unread = [f"the doctor could not look: {why}" for why in blind]
    return tuple(_line(i, runs, found, audit, unread, early) for i in INTERFACES)


def worst(lights: Sequence[Light]) -> Light:
    """The worst of some lights."""
    order = list(Light)
    return max(lights, key=order.index, default=Light.GREEN)


def _line(
    interface: Interface,
    runs: Sequence[RunRecord],
    found: Sequence[SeedFinding],
    audit: AuditFile | None,
    unread: Sequence[str],
    early: bool,
) -> AuditLine:
    own = [f for f in found if interface_of(f.finding.id) == interface.key]
    own.sort(key=lambda f: f.finding.severity != "red")
    lacks = [*_lacks(interface.key, runs, audit), *unread]
    lights = [Light(f.finding.severity) for f in own] + [Light.AMBER for _ in lacks]
    why = [_headline(f, len(runs)) for f in own] + lacks
    light = worst(lights)
    return AuditLine(
        interface,
        light,
        tuple(why) or ("nothing found so far" if early else "nothing found",),
        _measured(interface.key, runs, audit),
        tuple(own),
    )


def _headline(found: SeedFinding, num_seeds: int) -> str:
    text = found.finding.headline
    return text if num_seeds < 2 else f"{text} ({len(found.seeds)} of {num_seeds} seeds)"


def _lacks(key: str, runs: Sequence[RunRecord], audit: AuditFile | None) -> Iterator[str]:
    """What nobody could see because it was not measured, or was and must not be."""
    late = last_quarter(runs)
    if not any(record.step > 0 for run in runs for record in run.records):
        if key != "evaluation":
            yield "no training step is on record"
    elif key == "signal":
        if audit is None:
            yield "the verifier has no audit in the run folder: its error rates are unknown"
    elif key == "optimisation":
        stopped = sum(run.records[-1].scalars.get("optim/nonfinite", 0) > 0 for run in runs)
        if stopped:
            yield f"updates with a loss or gradient that was not finite in {stopped} run(s)"
    elif key == "system" and "mismatch/logp_abs_mean" not in late:
        yield "sampler and learner were not compared"
    if key == "evaluation" and not any(run.series("eval/accuracy") for run in runs):
        yield "no held-out evaluation is on record"


def last_quarter(runs: Sequence[RunRecord]) -> dict[str, float]:
    """Mean over runs of the mean over the last quarter of the training steps; no NaN."""
    sums: dict[str, list[float]] = {}
    for run in runs:
        trained = [record.scalars for record in run.records if record.step > 0]
        late = trained[-max(1, len(trained) // 4) :] if trained else []
        for key in {key for scalars in late for key in scalars}:
            kept = [s[key] for s in late if not math.isnan(s.get(key, math.nan))]
            if kept:
                sums.setdefault(key, []).append(sum(kept) / len(kept))
    return {key: sum(values) / len(values) for key, values in sums.items()}


def _measured(key: str, runs: Sequence[RunRecord], audit: AuditFile | None) -> str:
    late = last_quarter(runs)
    if key == "signal":
        parts = _parts(
            late,
            {
                "group/mixed_frac": "{:.0%} of groups mixed",
                "group/zero_variance_frac": "{:.0%} without contrast",
                "completion/truncated_frac": "{:.1%} truncated",
                "verifier/unparsed_frac": "{:.1%} without an answer",
            },
        )
        parts += [] if audit is None else [f"verifier {audit.summary()}"]
    elif key == "optimisation":
        parts = _parts(
            late,
            {
                "policy/entropy": "entropy {:.3g} nats",
                "optim/grad_norm": "gradient norm {:.3g}",
                "ratio/clipped_low_frac": "clipped low {:.2%}",
                "ratio/clipped_high_frac": "high {:.2%}",
            },
        )
    elif key == "system":
        parts = _parts(
            late,
            {
                "mismatch/logp_abs_mean": "mismatch {:.2g} nats on average",
                "mismatch/logp_abs_max": "{:.2g} at most",
                "time/tokens_per_s": "{:,.0f} tokens/s",
            },
        )
    else:
        return "; ".join(_gain(runs))
    return ", ".join(parts) + (" (last quarter of the steps)" if parts else "")


def _parts(late: Mapping[str, float], wanted: Mapping[str, str]) -> list[str]:
    return [form.format(late[key]) for key, form in wanted.items() if key in late]


def _gain(runs: Sequence[RunRecord]) -> Iterator[str]:
    for key, form in (("eval/accuracy", "{:.1%}"), ("eval/mean_length", "{:.1f}")):
        series = [found for run in runs if (found := run.series(key))]
        if series:
            first = sum(s[0][1] for s in series) / len(series)
            last = sum(s[-1][1] for s in series) / len(series)
            name = "held-out accuracy" if key == "eval/accuracy" else "tokens"
            yield f"{name} {form.format(first)} to {form.format(last)}"


_PREFIXES = {
    "D-VERIFIER": "signal",
    "D-NO-SIGNAL": "signal",
    "D-CONTRAST": "signal",
    "D-ZERO-GRADIENT": "signal",
    "D-NOISE": "signal",
    "D-OFF-POLICY": "system",
    "D-HELD-OUT": "evaluation",
    "D-FORMAT": "evaluation",
}
"""What a rule's id starts with -> its interface; every other rule is about the optimisation."""


def interface_of(rule: str) -> str:
    """The interface that a rule of the doctor belongs to, by the start of its id."""
    return next((key for start, key in _PREFIXES.items() if rule.startswith(start)), "optimisation")
