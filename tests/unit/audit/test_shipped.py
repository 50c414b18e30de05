"""The battery on every shipped verifier: no exploit family may pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_cli.audit.battery import Plan, audit
from grpo_cli.audit.relations import POLICY_TAIL
from grpo_cli.audit.report import figures
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.verify.load import load_verifier

NAMES = sorted(p.parent.name for p in verifiers_dir().glob("*/cases.jsonl"))
SLOW = {"code"}
QUESTIONS = {
    "math": [
        ("Simplify $\\sqrt{50}$.", "5\\sqrt{2}"),
        ("Evaluate $7^2 - 4^2$.", "33"),
        ("Compute\n\\[\\dbinom{9}{7}.\\]", "36"),
        ("What is the value of $\\log_2 32$", "5"),
        ("Factor the expression $ab + 2a + 3b + 6$.", "(a+3)(b+2)"),
        ("Simplify the following:\n$$\\frac{6}{\\sqrt{12}}$$", "\\sqrt{3}"),
        ("Write $0.75$ as a common fraction: $$0.75$$", "\\frac{3}{4}"),
        ("Find $\\sin 30^\\circ \\cos 60^\\circ.$", "\\frac{1}{4}"),
        ("Solve for $x$: $3x = 21$.", "x = 7"),
        ("Evaluate 6 * 7", "42"),
    ],
    "gsm8k": [
        ("Ann has 12 pens and loses none. How many pens does she have?", "#### 12"),
        ("A box holds 30 eggs. Bo buys one box. State how many eggs he has.", "#### 30"),
        ("Is the answer 5?", "#### 5"),
        ("Cy needs 8 dollars a day. How much does he need for 1 day", "#### 8"),
    ],
    "choice": [
        ("Which is a fruit?\nA. stone\nB. apple\nC. road\nD. lamp", "B"),
        ("Is the answer A or B?\nA. no\nB. yes", "B"),
        ("Which letter comes first? (A) A (B) B (C) C\nAnswer:", "A"),
        ("Choose one option, A, B, C or D", "D"),
    ],
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in NAMES]
)
def test_a_shipped_verifier(name: str) -> None:
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    report = audit(load_verifier(name, verifiers_dir()), Plan())
    found = figures(report)
    assert not report.template_guessed, "it must define answer(reference)"
    assert report.conclusive
    assert [(f.name, f.example, f.reference) for f in report.passing] == []
    assert report.golds.consistent == report.golds.golds > 0, report.golds.examples
    assert found["fp"] == 0, [line for line in report.lines if line.rate.wrong]
    assert found["fn"] == 0, [line for line in report.lines if line.rate.wrong]
    assert found["lazy_excess"] == 0, report.worst_lazy
    assert found["nondeterministic"] == 0, report.repeats
    assert found["bombs"] == 0, report.bombs
    for relation in report.relations:
        assert relation.broken == 0 or POLICY_TAIL in relation.name, relation
    if report.kind == "code":
        assert report.code is not None
        assert report.code.failed == ()


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_the_question_said_back_pays_nothing(name: str, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [{"question": q, "answer": a} for q, a in QUESTIONS[name]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = audit(load_verifier(name, verifiers_dir()), Plan(task=str(file), golds=10))
    (echo,) = [lazy for lazy in report.lazy if lazy.policy == "prompt echo"]
    assert echo.golds == len(rows)
    assert echo.reward == 0
