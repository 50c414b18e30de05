"""What can be read off completions without a model: repetition, likeness, markers, trends.

Pure functions on texts and token ids. Each gives NaN where there is nothing to measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def repeated_frac(token_ids: Sequence[int]) -> float:
    """The share of a completion's token 4-grams that occurred earlier in it; NaN below 4 tokens.

    Near 0 for ordinary text, towards 1 for a loop.
    """
    total = len(token_ids) - 3
    found = set(zip(*(token_ids[i:] for i in range(4)), strict=False))
    return 1 - len(found) / total if total > 0 else math.nan


def similarity(completions: Sequence[Sequence[int]]) -> float:
    """Mean Jaccard similarity, over all pairs, of the sets of token 3-grams: 1 when all agree.

    A completion of fewer than 3 tokens is left out; NaN with fewer than two left. Token ids are
    below 2**21, so that a 3-gram is one 64-bit number: tuples would take ten times as long.
    """
    rows = [_trigram_codes(ids) for ids in completions if len(ids) >= 3]
    if len(rows) < 2:
        return math.nan
    columns, column = np.unique(np.concatenate(rows), return_inverse=True)
    has = np.zeros((len(rows), len(columns)), dtype=np.float32)
    has[np.repeat(np.arange(len(rows)), [len(row) for row in rows]), column] = 1
    # All pairs in one product; counts are exact in float32 up to 2**24.
    common = (has @ has.T).astype(float)
    size = common.diagonal()
    upper = np.triu_indices(len(rows), 1)
    return float((common / (size[:, None] + size[None] - common))[upper].mean())


def _trigram_codes(token_ids: Sequence[int]) -> NDArray[np.int64]:
    ids = np.asarray(token_ids, dtype=np.int64)
    return (ids[:-2] << 42) | (ids[1:-1] << 21) | ids[2:]


def distinct_frac(answers: Sequence[str | None]) -> float:
    """Different parsed answers, as a share of the answers; None is no answer; NaN without any."""
    given = [answer for answer in answers if answer is not None]
    return len(set(given)) / len(given) if given else math.nan


def has_marker(text: str, markers: Sequence[str]) -> bool:
    """Whether the lower-cased text holds one of the markers, also inside a word."""
    lowered = text.lower()
    return any(marker.lower() in lowered for marker in markers)


def marked_frac(texts: Sequence[str], markers: Sequence[str]) -> float:
    """The share of texts with a marker; NaN without texts or without markers."""
    if not texts or not markers:
        return math.nan
    return sum(has_marker(text, markers) for text in texts) / len(texts)


def slope(values: Sequence[float | None]) -> float:
    """Least-squares slope per position of evenly spaced values; None is a gap; NaN below three."""
    points = [(x, y) for x, y in enumerate(values) if y is not None]
    if len(points) < 3:
        return math.nan
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return rise / sum((x - mean_x) ** 2 for x, _ in points)
