"""An explained step as terminal text and JSON. Everything shown passes `safe_text`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.cells import cell_len

from grpo_cli.compare.model import JSON
from grpo_cli.health.explained import Explained, Group, Sample, Share, Worst
from grpo_cli.health.tokens import Decode
from grpo_cli.report import JSON_VERSION, safe_text

_TITLES = {
    "verdict": "right or wrong",
    "advantage": "sign of the advantage",
    "length": "length",
    "end": "how it ended",
}


def as_text(explained: Explained, decode: Decode | None, group: int | None = None) -> str:
    """The step, or with `group` one of its groups sample by sample."""
    parts = [_head(explained)]
    if group is None:
        parts += [_groups(explained), _shares(explained), _scalars(explained)]
    else:
        parts.append(_samples(explained.groups[group]))
    worst = explained.worst
    if worst is not None and group in (None, worst.group):
        parts.append(_worst(worst, decode))
    if explained.notes:
        parts.append("\n".join(f"note: {safe_text(note)}" for note in explained.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(explained: Explained, decode: Decode | None, group: int | None = None) -> str:
    """One JSON document; NaN is null. Of the groups all, or the one that was asked for."""
    worst = explained.worst
    chosen = explained.groups if group is None else (explained.groups[group],)
    tree = {
        "schema_version": JSON_VERSION,
        **asdict(explained),
        "groups": [_group_json(g) for g in chosen],
        "worst": None
        if worst is None
        else {
            **asdict(worst),
            "log_rho": worst.learner_logp - worst.sampler_logp,
            "text": None
            if decode is None
            else {
                "before": [decode(t) for t in worst.before],
                "token": decode(worst.token_id),
                "after": [decode(t) for t in worst.after],
            },
        },
    }
    return json.dumps(_plain(tree), indent=2, allow_nan=False)


def _group_json(group: Group) -> dict[str, object]:
    samples = [
        {
            **asdict(s),
            "penalty": s.penalty,
            "tokens": s.length,
            "pull": s.pull,
            "worst_log_rho": None if s.gap is None else s.gap[1],
        }
        for s in group.samples
    ]
    return {**asdict(group), "samples": samples}


def _head(e: Explained) -> str:
    used = len(e.used)
    dropped = len(e.groups) - used
    trained = sum(s.weight > 0 for g in e.used for s in g.samples)
    parts = f", cut into {e.minibatches} minibatches" if e.minibatches > 1 else ""
    lines = [
        ("step", f"{e.step} of {e.run}"),
        ("groups", f"{used} used{parts}, {dropped} dropped"),
        ("trained", f"{trained} sequences"),
        ("reward", e.overlong),
        ("advantage", e.advantage),
        ("weight", f"{e.aggregate}; per token, sums to {_sums(e.weight_sums)} per minibatch"),
    ]
    return "\n".join(f"{name:<10}{_line(text)}" for name, text in lines)


def _sums(sums: Sequence[float]) -> str:
    return ", ".join(dict.fromkeys(f"{x:.4g}" for x in sums)) or "nothing"


def _groups(e: Explained) -> str:
    header = ("#", "PROMPT", "SCORE", "REWARD", "ADVANTAGE", "TOKENS", "PULL", "WHY")
    total = sum(s.pull for g in e.groups for s in g.samples)
    rows = []
    for group in e.groups:
        pull = sum(s.pull for s in group.samples)
        rows.append(
            (
                str(group.number),
                _cut(group.prompt, 28),
                _range([s.score for s in group.samples]),
                _range([s.reward for s in group.samples]),
                _range([s.advantage for s in group.samples], signed=True),
                _range([float(s.length) for s in group.samples]),
                _percent(pull / total if total else math.nan) if group.kept else "-",
                group.why,
            )
        )
    note = (
        "lowest to highest of the group; reward is the score after the length penalty; pull is\n"
        "the share of |weight x advantage x tokens|: what a sequence can move while the ratio is 1"
    )
    return f"{_table(header, rows)}\n{note}"


def _shares(e: Explained) -> str:
    if not e.used:
        return ""
    rows = [
        _share_row(key, share, e)
        for key, shares in e.splits.items()
        for share in shares
        if share.sequences or share.name != "zero"
    ]
    header = ("BATCH BY", "", "PULL", "TOKENS", "SEQUENCES")
    return _table(header, rows)


def _share_row(key: str, share: Share, e: Explained) -> tuple[str, ...]:
    name = share.name
    if key == "length" and not math.isnan(e.median_length):
        sign = "<=" if name == "short" else ">"
        name = f"{name}, {sign} {e.median_length:g} tokens"
    return (
        _TITLES[key],
        name,
        _percent(share.pull),
        _percent(share.tokens),
        str(share.sequences),
    )


def _scalars(e: Explained) -> str:
    if not e.scalars:
        return ""
    width = max(map(len, e.scalars))
    lines = ["from the step's record:"]
    for key, value in e.scalars.items():
        shown = _percent(value) if key.endswith("_frac") else f"{value:.6g}"
        lines.append(f"  {key:<{width}}  {shown}")
    return "\n".join(lines)


def _samples(group: Group) -> str:
    head = [
        f"group {group.number}: {_line(group.why)}"
        + (f", minibatch {group.minibatch}" if group.minibatch is not None else ""),
        f"prompt     {safe_text(group.prompt)}",
        f"reference  {safe_text(group.reference)}",
    ]
    header = (
        *("SAMPLE", "SCORE", "PENALTY", "REWARD", "ADVANTAGE", "TOKENS", "WEIGHT", "PULL"),
        *("LOG RHO", "END"),
    )
    total = sum(s.pull for s in group.samples)
    rows = [
        (
            str(s.sample),
            _number(s.score),
            _number(s.penalty),
            _number(s.reward),
            _number(s.advantage, signed=True),
            str(s.length),
            _number(s.weight),
            _percent(s.pull / total if total else math.nan),
            "-" if s.gap is None else f"{s.gap[1]:+.2g}",
            _end(s),
        )
        for s in group.samples
    ]
    told = (
        "pull: share within the group; log rho: the token's learner - sampler log-probability that "
        "is\nlargest in size, in nats"
    )
    return "\n\n".join(["\n".join(head), f"{_table(header, rows)}\n{told}", *_bodies(group)])


def _bodies(group: Group) -> Iterator[str]:
    for s in group.samples:
        word = "right" if s.right else "no verdict" if math.isnan(s.score) else "wrong"
        parsed = "" if s.parsed is None else f", read as {_cut(str(s.parsed), 40)}"
        detail = "" if s.detail is None else f", {_cut(str(s.detail), 60)}"
        text = safe_text(s.completion).replace("\n", "\n    ")
        yield f"sample {s.sample}: {word}, {s.status}{parsed}{detail}\n    {text}"


def _end(s: Sample) -> str:
    return f"{s.finish}{'' if s.out is None else f', out of the loss: {s.out}'}"


def _worst(worst: Worst, decode: Decode | None) -> str:
    gap = worst.learner_logp - worst.sampler_logp
    lines = [
        f"worst mismatch: {gap:+.3g} nats (learner {worst.learner_logp:.4g}, sampler "
        f"{worst.sampler_logp:.4g}) at token {worst.position} of sample {worst.sample} in group "
        f"{worst.group}"
    ]
    if decode is None:
        lines.append(
            f"  token ids ... {' '.join(map(str, worst.before))} [{worst.token_id}] "
            f"{' '.join(map(str, worst.after))} ..."
        )
    else:
        before, after = ("".join(map(decode, ids)) for ids in (worst.before, worst.after))
        # A visible newline keeps the token and its neighbours on one line.
        shown = f"{before}«{decode(worst.token_id)}»{after}".replace("\n", "⏎")
        lines.append(f"  {safe_text(shown)}")
    return "\n".join(lines)


def _range(values: Sequence[float], signed: bool = False) -> str:
    kept = [value for value in values if not math.isnan(value)]
    if not kept:
        return "-"
    low, high = _number(min(kept), signed), _number(max(kept), signed)
    return low if low == high else f"{low}..{high}"


def _number(value: float, signed: bool = False) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:+.3g}" if signed and value else f"{value + 0.0:.3g}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def _cut(text: str, limit: int) -> str:
    line = _line(text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _line(text: str) -> str:
    return " ".join(safe_text(text).split())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(c + " " * (w - cell_len(c)) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _plain(node: object) -> JSON:
    if isinstance(node, dict):
        return {str(key): _plain(child) for key, child in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(child) for child in node]
    if isinstance(node, float):
        return node if math.isfinite(node) else None
    assert node is None or isinstance(node, str | int | bool), node
    return node
