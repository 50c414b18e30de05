"""Expected groups without contrast: unbiased where it can be, and said where it cannot."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from grpo_cli.difficulty import (
    BINS,
    Every,
    PromptRate,
    beta_binomial,
    by_level,
    expected_zero_variance,
    histogram,
    same_score,
    sample_prompts,
)
from grpo_cli.recipe.schema import ArithmeticTask
from grpo_cli.tasks import load_task


def rate(*scores: float, level: int | None = None) -> PromptRate:
    return PromptRate("p", level, scores, 0, 0, 1.0)


@pytest.mark.parametrize("scores", [(1, 0, 1, 1, 0), (1, 1, 1, 1), (0.5, 0.5, 0, 1, 1, 1)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_same_score_is_the_share_of_subsets(scores: tuple[float, ...], size: int) -> None:
    subsets = list(itertools.combinations(scores, size))
    want = sum(len(set(subset)) == 1 for subset in subsets) / len(subsets)
    assert same_score(scores, size) == pytest.approx(want)


def test_too_few_samples_are_not_a_number() -> None:
    assert math.isnan(same_score((1, 0), 3))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_same_score_is_unbiased(p: float) -> None:
    """Its expectation over K = 8 samples is p^G + (1-p)^G exactly, unlike the plug-in's."""
    size, k = 4, 8
    weights = [math.comb(k, c) * p**c * (1 - p) ** (k - c) for c in range(k + 1)]
    mean = sum(w * same_score([1] * c + [0] * (k - c), size) for c, w in enumerate(weights))
    assert mean == pytest.approx(p**size + (1 - p) ** size)
    plug_in = sum(w * ((c / k) ** size + (1 - c / k) ** size) for c, w in enumerate(weights))
    assert plug_in > mean * 1.02


def test_shares_add_up() -> None:
    found = expected_zero_variance([rate(1, 1, 1), rate(0, 0, 0), rate(1, 0, 1), rate()], 2)
    assert found.unbiased
    assert found.share.n == 3
    assert found.share.mean == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert (found.all_right, found.all_wrong) == (
        pytest.approx((1 + 1 / 3) / 3),
        pytest.approx(1 / 3),
    )


def test_beyond_the_samples_a_fit_says_so_and_comes_close() -> None:
    rng = np.random.default_rng(0)
    p_P = rng.beta(0.5, 1.0, size=4000)
    rates = [rate(*(rng.random(8) < p).astype(float)) for p in p_P]
    found = expected_zero_variance(rates, 16)
    assert not found.unbiased
    assert math.isnan(found.share.low)
    assert found.share.mean == pytest.approx(np.mean(p_P**16 + (1 - p_P) ** 16), abs=0.02)
    # Where both can say, the fit agrees with the unbiased estimate.
    exact = expected_zero_variance(rates, 8)
    right, wrong = beta_binomial([(sum(r.scores), 8) for r in rates], 8)  # type: ignore[misc]
    assert right + wrong == pytest.approx(exact.share.mean, abs=0.02)


@pytest.mark.parametrize(
    ("counts", "right", "wrong"),
    [
        ([(8, 8), (0, 8)], 0.5, 0.5),  # only 0 and 1
        ([(4, 8), (4, 8)], 0.5**16, 0.5**16),  # less spread than chance: all rates equal
        ([(8, 8)], 1.0, 0.0),
        ([(0, 8)], 0.0, 1.0),
    ],
)
def test_the_fit_at_its_edges(counts: list[tuple[int, int]], right: float, wrong: float) -> None:
    assert beta_binomial(counts, 16) == (pytest.approx(right), pytest.approx(wrong))


def test_histogram_and_levels() -> None:
    rates = [
        rate(0, 0),
        rate(0, 1),
        rate(1, 1, 1, 0),
        rate(1, 1, level=2),
        rate(),
        rate(1, 0, 0, 0, 0),
    ]
    counts = histogram(rates)
    assert len(counts) == len(BINS)
    assert counts == [1, 1, 0, 1, 1, 1]
    assert {level: len(group) for level, group in by_level(rates).items()} == {2: 1}


def test_the_sample_is_distinct_fixed_and_a_prefix() -> None:
    task = load_task(ArithmeticTask())
    prompts = sample_prompts(task, 50)
    assert len({p.id for p in prompts}) == 50
    assert sample_prompts(task, 10) == prompts[:10]


def test_progress_tells_the_end() -> None:
    told: list[str] = []
    tell = Every(1000, told.append)
    tell(1, 3)
    tell(3, 3)
    assert told == ["3 of 3 prompts, 0 s"]
