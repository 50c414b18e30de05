"""One suite over every objective. A new file in `objective/kinds/` needs no edit here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cli.objective.base import Objective
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.types import Metric, Tokens

every_kind = pytest.mark.parametrize("kind", objective_kinds(), ids=lambda k: k.__name__)

lengths_and_seed = given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 10_000)
)


def make(lengths: list[int], seed: int, spread: float = 0.3) -> Tokens:
    """Random tokens; `logp_T` is a leaf with gradient."""
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int) -> torch.Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)

    num_tokens = sum(lengths)
    logp_T = -normal(num_tokens).abs() - 0.1
    return Tokens(
        logp_T=logp_T.requires_grad_(),
        old_logp_T=logp_T.detach() - spread * normal(num_tokens),
        adv_N=normal(len(lengths)),
        seq_T=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        length_N=torch.tensor(lengths),
    )


def replaced(x: Tokens, **changes: torch.Tensor) -> Tokens:
    fields = {name: getattr(x, name) for name in Tokens.__slots__}
    return Tokens(**{**fields, **changes})


def gradient(objective: Objective, x: Tokens, weight_N: torch.Tensor) -> torch.Tensor:
    ell_T = objective(x).ell_T
    (grad_T,) = torch.autograd.grad((ell_T * weight_N[x.seq_T]).sum(), x.logp_T)
    return grad_T


@every_kind
@lengths_and_seed
@settings(deadline=None, max_examples=25)
def test_on_policy_gradient_is_minus_advantage(
    kind: type[Objective], lengths: list[int], seed: int
) -> None:
    x = make(lengths, seed)
    x = replaced(x, old_logp_T=x.logp_T.detach())
    weight_N = torch.rand(len(lengths), dtype=torch.float64)
    want = -(x.adv_N * weight_N)[x.seq_T]
    assert torch.allclose(gradient(kind(), x, weight_N), want, atol=1e-12)


@every_kind
@lengths_and_seed
@settings(deadline=None, max_examples=25)
def test_micro_batches_change_nothing(kind: type[Objective], lengths: list[int], seed: int) -> None:
    x, objective = make(lengths, seed), kind()
    whole = objective(x)
    for size in (1, 2):
        parts, merged = [], {}
        for start in range(0, len(lengths), size):
            here_T = (x.seq_T >= start) & (x.seq_T < start + size)
            part = objective(
                Tokens(
                    logp_T=x.logp_T[here_T],
                    old_logp_T=x.old_logp_T[here_T],
                    adv_N=x.adv_N[start : start + size],
                    seq_T=x.seq_T[here_T] - start,
                    length_N=x.length_N[start : start + size],
                )
            )
            parts.append(part.ell_T)
            for name, metric in part.metrics.items():
                merged[name] = merged.get(name, Metric(0, 0)) + metric
        assert torch.allclose(torch.cat(parts), whole.ell_T, atol=1e-12)
        assert merged.keys() == whole.metrics.keys()
        for name, metric in whole.metrics.items():
            assert merged[name].count == metric.count
            assert merged[name].total == pytest.approx(metric.total, abs=1e-12)


@every_kind
@lengths_and_seed
@settings(deadline=None, max_examples=25)
def test_order_of_sequences_changes_nothing(
    kind: type[Objective], lengths: list[int], seed: int
) -> None:
    x, objective = make(lengths, seed), kind()
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    place_T = torch.cat([(x.seq_T == n).nonzero()[:, 0] for n in order])
    mixed = Tokens(
        logp_T=x.logp_T[place_T],
        old_logp_T=x.old_logp_T[place_T],
        adv_N=x.adv_N[order],
        seq_T=torch.arange(len(order)).repeat_interleave(x.length_N[order]),
        length_N=x.length_N[order],
    )
    assert torch.allclose(objective(mixed).ell_T, objective(x).ell_T[place_T], atol=1e-12)


@every_kind
def test_no_advantage_no_gradient(kind: type[Objective]) -> None:
    x = make([3, 2], 0)
    x = replaced(x, adv_N=torch.zeros(2, dtype=torch.float64))
    assert not gradient(kind(), x, torch.ones(2, dtype=torch.float64)).any()


@every_kind
@pytest.mark.parametrize("log_ratio", [50.0, -50.0])
def test_finite_at_extreme_ratios(kind: type[Objective], log_ratio: float) -> None:
    x = make([3, 2], 1)
    x = replaced(x, old_logp_T=x.logp_T.detach() - log_ratio)
    assert torch.isfinite(kind()(x).ell_T).all()
    assert torch.isfinite(gradient(kind(), x, torch.ones(2, dtype=torch.float64))).all()


@every_kind
def test_gradient_is_the_derivative(kind: type[Objective]) -> None:
    x = make([3, 2, 4], 5, spread=0.1)
    objective = kind()
    assert torch.autograd.gradcheck(
        lambda logp_T: objective(replaced(x, logp_T=logp_T)).ell_T, x.logp_T
    )
