"""`audit.json`: what an audit found out about a verifier, kept beside its code.

Written by `grpo verify-verifier`, read by the gate of `grpo train`. Must not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_cli.errors import GrpoError, error
from grpo_cli.verify.source import VerifierSource

SCHEMA = 1
AUDIT_FILE = "audit.json"


@dataclass(frozen=True, slots=True)
class Rate:
    """`k` of `n` answers, with a 95 % interval. NaN bounds where nothing was counted.

    Example:
        Rate(k=0, n=63, low=0.0, high=0.057, problems=60)
    """

    k: int
    n: int
    low: float
    high: float
    problems: int = 0
    """How many different problems the answers come from; the interval is by problem."""

    def __str__(self) -> str:
        """`1.1 % [0.5, 2.1] (8/737)`, an upper bound when none was found, or `not measured`."""
        if self.n == 0:
            return "not measured"
        if self.k == 0:
            return f"<= {_percent(self.high)} % (0/{self.n})"
        interval = f"[{_percent(self.low)}, {_percent(self.high)}]"
        return f"{_percent(self.k / self.n)} % {interval} ({self.k}/{self.n})"


@dataclass(frozen=True, slots=True)
class Headline:
    """The figures that stand for an audit."""

    fn: Rate
    """Right answers that the verifier rejects."""
    fp: Rate
    """Wrong answers that it accepts."""
    j_lower: float
    """Lower 95 % bound of Youden's J = 1 - FN - FP; NaN when it was not measured."""


@dataclass(frozen=True, slots=True)
class AuditFile:
    """An audit's headline and what it is about."""

    verifier_name: str
    verifier_sha256: str
    options: Mapping[str, str]
    task: str | None
    """The task whose golds were used, if one was."""
    template: str | None
    """SHA-256 of the prompt template (hex), if one was used."""
    headline: Headline
    created: str
    """UTC, ISO 8601."""

    def mismatch(
        self, source: VerifierSource, task: str | None = None, template: str | None = None
    ) -> str | None:
        """What it is about instead of this code with these options, or None when it matches.

        Task and template count only when both sides name one.
        """
        if self.verifier_sha256 != source.sha256:
            return "another version of its code"
        if dict(self.options) != dict(source.options):
            return f"other options ({_listed(self.options)}, here {_listed(source.options)})"
        if self.task is not None and task is not None and self.task != task:
            return f"another task ({self.task}, here {task})"
        if self.template is not None and template is not None and self.template != template:
            return "another prompt template"
        return None

    def summary(self) -> str:
        """`FN 0.2 % [0.1, 0.6] (2/1310), FP <= 0.3 % (0/1232), audited 2026-01-31`."""
        shown = f"FN {self.headline.fn}, FP {self.headline.fp}"
        return f"{shown}, audited {self.created[:10]}"


def audit_path(source: VerifierSource) -> Path:
    """Where the audit of a verifier belongs.

    `audit.json` in a verifier's folder; for a function `FILE.FUNCTION.audit.json` beside its file,
    or in the working directory when it is in an importable module.
    """
    if source.kind == "folder":
        return Path(source.target) / AUDIT_FILE
    if source.target.endswith(".py"):
        return Path(source.target).with_suffix(f".{source.function}.{AUDIT_FILE}")
    return Path(f"{source.target}.{source.function}.{AUDIT_FILE}")


def gate(
    mode: str, source: VerifierSource, command: str, task: str | None = None
) -> tuple[AuditFile | None, str | None]:
    """What training learns about its verifier: a matching audit if there is one, a line to show.

    Args:
        mode: `require`, `warn` or `off`, the recipe's `audit`.
        source: the verifier.
        command: what a person runs to audit it.
        task: the recipe's task.

    Raises:
        GrpoError: GR213 with mode `require` and no matching audit.
    """
    if mode == "off":
        return None, None
    try:
        audit = find(source)
        other = audit.mismatch(source, task) if audit else None
        problem = f"its audit is of {other}" if other else None if audit else "never audited"
    except GrpoError as unreadable:
        audit, problem = None, unreadable.problems[0].message
    if problem is None and audit is not None:
        return audit, f"verifier {source.name}: {audit.summary()}"
    if mode == "require":
        raise error(
            "GR213",
            f"the recipe requires an audit of the verifier {source.name}: {problem}",
            hint=f"run `{command}`, or set audit=warn",
        )
    return None, f"verifier {source.name}: {problem}; run `{command}`"


def to_json(audit: AuditFile, more: Mapping[str, Any] | None = None) -> str:
    """The text of the file. `more` adds keys that `parse` does not read, such as all the tables."""
    tree = {
        "schema": SCHEMA,
        "verifier": {
            "name": audit.verifier_name,
            "sha256": audit.verifier_sha256,
            "options": dict(audit.options),
        },
        "task": audit.task,
        "template": audit.template,
        "headline": asdict(audit.headline),
        "created": audit.created,
    }
    assert not (more and more.keys() & tree.keys()), sorted(more or ())
    return json.dumps(_nulls({**tree, **(more or {})}), indent=1, ensure_ascii=False) + "\n"


def write(audit: AuditFile, path: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write the file whole."""
    from grpo_cli.checkpoint import replace_file

    replace_file(path, to_json(audit, more).encode())


def read(path: Path) -> AuditFile:
    """The audit in a file.

    Raises:
        GrpoError: GR213 when the file is missing or is no audit.
    """
    try:
        return parse(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        why = f"{type(problem).__name__}: {problem}"
        raise error(
            "GR213",
            f"{path} is not a readable audit ({why})",
            hint="run `grpo verify-verifier` again, or delete the file",
        ) from problem


def find(source: VerifierSource) -> AuditFile | None:
    """The audit that lies beside a verifier, whether or not it still matches; None without one.

    Raises:
        GrpoError: GR213 when there is a file, but it is no audit.
    """
    path = audit_path(source)
    return read(path) if path.exists() else None


def parse(tree: Any) -> AuditFile:
    """An audit from its JSON. Raises ValueError and its like when it is none."""
    if tree["schema"] != SCHEMA:
        raise ValueError(f"schema {tree['schema']}, this version reads {SCHEMA}")
    verifier, headline = tree["verifier"], tree["headline"]
    return AuditFile(
        verifier_name=_text(verifier["name"]),
        verifier_sha256=_text(verifier["sha256"]),
        options={_text(k): _text(v) for k, v in verifier["options"].items()},
        task=None if tree["task"] is None else _text(tree["task"]),
        template=None if tree["template"] is None else _text(tree["template"]),
        headline=Headline(
            fn=_rate(headline["fn"]), fp=_rate(headline["fp"]), j_lower=_float(headline["j_lower"])
        ),
        created=_text(tree["created"]),
    )


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items())) or "none"


def _rate(tree: Any) -> Rate:
    return Rate(
        k=int(tree["k"]),
        n=int(tree["n"]),
        low=_float(tree["low"]),
        high=_float(tree["high"]),
        problems=int(tree.get("problems", 0)),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _nulls(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, Mapping):
        return {key: _nulls(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_nulls(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _percent(fraction: float) -> str:
    """One decimal, two below a tenth of a per cent."""
    percent = 100 * fraction
    return f"{percent:.2f}" if 0 < percent < 0.1 else f"{percent:.1f}"
