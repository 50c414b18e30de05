"""Rates, the headline, the gate and the comparison: the arithmetic of the audit."""

from __future__ import annotations

import math

import pytest

from grpo_cli.audit.battery import headline
from grpo_cli.audit.gate import apply_gate, parse_gate
from grpo_cli.audit.rates import Rate, error_rate, youden
from grpo_cli.audit.rows import Judged, Row, Stratum
from grpo_cli.audit.tables import shown_rate
from grpo_cli.audit.versus import sign_test, versus
from grpo_cli.errors import GrpoError
from grpo_cli.types import Status, Verdict


def judged(
    problem: str,
    paid: bool,
    accept: bool = True,
    stratum: Stratum = Stratum.LABELLED,
    weight: float = 1.0,
    policy: bool = False,
) -> Judged:
    row = Row(
        f"{problem}/row", problem, "kind", "text", "1", accept, stratum, policy, weight=weight
    )
    return Judged(row, Verdict(float(paid), Status.OK))


def test_no_error_gives_the_exact_bound() -> None:
    rate = error_rate([judged(f"q{i}", paid=False, accept=False) for i in range(63)])
    assert (rate.wrong, rate.rows, rate.problems) == (0, 63, 63)
    assert rate.high == pytest.approx(0.0569, abs=1e-4)  # Clopper-Pearson of 0 in 63
    assert shown_rate(rate) == "<= 5.7 %"


def test_rows_of_one_problem_are_one_observation() -> None:
    # 16 wrong rows of 800 are two problems of 100 (8 samples each).
    rows = [judged(f"q{i}", paid=i >= 2) for i in range(100) for _ in range(8)]
    rate = error_rate(rows)
    assert (rate.wrong, rate.rows, rate.problems) == (16, 800, 100)
    assert rate.value == pytest.approx(0.02)
    assert (rate.low, rate.high) == (
        pytest.approx(0.0055, abs=1e-4),
        pytest.approx(0.070, abs=1e-3),
    )


def test_a_problem_counts_once_however_many_rows_it_has() -> None:
    rows = [judged("many", paid=False)] * 9 + [judged("one", paid=True)]
    assert error_rate(rows).value == pytest.approx(0.5)


def test_weights_undo_the_draw_of_a_sheet() -> None:
    # 10 of 1,000 accepted rows and all 10 rejected ones were drawn; half of the rejected are right.
    rows = [judged(f"a{i}", paid=True, weight=100.0) for i in range(10)]
    rows += [judged(f"r{i}", paid=False, weight=1.0) for i in range(5)]
    rate = error_rate(rows)
    assert rate.value == pytest.approx(5 / 1005)
    assert rate.high > 0.2, "ten heavy rows must not look like fifteen equal ones"


def test_a_missing_verdict_on_a_right_answer_is_a_false_negative() -> None:
    lost = Judged(judged("q", True).row, Verdict(math.nan, Status.TIMEOUT))
    assert lost.wrong
    assert not Judged(judged("q", False, accept=False).row, Verdict(math.nan, Status.ERROR)).wrong


def test_nothing_measured_is_nan_and_not_zero() -> None:
    rate = error_rate([])
    assert math.isnan(rate.value)
    assert math.isnan(rate.high)
    assert not rate.measured


def test_youden_by_hand() -> None:
    fn = Rate(0.02, 0.01, 0.05, 2, 100, 100)
    fp = Rate(0.0, 0.0, 0.04, 0, 90, 90)
    j = youden(fn, fp)
    assert j.value == pytest.approx(0.98)
    assert j.low == pytest.approx(0.98 - math.hypot(0.03, 0.04))
    assert j.high == pytest.approx(0.98 + math.hypot(0.01, 0.0))


def test_the_worst_stratum_gives_the_headline_fp() -> None:
    rows = [judged(f"l{i}", False, accept=False) for i in range(100)]
    rows += [judged(f"g{i}", i < 20, accept=False, stratum=Stratum.GENERATED) for i in range(100)]
    head = headline(rows)
    assert head.fp_from == "generated"
    assert head.fp.value == pytest.approx(0.2), "a clean labelled set must not dilute a hole"


def test_enough_labelled_completions_alone_give_the_headline_fn() -> None:
    generated = [judged(f"g{i}", False, stratum=Stratum.GENERATED) for i in range(100)]
    few = [judged(f"l{i}", True) for i in range(29)]
    assert headline(generated + few).fn_from == "labelled + generated"
    many = [judged(f"l{i}", True) for i in range(30)]
    assert headline(generated + many).fn_from == "labelled"
    assert headline(generated + many).fn.value == 0


def test_policy_rows_are_never_errors() -> None:
    head = headline([judged("q", False, policy=True), judged("p", True)])
    assert head.fn.rows == 1


def test_a_gate_reads_terms_and_percents() -> None:
    terms = parse_gate("fn<=0.05, fp_upper<=2% and j_lower>=0.85")
    assert [(t.figure, t.sign, t.bound) for t in terms] == [
        ("fn", "<=", 0.05),
        ("fp_upper", "<=", 0.02),
        ("j_lower", ">=", 0.85),
    ]
    results = apply_gate(terms, {"fn": 0.05, "fp_upper": 0.03, "j_lower": math.nan})
    assert [result.holds for result in results] == [True, False, False]
    assert str(results[2]) == "FAIL j_lower>=0.85 (not measured)"


@pytest.mark.parametrize("text", ["", "fn", "fn<=", "fn<=much", "fn<=nan", "fn=<0.05", "fn<=0.1;"])
def test_a_gate_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(GrpoError) as caught:
        parse_gate(text)
    assert caught.value.problems[0].code == "GR211"


def test_an_unknown_figure_is_refused_with_the_names() -> None:
    with pytest.raises(GrpoError) as caught:
        parse_gate("fp_uper<=0.02")
    hint = caught.value.problems[0].hint or ""
    assert "fp_upper" in hint
    assert "j_lower" in hint


def test_sign_test_by_hand() -> None:
    assert sign_test(8, 1) == pytest.approx(2 * (1 + 9) / 512)
    assert sign_test(0, 0) == 1
    assert sign_test(5, 5) == 1


def test_comparison_votes_by_problem() -> None:
    this = [judged("a", True), judged("a", True), judged("b", False), judged("c", True)]
    other = [judged("a", False), judged("a", False), judged("b", True), judged("c", True)]
    result = versus(this, other, "other")
    assert (result.rows, result.only_this, result.only_other) == (4, 2, 1)
    assert (result.problems_this, result.problems_other, result.p) == (1, 1, 1.0)
    assert [d.right for d in result.disagreements] == [True, True, False]
