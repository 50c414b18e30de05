"""One suite over every objective. A new file in `objective/kinds/` needs no edit here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cli.objective.base import Objective
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.objective.loss import Parts, weighted_loss
from grpo_cli.recipe.load import load
from grpo_cli.types import Metric, Tokens

ROOT = Path(__file__).parents[2]

WITHOUT_RECIPE = {
    "drpo": "its `delta` has no published value to put in a recipe",
    "dro": "a part of Kimi k1.5's method, offered for ablations only",
}
"""Kinds that no shipped recipe selects, with the reason."""

PULLED_WITHOUT_ADVANTAGE = {"dro": "its pull to the old policy does not depend on the advantage"}
"""Kinds that have a gradient off-policy even where the advantage is 0, with the reason."""

every_kind = pytest.mark.parametrize("kind", objective_kinds(), ids=lambda k: k.__name__)

lengths_and_seed = given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 10_000)
)


def build(kind: type[Objective]) -> Objective:
    """An instance with its defaults; a setting without one gets 0.5."""
    return kind(**{name: 0.5 for name, spec in kind.model_fields.items() if spec.is_required()})


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
    assert torch.allclose(gradient(build(kind), x, weight_N), want, atol=1e-12)


@every_kind
@lengths_and_seed
@settings(deadline=None, max_examples=25)
def test_micro_batches_change_nothing(kind: type[Objective], lengths: list[int], seed: int) -> None:
    x, objective = make(lengths, seed), build(kind)
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
    x, objective = make(lengths, seed), build(kind)
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
    one_N = torch.ones(2, dtype=torch.float64)
    on_policy = replaced(x, old_logp_T=x.logp_T.detach())
    assert not gradient(build(kind), on_policy, one_N).any()
    pulls = kind.model_fields["kind"].default in PULLED_WITHOUT_ADVANTAGE
    assert bool(gradient(build(kind), x, one_N).any()) == pulls


@every_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("log_ratio", [50.0, -50.0])
@pytest.mark.parametrize("adv", [[1.0, -1.0], [-1.0, 1.0]])
def test_finite_at_extreme_ratios(
    kind: type[Objective], dtype: torch.dtype, log_ratio: float, adv: list[float]
) -> None:
    x = make([3, 2], 1)
    # Whichever policy is the less likely one moves, so that both stay probabilities.
    logp_T = (x.logp_T.detach() + min(log_ratio, 0.0)).to(dtype).requires_grad_()
    x = replaced(
        x,
        logp_T=logp_T,
        old_logp_T=logp_T.detach() - log_ratio,
        adv_N=torch.tensor(adv, dtype=dtype),
    )
    ell_T = build(kind)(x).ell_T
    assert ell_T.dtype == dtype
    assert torch.isfinite(ell_T).all()
    assert torch.isfinite(gradient(build(kind), x, torch.ones(2, dtype=dtype))).all()


@every_kind
@lengths_and_seed
@settings(deadline=None, max_examples=25)
def test_a_sequence_with_weight_0_is_as_good_as_absent(
    kind: type[Objective], lengths: list[int], seed: int
) -> None:
    x, parts = make([*lengths, 3], seed), Parts(build(kind))
    weight_N = torch.rand(len(lengths) + 1, dtype=torch.float64)
    weight_N[-1] = 0
    here_T = x.seq_T < len(lengths)
    masked, _ = weighted_loss(parts, x, weight_N=weight_N)
    (masked_T,) = torch.autograd.grad(masked, x.logp_T)
    alone = Tokens(
        logp_T=x.logp_T[here_T],
        old_logp_T=x.old_logp_T[here_T],
        adv_N=x.adv_N[:-1],
        seq_T=x.seq_T[here_T],
        length_N=x.length_N[:-1],
    )
    loss, _ = weighted_loss(parts, alone, weight_N=weight_N[:-1])
    (alone_T,) = torch.autograd.grad(loss, x.logp_T)
    assert not masked_T[~here_T].any()
    assert masked.item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.allclose(masked_T, alone_T, atol=1e-12)


@every_kind
def test_infinities_of_a_sequence_with_weight_0_stay_there(kind: type[Objective]) -> None:
    x = make([3, 2], 2)
    weight_N = torch.tensor([0.5, 0.0], dtype=torch.float64)
    want, _ = weighted_loss(Parts(build(kind)), x, weight_N=weight_N)
    logp_T = x.logp_T.detach().clone()
    logp_T[-1] = -math.inf
    x = replaced(x, logp_T=logp_T.requires_grad_())
    loss, _ = weighted_loss(Parts(build(kind)), x, weight_N=weight_N)
    assert loss.item() == want.item()
    (grad_T,) = torch.autograd.grad(loss, logp_T)
    assert torch.isfinite(grad_T).all()


class Replay:
    """Holds every `.detach()` at the value of the first run, as autograd does.

    Autograd takes what is detached for a constant. A finite difference that lets it move is a
    derivative of something else; one that replays the constants is the derivative autograd means.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: list[torch.Tensor] = []
        self.replay: Iterator[torch.Tensor] | None = None
        plain = torch.Tensor.detach

        def detach(tensor: torch.Tensor) -> torch.Tensor:
            if self.replay is None:
                self.recorded.append(plain(tensor).clone())
                return plain(tensor)
            return next(self.replay)

        monkeypatch.setattr(torch.Tensor, "detach", detach)

    def again(self) -> None:
        """Give the recorded values out from the start."""
        self.replay = iter(self.recorded)


