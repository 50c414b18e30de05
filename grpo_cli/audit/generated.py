"""Rows made from golds: right answers in other spellings, wrong answers close by."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_cli.audit.oracle import answer_part, parse_value
from grpo_cli.audit.rows import Gold, Row, Stratum
from grpo_cli.audit.template import Template, Wrapper
from grpo_cli.audit.variants import Variant, positives
from grpo_cli.audit.wrong import negatives


def generated_rows(golds: Sequence[Gold], template: Template, kind: str) -> list[Row]:
    """Every variant of every gold whose template is known; policy rows are marked."""
    rows: list[Row] = []
    answers = [answer_part(gold.reference) for gold in golds]
    for index, (gold, answer) in enumerate(zip(golds, answers, strict=True)):
        wrapper = template.wrapper(gold.reference)
        if wrapper is None:
            continue
        value = parse_value(answer, letters=kind == "choice")
        others = answers[index + 1 :] + answers[:index]
        right = positives(answer, value, kind)
        wrong = negatives(answer, value, kind, others)
        options = {text.strip().lower() for text in gold.choices}
        wrong = [v for v in wrong if v.answer.lower() not in options]
        rows += [_row(gold, v, wrapper.fill(v.answer), accept=True) for v in right]
        rows += [_row(gold, v, text, accept=True) for v, text in _statements(answer, wrapper, kind)]
        rows += [_row(gold, v, wrapper.fill(v.answer), accept=False) for v in wrong]
    return rows


def _statements(answer: str, wrapper: Wrapper, kind: str) -> list[tuple[Variant, str]]:
    """The right answer stated otherwise."""
    plain = wrapper.fill(answer)
    found: list[tuple[Variant, str]] = []
    if kind in ("format", "code"):
        return found
    if not plain.endswith("."):
        found.append((Variant("full stop after", answer), f"{plain}."))
    found.append((Variant("line end after", answer), f"{plain}\n"))
    if "<answer>" not in plain:
        found.append((Variant("stated twice", answer), f"{plain}\n{plain}"))
        # A model that corrects itself. Taking the last answer and refusing both are both sound.
        wrong = f"{wrapper.fill(_other(answer, kind))}\nWait, that is wrong.\n{plain}"
        found.append((Variant("correction: another answer first", answer, exact=False), wrong))
    denied = f"{plain}\nOr perhaps that is wrong, I am not sure."
    found.append((Variant("doubt in prose after the answer", answer, exact=False), denied))
    if kind == "integer":
        think = f"<think>\n{plain}\n</think>"
        found.append((Variant("thinking tags are plain text", answer, exact=False), think))
    return found


def _other(answer: str, kind: str) -> str:
    if kind == "choice":
        return "A" if answer.strip() != "A" else "B"
    return "37" if answer.strip() != "37" else "41"


def _row(gold: Gold, variant: Variant, text: str, *, accept: bool) -> Row:
    return Row(
        id=f"{gold.problem[:40]}/{variant.kind}",
        problem=gold.problem,
        kind=variant.kind,
        text=text,
        reference=gold.reference,
        accept=accept,
        stratum=Stratum.GENERATED,
        policy=not variant.exact,
    )
