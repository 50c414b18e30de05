"""Properties of the objectives that hold for any numbers, and hand numbers of their parts.

The numbers above the tests are those of the algorithm reference's property list, Section 15.1;
property 2, padding, is in tests/golden.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from grpo_cli.objective.advantage import Advantage, advantages
from grpo_cli.objective.aggregate import Aggregate, weights
from grpo_cli.objective.correction import (
    Correction,
    CorrectionSettings,
    correct,
    effective_sample_size,
)
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.objective.kl import Kl, kl_estimate
from grpo_cli.objective.loss import Parts, weighted_loss
from grpo_cli.types import Metric, Tokens

KINDS = {kind.model_fields["kind"].default: kind for kind in objective_kinds()}
AGGREGATES = ["seq_mean", "token_mean", "constant", "seq_sum", "prompt_mean"]
CORRECTIONS = ["none", "tis_token", "tis_seq", "mis_token", "mis_seq", "icepop", "geo_rs", "opsm"]

every_kind = pytest.mark.parametrize("kind", KINDS)
every_aggregate = pytest.mark.parametrize("aggregate", AGGREGATES)

# Two prompts of two to three samples each.
batches = given(
    lengths=st.lists(st.integers(1, 6), min_size=4, max_size=6), seed=st.integers(0, 10_000)
)
few = settings(deadline=None, max_examples=20)


def obj(kind: str, **fields: Any) -> Any:
    """An objective; a setting without a default gets 0.5."""
    needed = {k: 0.5 for k, spec in KINDS[kind].model_fields.items() if spec.is_required()}
    return KINDS[kind](**{**needed, **fields})


def agg(kind: str, **fields: Any) -> Any:
    return TypeAdapter(Aggregate).validate_python({"kind": kind, **fields})


def corr(kind: str, **fields: Any) -> Any:
    return TypeAdapter(CorrectionSettings).validate_python({"kind": kind, **fields})


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def make(lengths: list[int], seed: int, spread: float = 0.3) -> Tokens:
    """Random tokens; `logp_T` is a leaf with gradient."""
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int) -> Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64)

    logp_T = -normal(sum(lengths)).abs() - 0.1
    return Tokens(
        logp_T=logp_T.requires_grad_(),
        old_logp_T=logp_T.detach() - spread * normal(sum(lengths)),
        adv_N=normal(len(lengths)),
        seq_T=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        length_N=torch.tensor(lengths),
    )


def replaced(x: Tokens, **changes: Tensor) -> Tokens:
    fields = {name: getattr(x, name) for name in Tokens.__slots__}
    return Tokens(**{**fields, **changes})


def on_policy(x: Tokens) -> Tokens:
    return replaced(x, old_logp_T=x.logp_T.detach())


def groups_of(x: Tokens) -> Tensor:
    """The first two sequences belong to prompt 0, the rest to prompt 1."""
    return (torch.arange(len(x.length_N)) >= 2).long()


def loss_and_grad(objective: Any, x: Tokens, weight_N: Tensor, **more: Any) -> tuple[float, Tensor]:
    loss, _ = weighted_loss(Parts(objective), x, weight_N=weight_N, **more)
    (grad_T,) = torch.autograd.grad(loss, x.logp_T)
    return loss.item(), grad_T


def same(a: tuple[float, Tensor], b: tuple[float, Tensor], tol: float = 1e-12) -> bool:
    return abs(a[0] - b[0]) <= tol and torch.allclose(a[1], b[1], rtol=0, atol=tol)


def seq_weights(x: Tokens, aggregate: str = "seq_mean") -> Tensor:
    return weights(x.length_N, agg(aggregate), 9, prompt_N=groups_of(x))


# 1
@every_kind
@every_aggregate
@batches
@few
def test_on_policy_gradient_is_minus_weighted_advantage(
    kind: str, aggregate: str, lengths: list[int], seed: int
) -> None:
    x = on_policy(make(lengths, seed))
    weight_N = seq_weights(x, aggregate)
    _, grad_T = loss_and_grad(obj(kind), x, weight_N)
    assert torch.allclose(grad_T, -(weight_N * x.adv_N)[x.seq_T], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["clip", "gspo", "gspo_token", "gmpo", "drpo"])
@every_aggregate
@batches
@few
def test_on_policy_loss_of_a_ratio_objective_is_minus_the_aggregated_advantage(
    kind: str, aggregate: str, lengths: list[int], seed: int
) -> None:
    x = on_policy(make(lengths, seed))
    weight_N = seq_weights(x, aggregate)
    loss, _ = loss_and_grad(obj(kind), x, weight_N)
    assert loss == pytest.approx(-(weight_N * x.adv_N * x.length_N).sum().item(), abs=1e-12)


# 3
@batches
@few
def test_gspo_is_gspo_token_when_the_advantage_is_constant_in_a_sequence(
    lengths: list[int], seed: int
) -> None:
    for spread, low, high in ((1e-3, 3e-4, 4e-4), (0.3, 0.2, 0.28)):
        x = make(lengths, seed, spread)
        pair = [
            loss_and_grad(obj(kind, low=low, high=high), x, seq_weights(x))
            for kind in ("gspo", "gspo_token")
        ]
        assert same(*pair)


# 4
@batches
@few
def test_gmpo_with_huge_bounds_is_unclipped_gspo(lengths: list[int], seed: int) -> None:
    x = make(lengths, seed)
    gmpo = loss_and_grad(obj("gmpo", low=1e6, high=1e6), x, seq_weights(x))
    assert same(gmpo, loss_and_grad(obj("gspo", low=1.0, high=1e6), x, seq_weights(x)))


# 5
@batches
@few
def test_cispo_whose_cap_is_never_reached_on_policy_is_reinforce(
    lengths: list[int], seed: int
) -> None:
    x = on_policy(make(lengths, seed))
    cispo = loss_and_grad(obj("cispo", ratio_max=1.001), x, seq_weights(x))
    assert same(cispo, loss_and_grad(obj("reinforce"), x, seq_weights(x)))


@batches
@few
def test_cispo_below_its_cap_is_reinforce_weighted_by_the_ratio(
    lengths: list[int], seed: int
) -> None:
    x = make(lengths, seed)
    ratio_T = (x.logp_T.detach() - x.old_logp_T).exp()
    cap = 1 + ratio_T.max().item()
    _, grad_T = loss_and_grad(obj("cispo", ratio_max=cap), x, seq_weights(x))
    _, plain_T = loss_and_grad(obj("reinforce"), x, seq_weights(x))
    assert torch.allclose(grad_T, ratio_T * plain_T, rtol=0, atol=1e-12)


def test_cispo_counts_capped_and_raised_ratios_and_bounds_their_weight() -> None:
    logp_T = f64(0.1, 0.9, 2, 6).log().requires_grad_()
    x = Tokens(logp_T, f64(0, 0, 0, 0), f64(1), torch.zeros(4).long(), torch.tensor([4]))
    for ratio_min, raised, weight in ((None, 0, 0.1), (0.5, 1, 0.5)):
        objective = obj("cispo", ratio_min=ratio_min, ratio_max=5.0)
        _, grad_T = loss_and_grad(objective, x, f64(1))
        assert grad_T.tolist() == pytest.approx([-weight, -0.9, -2, -5])
        metrics = objective(x).metrics
        assert metrics["ratio/clipped_low_frac"] == Metric(raised, 4)
        assert metrics["ratio/clipped_high_frac"] == Metric(1, 4)


@pytest.mark.parametrize("kind", CORRECTIONS)
@pytest.mark.parametrize("bypass", [False, True])
def test_every_correction_weight_is_1_when_the_three_policies_are_equal(
    kind: str, bypass: bool
) -> None:
    if kind == "geo_rs" and bypass:
        with pytest.raises(ValidationError):
            corr(kind, bypass=True)
        return
    x = make([3, 2, 4], 3)
    logp_T = x.logp_T.detach()
    out = correct(corr(kind, bypass=bypass), logp_T, logp_T, logp_T, x.adv_N, x.seq_T, 3)
    assert torch.equal(out.weight_T, torch.ones_like(logp_T))
    assert not out.rejected_N.any()
    assert out.metrics["correction/modified_frac"].value == 0


# 6
@pytest.mark.parametrize("setting", ["dual_clip", "delta"])
@batches
@few
def test_dual_and_two_sided_clip_with_a_huge_bound_are_ppo(
    setting: str, lengths: list[int], seed: int
) -> None:
    x = make(lengths, seed, spread=1.0)
    bounded = loss_and_grad(obj("clip", **{setting: 1e9}), x, seq_weights(x))
    assert same(bounded, loss_and_grad(obj("clip"), x, seq_weights(x)))


def test_dual_and_two_sided_clip_stop_only_negative_tokens_above_their_bound() -> None:
    ratio_T = f64(2, 5, 2, 5)
    x = Tokens(
        ratio_T.log().requires_grad_(), torch.zeros(4).double(), f64(1, -1),
        torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]),
    )  # fmt: skip
    # PPO: -min(r A, clip(r) A) = -1.2, -1.2 for A = 1 and 2, 5 for A = -1.
    for fields, last in (({}, 5), ({"dual_clip": 3.0}, 3), ({"delta": 4.0}, 4)):
        out = obj("clip", low=0.2, high=0.2, **fields)(x)
        assert out.ell_T.tolist() == pytest.approx([-1.2, -1.2, 2, last])
        (grad_T,) = torch.autograd.grad(out.ell_T.sum(), x.logp_T)
        assert grad_T.tolist() == pytest.approx([0, 0, 2, 0 if fields else 5])
        # Every token whose gradient is stopped counts.
        stopped = 3 if fields else 2
        assert out.metrics["ratio/clipped_high_frac"] == Metric(stopped, 4)
        assert out.metrics["ratio/clipped_low_frac"] == Metric(0, 4)


def test_delta_must_exceed_the_upper_clip() -> None:
    with pytest.raises(ValidationError):
        obj("clip", high=0.28, delta=1.28)


# 7
@pytest.mark.parametrize("kind", ["clip", "gspo", "gspo_token", "gmpo"])
@batches
@few
def test_each_clip_bound_changes_one_sign_of_the_advantage(
    kind: str, lengths: list[int], seed: int
) -> None:
    x = make(lengths, seed)
    positive_T, one_N = x.adv_T > 0, torch.ones(len(lengths)).double()
    base = obj(kind, low=0.1, high=0.1)(x).ell_T
    higher, lower = obj(kind, low=0.1, high=0.3)(x).ell_T, obj(kind, low=0.3, high=0.1)(x).ell_T
    assert torch.equal(higher[~positive_T], base[~positive_T])
    assert torch.equal(lower[positive_T], base[positive_T])
    _, base_T = loss_and_grad(obj(kind, low=0.1, high=0.1), x, one_N)
    _, higher_T = loss_and_grad(obj(kind, low=0.1, high=0.3), x, one_N)
    _, lower_T = loss_and_grad(obj(kind, low=0.3, high=0.1), x, one_N)
    assert torch.equal(higher_T[~positive_T], base_T[~positive_T])
    assert torch.equal(lower_T[positive_T], base_T[positive_T])


# 8
@pytest.mark.parametrize("scale", ["group", "batch", "batch_centred", "mean", "none"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "length_weighted"])
@given(
    reward=st.floats(-2, 2), lengths=st.lists(st.integers(1, 6), min_size=4, max_size=6),
    seed=st.integers(0, 10_000), dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
@few
def test_equal_rewards_give_no_gradient(
    scale: str, baseline: str, reward: float, lengths: list[int], seed: int, dtype: torch.dtype
) -> None:
    x = make(lengths, seed)
    reward_N = torch.full((len(lengths),), reward, dtype=dtype)
    how = Advantage(baseline=baseline, scale=scale)
    adv_N = advantages(reward_N, groups_of(x), how, length_N=x.length_N)
    assert not adv_N.any()
    for kind in KINDS.keys() - {"dro"}:  # whose pull to the old policy needs no advantage
        _, grad_T = loss_and_grad(obj(kind), replaced(x, adv_N=adv_N.double()), seq_weights(x))
        assert not grad_T.any()


# 9
@every_kind
@every_aggregate
@pytest.mark.parametrize("size", [1, 2])
@batches
@few
def test_micro_batches_leave_loss_and_gradient_unchanged(
    kind: str, aggregate: str, size: int, lengths: list[int], seed: int
) -> None:
    x = make(lengths, seed)
    weight_N = seq_weights(x, aggregate)
    total, grad_T = 0.0, torch.zeros_like(x.logp_T)
    for start in range(0, len(lengths), size):
        rows, here_T = slice(start, start + size), (x.seq_T // size == start // size)
        part = Tokens(
            x.logp_T[here_T], x.old_logp_T[here_T], x.adv_N[rows], x.seq_T[here_T] - start,
            x.length_N[rows],
        )  # fmt: skip
        loss, _ = weighted_loss(Parts(obj(kind)), part, weight_N=weight_N[rows])
        total += loss.item()
        grad_T += torch.autograd.grad(loss, x.logp_T)[0]
    assert same((total, grad_T), loss_and_grad(obj(kind), x, weight_N), tol=1e-10)


# 10
@every_kind
@every_aggregate
@batches
@few
def test_order_of_sequences_leaves_the_loss_unchanged(
    kind: str, aggregate: str, lengths: list[int], seed: int
) -> None:
    x = make(lengths, seed)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    place_T = torch.cat([(x.seq_T == n).nonzero()[:, 0] for n in order])
    mixed = Tokens(
        x.logp_T[place_T], x.old_logp_T[place_T], x.adv_N[order],
        torch.arange(len(order)).repeat_interleave(x.length_N[order]), x.length_N[order],
    )  # fmt: skip
    weight_N = weights(mixed.length_N, agg(aggregate), 9, prompt_N=groups_of(x)[order])
    loss, _ = weighted_loss(Parts(obj(kind)), mixed, weight_N=weight_N)
    (grad_T,) = torch.autograd.grad(loss, x.logp_T)
    assert same((loss.item(), grad_T), loss_and_grad(obj(kind), x, seq_weights(x, aggregate)))


# 11
@given(seed=st.integers(0, 10_000), size=st.integers(2, 6))
@few
def test_weighted_k3_and_k2_have_the_gradient_of_the_kl_and_k3_of_the_forward_kl(
    seed: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_V, ref_V, old_V = torch.randn(3, size, generator=generator, dtype=torch.float64)
    logits_V.requires_grad_()
    logp_V, ref_V, old_V = (z.log_softmax(0) for z in (logits_V, ref_V, old_V))

    def grad(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits_V, retain_graph=True)[0]

    def expected(kind: str, sampler_V: Tensor) -> Tensor:
        return grad((sampler_V.exp() * kl_estimate(kind, logp_V, ref_V, sampler_V)).sum())

    reverse = grad((logp_V.exp() * (logp_V - ref_V)).sum())
    forward = grad((ref_V.exp() * (ref_V - logp_V)).sum())
    here_V = logp_V.detach()
    for kind in ("k2", "k3_plus", "k3_weighted"):
        assert torch.allclose(expected(kind, here_V), reverse, rtol=0, atol=1e-12)
    assert torch.allclose(expected("k3", here_V), forward, rtol=0, atol=1e-12)
    # Only k3_weighted is also right when another policy sampled.
    assert torch.allclose(expected("k3_weighted", old_V), reverse, rtol=0, atol=1e-12)


# 12
@given(adv=st.floats(-3, 3), tau_pos=st.floats(0.2, 3), tau_neg=st.floats(0.2, 3))
@few
def test_sapo_gradient_is_the_advantage_at_ratio_1_and_vanishes_far_away(
    adv: float, tau_pos: float, tau_neg: float
) -> None:
    objective = obj("sapo", tau_pos=tau_pos, tau_neg=tau_neg)

    def slope(log_ratio: float) -> float:
        logp_T = f64(log_ratio).requires_grad_()
        x = Tokens(logp_T, f64(0), f64(adv), torch.zeros(1, dtype=torch.long), torch.tensor([1]))
        return torch.autograd.grad(objective(x).ell_T.sum(), logp_T)[0].item()

    assert slope(0.0) == pytest.approx(-adv, abs=1e-14)
    assert abs(slope(math.log(400))) < 1e-12
    assert abs(slope(-60.0)) < 1e-12
    # In between: A r sech^2(tau (r - 1) / 2).
    tau = tau_pos if adv > 0 else tau_neg
    for ratio in (0.5, 1.7):
        want = -adv * ratio / math.cosh(tau * (ratio - 1) / 2) ** 2
        assert slope(math.log(ratio)) == pytest.approx(want, abs=1e-12)


# 13
@batches
@few
def test_drpo_gradient_weight_is_1_minus_the_signed_move_over_delta(
    lengths: list[int], seed: int
) -> None:
    x, delta = make(lengths, seed), 0.15
    prob_T, old_T = x.logp_T.detach().exp(), x.old_logp_T.exp()
    _, grad_T = loss_and_grad(obj("drpo", delta=delta), x, torch.ones(len(lengths)).double())
    want_T = 1 - x.adv_T.sign() * (prob_T - old_T) / delta
    # The weight multiplies the unclipped surrogate's gradient, -r A.
    assert torch.allclose(-grad_T / (prob_T / old_T * x.adv_T), want_T, rtol=0, atol=1e-10)


# 14
@pytest.mark.parametrize(
    ("divergence", "delta", "ratio_max"), [("tv", 0.15, 20.0), ("kl", 0.05, 20.0)]
)
def test_dppo_keeps_rare_tokens_that_ppo_clips_and_drops_large_moves_of_likely_ones(
    divergence: str, delta: float, ratio_max: float
) -> None:
    # Token 0: probability .135 -> .082, ratio .61. Token 1: .819 -> .607, ratio .74. Both A < 0.
    # Token 2: .01 -> .04, ratio 4. Token 3: .5 -> .8. Both A > 0.
    old_T = torch.cat([f64(-2.0, -0.2), f64(0.01, 0.5).log()])
    logp_T = torch.cat([f64(-2.5, -0.5), f64(0.04, 0.8).log()]).requires_grad_()
    x = Tokens(logp_T, old_T, f64(-1, 1), torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]))
    one_N = f64(1, 1)
    dppo = obj("dppo", divergence=divergence, delta=delta, ratio_max=ratio_max)
    _, dppo_T = loss_and_grad(dppo, x, one_N)
    _, ppo_T = loss_and_grad(obj("clip"), x, one_N)
    assert (ppo_T == 0).tolist() == [True, True, True, True]
    assert (dppo_T == 0).tolist() == [False, True, False, True]
    assert dppo_T[2].item() == pytest.approx(-4)
    metrics = dppo(x).metrics
    assert metrics["ratio/clipped_low_frac"] == Metric(1, 4)
    assert metrics["ratio/clipped_high_frac"] == Metric(1, 4)


def test_dppo_never_drops_a_move_back_to_the_old_policy() -> None:
    # Both moved far against the sign of their advantage.
    logp_T = f64(0.8, 0.2).log().requires_grad_()
    old_T = f64(0.4, 0.7).log()
    x = Tokens(logp_T, old_T, f64(-1, 1), torch.tensor([0, 1]), torch.tensor([1, 1]))
    for divergence in ("tv", "kl"):
        _, grad_T = loss_and_grad(obj("dppo", divergence=divergence, delta=0.01), x, f64(1, 1))
        assert grad_T.tolist() == pytest.approx([2, -2 / 7])


# Correction


def corrected(
    settings: Any, log_rho: list[list[float]], adv: list[float] | None = None
) -> Correction:
    """The correction of sequences whose log(old / sampler) is `log_rho`, all probabilities < 1."""
    log_rho_T = f64(*[v for seq in log_rho for v in seq])
    seq_T = torch.tensor([n for n, seq in enumerate(log_rho) for _ in seq])
    old_T = torch.full_like(log_rho_T, -8.0)
    adv_N = f64(*(adv or [1.0] * len(log_rho)))
    return correct(settings, old_T, old_T, old_T - log_rho_T, adv_N, seq_T, len(log_rho))


def test_metrics_describe_the_weights_before_truncation() -> None:
    log_rho = [[math.log(5), math.log(0.5)], [math.log(1.5), 0.0]]
    out = corrected(corr("tis_token", cap=2.0), log_rho)
    assert out.weight_T.tolist() == pytest.approx([2, 0.5, 1.5, 1])
    assert out.metrics["correction/weight_max"].value == pytest.approx(5)
    assert out.metrics["correction/weight_mean"].value == pytest.approx(2)
    assert out.metrics["correction/modified_frac"].value == pytest.approx(0.25)


def test_effective_sample_size_of_tokens_and_of_sequences() -> None:
    # (sum w)^2 / (n sum w^2): token weights 5, .5, 1.5, 1, then sequence products 2.5 and 1.5.
    assert effective_sample_size(f64(5, 0.5, 1.5, 1).log()) == pytest.approx(64 / (4 * 28.5))
    assert effective_sample_size(f64(2.5, 1.5).log()) == pytest.approx(16 / (2 * 8.5))
    assert effective_sample_size(f64(-3, -3, -3)) == pytest.approx(1)
    # Products over thousands of tokens leave the range of floats; their ratio does not.
    assert effective_sample_size(f64(2000, 0, 0, 0)) == pytest.approx(1 / 4)
    assert math.isnan(effective_sample_size(f64()))


def test_metrics_of_a_sequence_correction_describe_sequence_weights() -> None:
    log_rho = [[math.log(5), 0.0], [math.log(0.5)]]
    out = corrected(corr("tis_seq", cap=2.0), log_rho)
    assert out.weight_T.tolist() == pytest.approx([2, 2, 0.5])
    assert out.metrics["correction/weight_max"].value == pytest.approx(5)
    assert out.metrics["correction/weight_mean"].value == pytest.approx(2.75)
    assert out.metrics["correction/modified_frac"].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("kind", "fields", "want"),
    [
        ("tis_token", {"cap": 2.0}, 2 / 5),
        ("mis_token", {"cap": 3.0}, 1 / 5),
        ("icepop", {"low": 0.65, "high": 5.0}, 1 / 5),
        ("tis_seq", {"cap": 2.0}, 3 / 5),
        ("mis_seq", {"cap": 3.0}, 3 / 5),
        ("geo_rs", {"low": 0.9, "high": 1.2}, 5 / 5),
        ("opsm", {"delta": 0.1}, 2 / 5),
        ("none", {}, 0),
    ],
)
def test_modified_frac_is_the_share_of_tokens_that_the_correction_touches(
    kind: str, fields: dict[str, float], want: float
) -> None:
    # Token ratios 2.5, 4, 0.6 and 1, 0.7; sequence products 6 and 0.7, geometric means 1.82, 0.84.
    log_rho = [[math.log(2.5), math.log(4), math.log(0.6)], [0.0, math.log(0.7)]]
    out = corrected(corr(kind, **fields), log_rho, [1.0, -1.0])
    assert out.metrics["correction/modified_frac"].value == pytest.approx(want)


def test_sequence_weight_is_the_product_and_rejection_uses_the_geometric_mean() -> None:
    # exp(-.1) = .904837 and exp(-.05) = .951229.
    diffs = [[0.1, -0.2]]
    product = corrected(corr("tis_seq", cap=2.0), diffs).weight_T
    assert product.tolist() == pytest.approx([0.904837, 0.904837], abs=1e-6)
    for low, rejected in ((0.9512, False), (0.9513, True)):
        out = corrected(corr("geo_rs", low=low, high=1.001), diffs)
        assert out.rejected_N.tolist() == [rejected]
        assert out.metrics["correction/weight_mean"].value == pytest.approx(0.951229, abs=1e-6)


def test_opsm_stays_in_the_denominator_and_rejects_nothing() -> None:
    out = corrected(corr("opsm", delta=0.5), [[-0.6, -0.5], [-0.6, -0.5], [-0.4]], [-1, 1, -1])
    assert out.weight_T.tolist() == [0, 0, 1, 1, 1]
    assert not out.rejected_N.any()


@pytest.mark.parametrize("kind", ["tis_token", "tis_seq", "mis_token", "mis_seq", "icepop"])
def test_bypass_weighs_the_policy_against_the_sampler(kind: str) -> None:
    x = make([2, 3], 1, spread=0.1)
    logp_T = x.logp_T.detach()
    garbage_T = torch.full_like(logp_T, -50.0)
    got = correct(corr(kind, bypass=True), x.logp_T, garbage_T, x.old_logp_T, x.adv_N, x.seq_T, 2)
    want = correct(corr(kind), logp_T, logp_T, x.old_logp_T, x.adv_N, x.seq_T, 2)
    assert torch.equal(got.weight_T, want.weight_T)
    assert not got.weight_T.requires_grad


@pytest.mark.parametrize("kind", CORRECTIONS)
@pytest.mark.parametrize("size", [1, 2])
def test_correction_metrics_do_not_depend_on_micro_batches(kind: str, size: int) -> None:
    lengths, settings_ = [3, 2, 4, 1], corr(kind)
    x = make(lengths, 7)
    sampler_T = x.old_logp_T - torch.linspace(-1, 1.5, 10, dtype=torch.float64)
    logp_T = x.logp_T.detach()
    whole = correct(settings_, logp_T, x.old_logp_T, sampler_T, x.adv_N, x.seq_T, 4)
    merged: dict[str, Metric] = {}
    for start in range(0, 4, size):
        here_T = x.seq_T // size == start // size
        part = correct(
            settings_, logp_T[here_T], x.old_logp_T[here_T], sampler_T[here_T],
            x.adv_N[start : start + size], x.seq_T[here_T] - start, size,
        )  # fmt: skip
        for name, metric in part.metrics.items():
            merged[name] = merged[name] + metric if name in merged else metric
    for name, metric in whole.metrics.items():
        assert merged[name].value == pytest.approx(metric.value), name


def test_a_correction_multiplies_the_objective_and_not_the_kl() -> None:
    x = make([2, 3], 4)
    sampler_T = x.old_logp_T - f64(0.5, -0.5, 1.0, 0.1, -1.0)
    ref_T = x.old_logp_T - 0.3
    weight_N = f64(0.4, 0.1)
    settings_ = corr("tis_token", cap=2.0)
    parts = Parts(obj("clip"), Kl(beta=0.04, kind="k3"), settings_)
    loss, _ = weighted_loss(parts, x, weight_N=weight_N, ref_logp_T=ref_T, sampler_logp_T=sampler_T)
    factor_T = (x.old_logp_T - sampler_T).exp().clamp(max=2)
    k3_T = kl_estimate("k3", x.logp_T, ref_T, x.old_logp_T)
    want = (weight_N[x.seq_T] * (factor_T * obj("clip")(x).ell_T + 0.04 * k3_T)).sum()
    assert loss.item() == pytest.approx(want.item(), abs=1e-14)


def test_keep_takes_tokens_out_of_the_objective_and_not_of_the_denominator() -> None:
    x = make([2, 3], 4)
    weight_N = seq_weights(x)
    keep_T = torch.tensor([True, False, False, True, True])
    _, kept_T = loss_and_grad(obj("clip"), x, weight_N, keep_T=keep_T)
    _, all_T = loss_and_grad(obj("clip"), x, weight_N)
    assert torch.equal(kept_T, all_T * keep_T)


# Aggregation


@pytest.mark.parametrize(
    ("kind", "fields", "want"),
    [
        ("seq_mean", {}, [1 / 12, 1 / 8, 1 / 16, 1 / 4]),
        ("token_mean", {}, [1 / 10] * 4),
        ("constant", {"length": 8}, [1 / 32] * 4),
        ("constant", {}, [1 / 20] * 4),
        ("seq_sum", {}, [1 / 4] * 4),
        # Prompt 0 has 3 + 2 tokens, prompt 1 has 4 + 1.
        ("prompt_mean", {}, [1 / 10] * 4),
    ],
)
def test_weights_of_a_whole_step(kind: str, fields: dict[str, int], want: list[float]) -> None:
    length_N, prompt_N = torch.tensor([3, 2, 4, 1]), torch.tensor([0, 0, 1, 1])
    got = weights(length_N, agg(kind, **fields), 5, full_length_N=length_N, prompt_N=prompt_N)
    assert got.tolist() == pytest.approx(want)


def test_prompt_mean_weighs_prompts_alike_whatever_their_tokens() -> None:
    # Prompt 7 has 6 tokens and prompt 2 has 4, in any order: 1 / (2 * 6) and 1 / (2 * 4).
    prompt_N = torch.tensor([7, 2, 7, 2])
    got = weights(torch.tensor([5, 3, 1, 1]), agg("prompt_mean"), 9, prompt_N=prompt_N)
    assert got.tolist() == pytest.approx([1 / 12, 1 / 8, 1 / 12, 1 / 8])
    # A prompt without trainable tokens leaves the mean over prompts.
    got = weights(torch.tensor([5, 0, 1, 0]), agg("prompt_mean"), 9, prompt_N=prompt_N)
    assert got.tolist() == pytest.approx([1 / 6, 0, 1 / 6, 0])


@pytest.mark.parametrize(
    ("kind", "leaves", "stays"),
    [
        ("seq_mean", [1 / 4, 0, 1 / 8], [1 / 6, 0, 1 / 12]),
        ("token_mean", [1 / 6, 0, 1 / 6], [1 / 9, 0, 1 / 9]),
        ("constant", [1 / 10, 0, 1 / 10], [1 / 15, 0, 1 / 15]),
        ("seq_sum", [1 / 2, 0, 1 / 2], [1 / 3, 0, 1 / 3]),
        ("prompt_mean", [1 / 4, 0, 1 / 8], [1 / 10, 0, 1 / 8]),
    ],
)
def test_masked_sequences_leave_the_denominator_or_stay_in_it(
    kind: str, leaves: list[float], stays: list[float]
) -> None:
    full_N, prompt_N = torch.tensor([2, 3, 4]), torch.tensor([0, 0, 1])
    length_N = torch.tensor([2, 0, 4])
    for in_denominator, want in ((False, leaves), (True, stays)):
        settings_ = agg(kind, masked_in_denominator=in_denominator)
        got = weights(length_N, settings_, 5, full_length_N=full_N, prompt_N=prompt_N)
        assert got.tolist() == pytest.approx(want)


@every_aggregate
@pytest.mark.parametrize("in_denominator", [False, True])
def test_nothing_to_train_on_is_weight_0(aggregate: str, in_denominator: bool) -> None:
    settings_ = agg(aggregate, masked_in_denominator=in_denominator)
    zero_N, full_N = torch.zeros(2, dtype=torch.long), torch.tensor([2, 3])
    for full in (zero_N, full_N):
        got = weights(zero_N, settings_, 5, full_length_N=full, prompt_N=torch.tensor([0, 1]))
        assert got.tolist() == [0, 0]
