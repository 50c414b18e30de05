"""A diagnosis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from grpo_cli.health.doctor import Diagnosis, Finding
from grpo_cli.report import safe_text

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {"red": "bold red", "amber": "bold yellow"}


def show(found: Diagnosis, out: Console) -> None:
    """Print the findings with what they rest on; without any, the numbers that were looked at."""
    reach = "no step on record" if found.last_step < 0 else f"to step {found.last_step}"
    _line(out, Text(f"{safe_text(found.run)}   {reach}", style="bold"))
    for finding in found.findings:
        _show_finding(finding, out)
    if not found.findings:
        # Nothing found in a run that is too short is no clean bill of health.
        word = "nothing found so far" if found.unjudged else "healthy"
        _line(out, Text(word, style="bold green" if not found.unjudged else "bold"))
        _pairs(found.evidence, out)
    if found.unjudged:
        _line(out, Text("cannot be judged yet", style="bold"))
        _pairs(found.unjudged, out)


def _show_finding(finding: Finding, out: Console) -> None:
    head = Text()
    head.append(f"{finding.severity:<6}", _STYLE[finding.severity])
    first, last = finding.steps
    head.append(f"{finding.id}  {safe_text(finding.headline)}", "bold")
    head.append(f"   steps {first} to {last}", "dim")
    _line(out, head)
    _pairs(finding.evidence, out)
    ends = [("likely cause", finding.cause), ("look at", finding.look_at)]
    if finding.command is not None:
        ends.append(("test it", finding.command))
    _pairs(ends, out)


def _pairs(pairs: Iterable[tuple[str, str]], out: Console) -> None:
    pairs = list(pairs)
    width = max((len(label) for label, _ in pairs), default=0)
    for label, value in pairs:
        text = safe_text(value).replace("\n", " ")
        _line(out, Text(f"      {label:<{width}}  {text}"))


def _line(out: Console, text: Text) -> None:
    # Soft wrap: a command must stay one line to be copied.
    out.print(text, soft_wrap=True)
