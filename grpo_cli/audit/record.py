"""`--write`: the audit as `audit.json` beside the verifier.

It holds no seconds and nothing that depends on the machine's load, and its date changes only when
something else does: a second audit of the same code writes the same bytes.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo_cli.audit.rates import Rate
from grpo_cli.audit.render import nulls
from grpo_cli.audit.report import Report
from grpo_cli.errors import GrpoError
from grpo_cli.verify import audit_file
from grpo_cli.verify.source import VerifierSource


def write_record(report: Report, source: VerifierSource) -> tuple[Path, bool]:
    """Write the file; returns where it is and whether it changed."""
    path = audit_file.audit_path(source)
    record = audit_file.AuditFile(
        verifier_name=report.name,
        verifier_sha256=report.sha256,
        options=dict(report.options),
        task=report.task,
        template=None,
        headline=audit_file.Headline(
            fn=_rate(report.headline.fn),
            fp=_rate(report.headline.fp),
            j_lower=_rounded(report.headline.j.low),
        ),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    more = details(report)
    if path.exists():
        try:
            old = replace(record, created=audit_file.read(path).created)
        except GrpoError:
            pass  # an unreadable file is replaced
        else:
            if path.read_text(encoding="utf-8") == audit_file.to_json(old, more):
                return path, False
    audit_file.write(record, path, more)
    return path, True


def details(report: Report) -> dict[str, Any]:
    """Everything else that does not depend on the clock."""
    code = report.code
    tree = {
        "kind": report.kind,
        "golds": {"source": report.gold_source, **asdict(report.golds)},
        "answer_template": {"text": report.template, "guessed": report.template_guessed},
        "headline_from": {"fn": report.headline.fn_from, "fp": report.headline.fp_from},
        "kinds": [
            {
                "from": str(line.stratum),
                "kind": line.kind,
                "must_accept": line.must_accept,
                "wrong": line.rate.wrong,
                "rows": line.rate.rows,
                "problems": line.rate.problems,
                "low": _rounded(line.rate.low),
                "high": _rounded(line.rate.high),
                "example": line.example,
            }
            for line in report.lines
        ],
        "policies": [
            {"from": str(p.stratum), "kind": p.kind, "accepted": p.accepted, "rows": p.rows}
            for p in report.policies
        ],
        "relations": [asdict(r) for r in report.relations],
        "lazy": [
            {"policy": x.policy, "reward": _rounded(x.reward), "base": _rounded(x.base)}
            for x in report.lazy
        ],
        "exploits": {
            "conclusive": report.conclusive,
            "families": [{"name": f.name, "rows": f.rows, "paid": f.paid} for f in report.exploits],
        },
        "sandbox": None
        if code is None
        else {
            "level": code.level,
            "attacks": [
                {"name": a.name, "family": a.family, "contained": a.contained} for a in code.attacks
            ],
            "weaker": {level: list(names) for level, names in code.weaker.items()},
        },
        "costly_answers_contained": all(bomb.contained for bomb in report.bombs),
        "deterministic": not any(repeat.changed for repeat in report.repeats),
    }
    found = nulls(tree)
    assert isinstance(found, dict)
    return found


def _rate(rate: Rate) -> audit_file.Rate:
    return audit_file.Rate(
        k=rate.wrong,
        n=rate.rows,
        low=_rounded(rate.low),
        high=_rounded(rate.high),
        problems=rate.problems,
    )


def _rounded(value: float) -> float:
    """Six decimals: the last bits of an interval may differ between two versions of scipy."""
    return round(value, 6)
