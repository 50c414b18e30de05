"""The mismatch panel against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_cli.mismatch import mismatch_scalars
from grpo_cli.types import Batch


def batch(*sampler: tuple[float, ...]) -> Batch:
    count = len(sampler)
    ids = tuple(tuple(range(len(logp))) for logp in sampler)
    zeros = torch.zeros(count)
    return Batch(((1,),) * count, ids, sampler, zeros, zeros, zeros, zeros)


def test_known_values() -> None:
    found = mismatch_scalars(
        {0: torch.tensor([-1.0, -1.0]), 2: torch.tensor([-0.5, -3.0, -1.0])},
        batch((-1.0, -1.5), (-9.0,), (-0.5, -2.0, -1.0)),
    )
    # log rho: [0, .5] and [0, -1, 0]; sequence 1 did not train.
    assert found["mismatch/logp_abs_mean"] == pytest.approx(0.3)
    assert found["mismatch/logp_abs_max"] == pytest.approx(1.0)
    assert found["mismatch/logp_abs_p99"] == pytest.approx(1.0)
    assert found["mismatch/k1"] == pytest.approx(0.1)
    k3 = (math.exp(0.5) - 1 - 0.5 + math.exp(-1) - 1 + 1) / 5
    assert found["mismatch/k3"] == pytest.approx(k3)
    assert found["mismatch/rho_beyond_2_frac"] == pytest.approx(0.2)
    assert found["mismatch/worst_seq_log_rho"] == pytest.approx(-1.0)
    assert found["mismatch/worst_seq_length"] == 3


def test_nothing_trained_is_nothing_measured() -> None:
    assert mismatch_scalars({}, batch((-1.0,))) == {}
