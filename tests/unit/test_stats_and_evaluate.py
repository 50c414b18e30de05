"""Intervals, pass@k and the summary of held-out rows, against closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from grpo_cli.evaluate import accuracy, paired_difference, summarise
from grpo_cli.stats import mean_interval, pass_at_k
from grpo_cli.types import EvalRow, Finish, Status


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=40).filter(lambda x: np.std(x) > 1e-3))
def test_mean_interval_is_scipys_t_interval(values: list[float]) -> None:
    got = mean_interval(values)
    low, high = scipy_stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=scipy_stats.sem(values)
    )
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-10, abs=1e-10)


def test_mean_interval_of_little() -> None:
    assert math.isnan(mean_interval([]).mean)
    one = mean_interval([0.3])
    assert one.mean == 0.3
    assert math.isnan(one.low)
    assert mean_interval([1.0, math.nan, 1.0]).n == 2


def test_interval_excludes_zero() -> None:
    assert mean_interval([1.0, 1.1, 0.9]).excludes_zero
    assert not mean_interval([1.0, -1.0, 0.1]).excludes_zero


@given(st.integers(1, 12), st.data())
def test_pass_at_k_counts_subsets(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    want = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(n, c, k) == pytest.approx(want, abs=1e-12)


def test_pass_at_k_needs_k_samples() -> None:
    assert math.isnan(pass_at_k(3, 1, 4))


def row(question: str, sample: int, score: float, status: Status = Status.OK, **more) -> EvalRow:
    fields = {"num_tokens": 10, "finish": Finish.STOP, "text": "", **more}
    return EvalRow(question, question, sample, score, status, **fields)


def test_accuracy_averages_samples_before_questions() -> None:
    rows = [row("a", 0, 1), row("a", 1, 1), row("b", 0, 0), row("b", 1, 1), row("c", 0, 0)]
    assert accuracy(rows).mean == pytest.approx((1 + 0.5 + 0) / 3)
    assert accuracy(rows).n == 3


def test_missing_verdicts_are_left_out_and_counted() -> None:
    rows = [row("a", 0, 1), row("a", 1, math.nan, Status.ERROR), row("b", 0, 0), row("b", 1, 0)]
    got = summarise(rows)
    assert got["eval/accuracy"] == 0.5
    assert got["eval/verifier_error_frac"] == 0.25


def test_summary() -> None:
    rows = [
        row("a", 0, 1, num_tokens=4),
        row("a", 1, 0, Status.UNPARSED, num_tokens=20, finish=Finish.LENGTH),
    ]
    got = summarise(rows)
    assert got["eval/pass_at_2"] == 1
    assert got["eval/mean_length"] == 12
    assert got["eval/truncated_frac"] == got["eval/unparsed_frac"] == 0.5


def test_paired_difference_pairs_by_question() -> None:
    before = [row("a", 0, 0), row("b", 0, 1), row("c", 0, 0)]
    after = [row("c", 0, 1), row("b", 0, 1), row("a", 0, 1)]
    got = paired_difference(before, after)
    assert got.mean == pytest.approx(2 / 3)
    assert got.n == 3
