"""Advantage, aggregation, shaping and clipping by hand-computed numbers."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_cli.objective.advantage import Advantage, advantages
from grpo_cli.objective.aggregate import (
    Constant,
    PromptMean,
    SeqMean,
    SeqSum,
    TokenMean,
    denominator,
    minibatch_of,
    weights,
)
from grpo_cli.objective.kinds.clip import Clip
from grpo_cli.objective.loss import Parts, weighted_loss
from grpo_cli.objective.shaping import (
    HardOverlong,
    MaskOverlong,
    NoOverlong,
    SoftOverlong,
    length_penalty,
    masks_truncated,
)
from grpo_cli.types import Tokens

ONE_GROUP = torch.zeros(4, dtype=torch.long)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        (Advantage(scale="none"), [0.75, -0.25, -0.25, -0.25]),
        (Advantage(scale="group", epsilon=1e-4), [1.4997, -0.4999, -0.4999, -0.4999]),
        (Advantage(scale="group", ddof=0, epsilon=1e-4), [1.7317, -0.5772, -0.5772, -0.5772]),
    ],
)
def test_one_right_of_four(settings: Advantage, want: list[float]) -> None:
    got = advantages(f64(1, 0, 0, 0), ONE_GROUP, settings)
    assert got.tolist() == pytest.approx(want, abs=1e-4)


def test_batch_scale_is_the_spread_of_all_rewards() -> None:
    prompt_N = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    got = advantages(f64(1, 0, 0, 0, 1, 1, 1, 0), prompt_N, Advantage(scale="batch", epsilon=1e-4))
    assert got[0].item() == pytest.approx(1.40286, abs=1e-4)
    assert got[7].item() == pytest.approx(-1.40286, abs=1e-4)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("value", [0.01, 0.95, 0.97, 1 / 3])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1e-4])
def test_equal_rewards_are_exactly_zero_in_float32(
    scale: str, value: float, epsilon: float
) -> None:
    # In float32 [0.01] * 8 has a standard deviation above 0; dividing by it gives |A| = 0.085.
    rewards = torch.full((16,), value, dtype=torch.float32)
    prompt_N = torch.arange(2).repeat_interleave(8)
    settings = Advantage(scale=scale, epsilon=epsilon)
    assert not advantages(rewards, prompt_N, settings).any()


def test_missing_verdict_leaves_the_group() -> None:
    got = advantages(f64(1, math.nan, 0, 0), ONE_GROUP, Advantage(scale="none"))
    assert got.tolist() == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])


def test_a_group_with_one_verdict_cannot_train() -> None:
    got = advantages(f64(1, math.nan, math.nan, math.nan), ONE_GROUP, Advantage(scale="group"))
    assert got.tolist() == [0, 0, 0, 0]


def test_groups_of_unequal_size_do_not_explode() -> None:
    got = advantages(f64(1, 0, 0.5), torch.tensor([0, 0, 1]), Advantage(scale="group"))
    assert got[2].item() == 0


def loss_of(settings: SeqMean | TokenMean | Constant, max_tokens: int = 4) -> float:
    """Two on-policy sequences of lengths 1 and 3 with advantages +1 and -1."""
    logp_T = f64(-1, -1, -1, -1)
    tokens = Tokens(logp_T, logp_T, f64(1, -1), torch.tensor([0, 1, 1, 1]), torch.tensor([1, 3]))
    weight_N = weights(torch.tensor([1, 3]), settings, max_tokens)
    return weighted_loss(Parts(Clip()), tokens, weight_N=weight_N)[0].item()


@pytest.mark.parametrize(
    ("settings", "want"),
    [(SeqMean(), 0.0), (TokenMean(), 0.5), (Constant(length=4), 0.25), (Constant(), 0.25)],
)
def test_normalisations_differ_as_their_formulas_do(
    settings: SeqMean | TokenMean | Constant, want: float
) -> None:
    assert loss_of(settings) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("settings", [SeqMean(), TokenMean(), Constant(length=4)])
def test_masked_sequences_leave_both_sides(settings: SeqMean | TokenMean | Constant) -> None:
    whole = weights(torch.tensor([2, 3]), settings, 4)
    masked = weights(torch.tensor([2, 0, 3]), settings, 4)
    assert masked[1].item() == 0
    assert masked[[0, 2]].tolist() == pytest.approx(whole.tolist())


@pytest.mark.parametrize("settings", [SeqMean(), TokenMean(), Constant(length=4)])
def test_nothing_to_train_on_is_weight_zero(settings: SeqMean | TokenMean | Constant) -> None:
    assert weights(torch.tensor([0, 0]), settings, 4).tolist() == [0, 0]


def test_an_infinite_token_outside_the_loss_does_not_reach_it() -> None:
    logp_T = torch.tensor([-1.0, -math.inf], dtype=torch.float64, requires_grad=True)
    tokens = Tokens(logp_T, f64(-1, -1), f64(1, 1), torch.tensor([0, 1]), torch.tensor([1, 1]))
    loss, _ = weighted_loss(Parts(Clip()), tokens, weight_N=f64(1, 0))
    assert loss.item() == -1


def test_clip_fixture() -> None:
    ratio_T = f64(0.7, 0.9, 1.1, 1.5)
    for adv, want_loss, want_high, want_low in ((1, -0.995, 0.25, 0), (-1, 1.075, 0, 0.25)):
        tokens = Tokens(
            ratio_T.log(), f64(0, 0, 0, 0), f64(adv), torch.zeros(4, dtype=torch.long),
            torch.tensor([4]),
        )  # fmt: skip
        out = Clip(low=0.2, high=0.28)(tokens)
        assert out.ell_T.mean().item() == pytest.approx(want_loss)
        assert out.metrics["ratio/clipped_high_frac"].value == want_high
        assert out.metrics["ratio/clipped_low_frac"].value == want_low


def test_length_penalties() -> None:
    length_N = torch.tensor([15, 16, 18, 20, 20])
    truncated_N = torch.tensor([False, False, False, False, True])
    soft = length_penalty(length_N, truncated_N, SoftOverlong(cache_frac=0.25), 20)
    assert soft.tolist() == pytest.approx([0, -0.2, -0.6, -1, -1])
    assert length_penalty(length_N, truncated_N, HardOverlong(), 20).tolist() == [0, 0, 0, 0, -1]
    for settings in (NoOverlong(), MaskOverlong()):
        assert not length_penalty(length_N, truncated_N, settings, 20).any()
    assert masks_truncated(MaskOverlong())
    assert masks_truncated(SoftOverlong(mask_truncated=True))
    assert not masks_truncated(SoftOverlong())


@pytest.mark.parametrize(
    ("settings", "want"),
    [(SeqMean(), 2), (TokenMean(), 4), (Constant(length=4), 8), (SeqSum(), 2), (PromptMean(), 1)],
)
def test_the_denominator_is_what_the_formula_divides_by(
    settings: SeqMean | TokenMean | Constant | SeqSum | PromptMean, want: float
) -> None:
    counted_N, prompt_N = torch.tensor([1, 3, 0]), torch.tensor([0, 0, 1])
    assert denominator(counted_N, settings, 4, prompt_N=prompt_N) == want


@pytest.mark.parametrize(
    ("num_groups", "count", "parts"),
    [
        (1, 1, [0]),
        (5, 2, [0, 0, 1, 1, 1]),
        (7, 3, [0, 0, 1, 1, 1, 2, 2]),
        (2, 4, [1, 2]),  # two minibatches stay empty
        (0, 2, []),
    ],
)
def test_minibatches_are_runs_of_whole_groups(
    num_groups: int, count: int, parts: list[int]
) -> None:
    assert minibatch_of(num_groups, count) == parts
