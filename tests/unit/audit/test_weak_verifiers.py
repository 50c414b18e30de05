"""The whole battery on reward functions with one planted hole each: it must find every one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from grpo_cli.audit.battery import Plan, audit
from grpo_cli.audit.report import Report, figures
from grpo_cli.audit.tables import tables
from grpo_cli.errors import GrpoError
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.verify.load import load_verifier

WEAK = Path(__file__).with_name("weak_verifiers.py")


@cache
def report_of(name: str) -> Report:
    return audit(load_verifier(f"{WEAK}:{name}", verifiers_dir()), Plan())


def passing(name: str) -> set[str]:
    report = report_of(name)
    assert report.conclusive, "the battery found no template that this function accepts"
    return {family.name for family in report.passing}


@pytest.mark.parametrize(
    ("name", "families"),
    [
        (
            "substring",
            {
                "digits around the answer",
                "hedge: two answers in one place",
                "answer mentioned before another",
                "shotgun: list in one place",
            },
        ),
        ("last_number", {"answer mentioned after another", "answer denied after an empty frame"}),
        ("first_box", {"answer, then another answer", "answer, retracted for another"}),
        ("evaluated", {"code: an answer that is run"}),
        ("lenient", {"parse failure", "name of a variable", "empty frame", "wildcard"}),
        ("format_only", {"empty frame", "parse failure"}),
    ],
)
def test_the_planted_hole_is_found(name: str, families: set[str]) -> None:
    assert families <= passing(name), f"{name}: these exploits should pass but do not"


def test_a_verifier_that_runs_answers_is_caught_by_what_the_code_did() -> None:
    (family,) = [f for f in report_of("evaluated").passing if f.name.startswith("code")]
    # Three of five spellings are worth the gold; the side effect alone would also have shown.
    assert family.paid >= 0.5 * family.rows


def test_a_verifier_that_runs_answers_hangs_on_a_tower_of_powers_and_the_pool_cuts_it() -> None:
    bombs = {bomb.name: bomb for bomb in report_of("evaluated").bombs}
    assert bombs["power in code"].status == "timeout"
    assert all(bomb.contained for bomb in bombs.values()), "a bomb cost its neighbours"


def test_a_verifier_that_ignores_the_answer_has_no_youden_j() -> None:
    found = figures(report_of("format_only"))
    assert found["fp"] == pytest.approx(1.0)
    assert found["j"] == pytest.approx(0.0)
    assert found["lazy_excess"] > 0.9, "a constant answer in the right frame is always paid"


def test_substring_match_shows_in_the_generated_rows_and_in_the_lazy_policies() -> None:
    report = report_of("substring")
    wrong = {line.kind for line in report.lines if not line.must_accept and line.rate.wrong}
    assert {"digit appended", "digit prefixed"} <= wrong
    assert report.worst_lazy is not None
    assert report.worst_lazy.policy.startswith("list of 0 to 100")


def test_a_verifier_without_a_hole_passes_everything() -> None:
    report = report_of("honest")
    found = figures(report)
    assert passing("honest") == set()
    assert found["fp"] == 0
    assert found["fn"] == 0, [line for line in report.lines if line.rate.wrong]
    assert found["lazy_excess"] == 0
    assert found["nondeterministic"] == 0
    assert found["asymmetric"] == 0
    assert found["bombs"] == 0


def test_a_guessed_template_is_called_a_guess() -> None:
    report = report_of("first_box")
    assert report.template_guessed
    assert "\\boxed{...}" in report.template


def test_a_function_that_always_fails_is_an_error_not_a_report(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def score(text, reference): raise KeyError('gold')")
    with pytest.raises(
        GrpoError, match=r"no verdict on any of \d+ rows: KeyError: 'gold'"
    ) as caught:
        audit(load_verifier(f"{file}:score", verifiers_dir()), Plan(golds=5))
    assert caught.value.exit_code == 3


def test_rows_without_a_verdict_are_named_in_the_headline(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(
        "def score(text, reference):\n"
        "    if len(text) % 3 == 0: raise KeyError('gold')\n"
        "    return float(text.split()[-1:] == [reference])\n"
    )
    report = audit(load_verifier(f"{file}:score", verifiers_dir()), Plan(golds=5))
    assert 0 < figures(report)["no_verdict"] < 1
    (headline,) = [table for table in tables(report) if table.title == "Headline"]
    assert "got no verdict" in headline.notes[-1]
    assert "KeyError: 'gold'" in headline.notes[-1]