@every_kind
@pytest.mark.parametrize("spread", [1e-4, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("seed", [5, 6])
def test_gradient_is_the_derivative(
    kind: type[Objective], spread: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, objective = make([3, 2, 4, 1], seed, spread), build(kind)
    probe_T = torch.linspace(0.5, 1.5, len(x.logp_T), dtype=torch.float64)
    base_T = x.logp_T.detach().clone()
    with monkeypatch.context() as patch:
        replay = Replay(patch)
        (grad_T,) = torch.autograd.grad((objective(x).ell_T * probe_T).sum(), x.logp_T)

        def value(logp_T: torch.Tensor) -> float:
            replay.again()
            with torch.no_grad():
                return float((objective(replaced(x, logp_T=logp_T)).ell_T * probe_T).sum())

        step = 1e-6
        eye_TT = step * torch.eye(len(base_T), dtype=torch.float64)
        slopes = [(value(base_T + e_T) - value(base_T - e_T)) / (2 * step) for e_T in eye_TT]
    want_T = torch.tensor(slopes, dtype=torch.float64)
    assert torch.allclose(grad_T, want_T, rtol=1e-6, atol=1e-7)


@every_kind
@lengths_and_seed
@settings(deadline=None, max_examples=25)
def test_metrics_are_shares_of_tokens(kind: type[Objective], lengths: list[int], seed: int) -> None:
    metrics = build(kind)(make(lengths, seed, spread=1.0)).metrics
    assert metrics.keys() >= {"ratio/clipped_low_frac", "ratio/clipped_high_frac"}
    for name, metric in metrics.items():
        # Of the rare tokens alone; tests/unit/test_panel.py counts them.
        rare = name == "ratio/clipped_low_prob_frac"
        assert metric.count <= sum(lengths) if rare else metric.count == sum(lengths)
        assert 0 <= metric.total <= metric.count


@every_kind
@pytest.mark.parametrize("seed", range(5))
def test_a_token_that_is_not_counted_as_clipped_has_gradient(
    kind: type[Objective], seed: int
) -> None:
    # One token, so that the metric says which token it speaks of.
    x = make([1], seed, spread=0.5)
    metrics = build(kind)(x).metrics
    clipped = sum(metrics[f"ratio/clipped_{side}_frac"].total for side in ("low", "high"))
    if not clipped:
        assert gradient(build(kind), x, torch.ones(1, dtype=torch.float64)).any()


@every_kind
def test_says_what_it_computes_and_where_it_comes_from(kind: type[Objective]) -> None:
    assert kind.source
    assert build(kind).formula()
    for name, spec in kind.model_fields.items():
        assert name == "kind" or spec.description, f"{name} has no docstring"


def recipes() -> list[str]:
    return sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


@pytest.fixture(scope="module")
def kinds_of_recipes() -> set[str]:
    return {load(name).recipe.objective.kind for name in recipes()}


@every_kind
def test_a_recipe_selects_it(kind: type[Objective], kinds_of_recipes: set[str]) -> None:
    name = kind.model_fields["kind"].default
    assert (name in kinds_of_recipes) != (name in WITHOUT_RECIPE)


def test_kinds_without_recipe_exist_and_have_a_reason() -> None:
    kinds = {kind.model_fields["kind"].default for kind in objective_kinds()}
    assert WITHOUT_RECIPE.keys() <= kinds
    assert all(WITHOUT_RECIPE.values())


@pytest.mark.parametrize("name", recipes())
def test_a_page_describes_the_recipe(name: str) -> None:
    page = ROOT / "docs" / "algorithms" / f"{name}.md"
    assert page.is_file()
    assert page.read_text().startswith("# ")
