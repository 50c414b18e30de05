"""Repetition, likeness, markers and trends against values worked out by hand."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest

from grpo_cli.completion_signals import (
    distinct_frac,
    has_marker,
    marked_frac,
    repeated_frac,
    similarity,
    slope,
)


def test_repeated_four_grams_are_counted_from_their_second_time_on() -> None:
    # 1234 2341 3412 4123 1234 2341: two of six occurred earlier.
    assert repeated_frac([1, 2, 3, 4, 1, 2, 3, 4, 1]) == pytest.approx(2 / 6)
    assert repeated_frac([7] * 103) == pytest.approx(99 / 100)
    assert repeated_frac([1, 2, 3, 4]) == 0
    assert math.isnan(repeated_frac([1, 2, 3]))


def test_similarity_is_the_mean_jaccard_over_pairs() -> None:
    # {123, 234}, {123, 235} and {789}: 1/3, 0 and 0.
    assert similarity([[1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9]]) == pytest.approx(1 / 9)
    assert similarity([[1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3]]) == 1


def test_similarity_leaves_out_what_has_no_three_gram() -> None:
    assert similarity([[1, 2], [1, 2, 3], [1, 2, 3], []]) == 1
    assert math.isnan(similarity([[1, 2], [1, 2, 3]]))
    assert math.isnan(similarity([]))


def test_similarity_tells_three_grams_of_large_ids_apart() -> None:
    # Packed too tightly these would be the same number.
    top = 2**21 - 1
    assert similarity([[0, top, 0], [0, 0, top]]) == 0
    assert similarity([[top, top, top], [top, top, top]]) == 1


def test_similarity_agrees_with_plain_sets() -> None:
    rng = random.Random(0)
    texts = [[rng.randrange(4) for _ in range(rng.randrange(3, 40))] for _ in range(9)]
    sets = [{tuple(t[i : i + 3]) for i in range(len(t) - 2)} for t in texts]
    pairs = [len(a & b) / len(a | b) for a, b in combinations(sets, 2)]
    assert similarity(texts) == pytest.approx(sum(pairs) / len(pairs))


def test_answers_that_were_not_parsed_do_not_count_as_answers() -> None:
    assert distinct_frac(["4", "4", None, "5", None]) == pytest.approx(2 / 3)
    assert math.isnan(distinct_frac([None, None]))


def test_markers_are_found_in_any_case_and_nothing_is_found_without_markers() -> None:
    assert has_marker("So 4. WAIT, no", ("wait",))
    assert has_marker("On Second Thought", ("On second thought",))
    assert not has_marker("so 4", ("wait", "hmm"))
    assert marked_frac(["Hmm", "4"], ("hmm",)) == 0.5
    assert math.isnan(marked_frac([], ("hmm",)))
    assert math.isnan(marked_frac(["hmm"], ()))


def test_the_slope_keeps_the_distance_over_gaps() -> None:
    assert slope([1, 3, 5]) == pytest.approx(2)
    # Through (0, 1), (2, 5), (3, 7): without its gap the middle would bend.
    assert slope([1, None, 5, 7]) == pytest.approx(2)
    assert slope([4, 4, 4, 4]) == 0
    assert math.isnan(slope([1, None, 5]))
    assert math.isnan(slope([]))
