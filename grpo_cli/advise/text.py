"""Advice as text and as a JSON document."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from dataclasses import asdict

from grpo_cli.advise.answers import QUESTIONS, Answers
from grpo_cli.advise.evidence import GRADES, Evidence
from grpo_cli.advise.rules import Advice
from grpo_cli.report import JSON_VERSION

READING = (
    "Published gaps between objectives are about 1 to 4 points, from a base model to any of them "
    "about 25, and almost no table has seeds. AIME24 has 30 questions: one is 3.33 points."
)
CAVEAT = "Only an ablation on your own model, prompts and verifier decides."

_SETUPS = {
    "math": "`math-qwen2.5-math-1.5b` or `math-qwen3-4b`, or a task of your own",
    "code": "a `jsonl` task of your own with the verifier `code`",
    "chat": "a `jsonl` task and a verifier of your own",
    "tools": "a `jsonl` task and a verifier of your own",
    "pretraining": "a `next_token` task of your text",
}


def setup_hint(answers: Answers) -> str:
    """Which setup the command needs besides."""
    own = "a setup file of your own, no mixture of experts is shipped"
    return (
        "Without --setup the commands train the tiny world. For yours: "
        f"{own if answers.arch == 'moe' else _SETUPS[answers.task]} (docs/tasks.md, "
        "`grpo recipe ls`)."
    )


def document(advice: Advice, summary: str, assumed: Collection[str]) -> dict[str, object]:
    """The answer of `--json`.

    Args:
        summary: the recipe's own summary.
        assumed: names of the questions that nobody answered.
    """
    return {
        "schema_version": JSON_VERSION,
        "answers": {
            q.name: {"value": advice.answers.value(q.name), "assumed": q.name in assumed}
            for q in QUESTIONS
        },
        "recipe": advice.recipe,
        "summary": summary,
        "command": advice.command,
        "changes": [asdict(change) for change in advice.changes],
        "setup": setup_hint(advice.answers),
        "reasons": [asdict(row) for row in advice.reasons],
        "against": [asdict(row) for row in advice.against],
        "misread": [asdict(row) for row in advice.misread],
        "missing": [
            {"id": m.id, "method": m.method, "why": m.why, "nearest": m.nearest}
            for m in advice.missing
        ],
        "notes": list(advice.notes),
        "ablations": [asdict(proposal) for proposal in advice.ablations],
        "grades": dict(GRADES),
        "reading": READING,
        "caveat": CAVEAT,
    }


def render(advice: Advice, summary: str, assumed: Collection[str], width: int) -> str:
    """The advice as plain text of at most `width` columns, commands excepted (to be copied)."""
    return "\n".join(_lines(advice, summary, assumed, width))


def _lines(advice: Advice, summary: str, assumed: Collection[str], width: int) -> Iterator[str]:
    given = ", ".join(
        f"{q.name} {advice.answers.value(q.name)}{' (assumed)' if q.name in assumed else ''}"
        for q in QUESTIONS
    )
    yield from _wrapped(given, width, "for     ", "        ")
    yield from _wrapped(summary, width, f"recipe  {advice.recipe}: ", "        ")
    yield f"run     {advice.command}"
    yield from _wrapped(setup_hint(advice.answers), width, "        ", "        ")
    for change in advice.changes:
        yield f"        {change.key}={change.value}  because of [{change.because}]"
    yield "\nWhy"
    for row in advice.reasons:
        yield from _evidence(row, width)
    yield "\nAgainst it"
    for row in advice.against:
        yield from _evidence(row, width)
    if advice.missing:
        yield "\nNot in this runner"
    for missing in advice.missing:
        text = f"{missing.method}: {missing.why}. Nearest: {missing.nearest}."
        yield from _wrapped(text, width, "  ", "    ")
    if advice.misread:
        yield "\nOften misread"
    for misread in advice.misread:
        text = f'"{misread.belief}" {misread.fact} ({misread.source})'
        yield from _wrapped(text, width, "  ", "    ")
    if advice.notes:
        yield "\nNotes"
    for note in advice.notes:
        yield from _wrapped(note, width, "  ", "    ")
    yield "\nRun first (--dry-run shows the plan)"
    for number, proposal in enumerate(advice.ablations, start=1):
        yield f"  {number}. {proposal.command}"
        yield from _wrapped(proposal.decides, width, "     ", "     ")
    yield ""
    yield from _wrapped(READING, width, "", "")
    yield CAVEAT


def _evidence(row: Evidence, width: int) -> Iterator[str]:
    yield from _wrapped(f"[{row.id}] {row.claim}", width, "  ", "    ")
    checked = "; secondary source, not checked in the paper" if row.secondary else ""
    yield from _wrapped(f"{row.source}  ({row.grade}{checked})", width, "    = ", "      ")


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
