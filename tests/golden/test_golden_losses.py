"""Loss, gradient and advantages against numbers checked with TRL, verl, slime and prime-rl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from grpo_cli.objective.advantage import Advantage, advantages
from grpo_cli.objective.aggregate import Constant, SeqMean, TokenMean, weights
from grpo_cli.objective.kinds.clip import Clip
from grpo_cli.objective.kl import Kl, kl_estimate
from grpo_cli.objective.loss import weighted_loss
from grpo_cli.objective.shaping import SoftOverlong, length_penalty
from grpo_cli.stats import pass_at_k
from grpo_cli.types import Tokens

GOLDEN = json.loads(Path(__file__).with_name("golden_losses.json").read_text())
CASES = {case["id"]: case for case in GOLDEN["policy_loss_cases"]}
ADVANTAGES = {case["id"]: case for case in GOLDEN["advantage_cases"]}

SETTINGS = {
    "grpo": (Clip(low=0.2, high=0.2), SeqMean(), Kl()),
    "grpo_kl_k3": (Clip(low=0.2, high=0.2), SeqMean(), Kl(beta=0.04)),
    "grpo_onpolicy": (Clip(low=0.2, high=0.2), SeqMean(), Kl()),
    "grpo_overlong_mask_verl": (Clip(low=0.2, high=0.2), SeqMean(), Kl()),
    "dapo": (Clip(low=0.2, high=0.28), TokenMean(), Kl()),
    "dr_grpo": (Clip(low=0.2, high=0.2), Constant(length=8), Kl()),
}


def flat_loss(case: dict, dtype: torch.dtype, micro_batch: int) -> tuple[float, torch.Tensor, list]:
    """Loss and gradient of a padded golden case, run as flat tokens in micro-batches."""
    objective, aggregate, kl = SETTINGS[case["id"]]
    inputs = GOLDEN["inputs"][case["inputs"]]
    mask = torch.tensor(inputs["mask"]).bool()
    arrays = {
        k: torch.tensor(inputs[k], dtype=dtype)[mask] for k in ("logp", "old_logp", "ref_logp")
    }
    logp_T = arrays["logp"].requires_grad_()
    old_T = arrays["logp"].detach() if case["id"] == "grpo_onpolicy" else arrays["old_logp"]
    seq_T = torch.arange(len(mask)).repeat_interleave(mask.sum(1))
    trained_N = mask.sum(1).clone()
    trained_N[case["params"].get("truncated", [])] = 0
    weight_N = weights(trained_N, aggregate, max_tokens=99)
    adv_N = torch.tensor(case["advantages"], dtype=dtype)
    total, metrics = 0.0, []
    for start in range(0, len(mask), micro_batch):
        rows = torch.arange(start, min(start + micro_batch, len(mask)))
        here_T = (seq_T[:, None] == rows).any(1)
        tokens = Tokens(
            logp_T=logp_T[here_T],
            old_logp_T=old_T[here_T],
            adv_N=adv_N[rows],
            seq_T=seq_T[here_T] - start,
            length_N=mask.sum(1)[rows],
        )
        loss, token_loss = weighted_loss(
            objective, kl, tokens, arrays["ref_logp"][here_T], weight_N[rows]
        )
        loss.backward()
        total += loss.item()
        metrics.append(token_loss.metrics)
    grad = torch.zeros(mask.shape, dtype=dtype)
    grad[mask] = logp_T.grad
    return total, grad, metrics


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-7), (torch.float32, 2e-6)])
def test_loss_and_gradient(name: str, micro_batch: int, dtype: torch.dtype, tol: float) -> None:
    expected = CASES[name]["expected"]
    loss, grad, _ = flat_loss(CASES[name], dtype, micro_batch)
    assert loss == pytest.approx(expected["loss"], abs=tol)
    want = torch.tensor(expected["grad_logp"], dtype=dtype)
    assert (grad - want).abs().max() < tol


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_clip_fractions_do_not_depend_on_micro_batches(micro_batch: int) -> None:
    _, _, metrics = flat_loss(CASES["grpo"], torch.float64, micro_batch)
    for side in ("low", "high"):
        name = f"ratio/clipped_{side}_frac"
        total = metrics[0][name]
        for more in metrics[1:]:
            total += more[name]
        assert total.value == pytest.approx(CASES["grpo"]["expected"][f"clip_{side}_frac"])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("group_std_ddof0", Advantage(scale="group", ddof=0, epsilon=0)),
        ("group_std_trl", Advantage(scale="group", epsilon=1e-4)),
        ("group_std_verl", Advantage(scale="group", epsilon=1e-6)),
        ("group_std_oat", Advantage(scale="group", epsilon=1e-8)),
        ("none", Advantage(scale="none")),
        ("batch_std_trl", Advantage(scale="batch", epsilon=1e-4)),
    ],
)
def test_advantages(name: str, settings: Advantage) -> None:
    case = ADVANTAGES[name]
    rewards = torch.tensor(case["rewards"], dtype=torch.float64)
    prompt_N = torch.arange(len(rewards)).repeat_interleave(rewards.shape[1])
    got = advantages(rewards.flatten(), prompt_N, settings).view_as(rewards)
    assert (got - torch.tensor(case["expected"], dtype=torch.float64)).abs().max() < 1e-9


def test_k3() -> None:
    case = GOLDEN["kl_tokenwise"]
    mask = torch.tensor(case["mask"]).bool()
    logp, ref, want = (
        torch.tensor(case[k], dtype=torch.float64)[mask] for k in ("lp", "ref", "k3")
    )
    assert (kl_estimate(logp, ref) - want).abs().max() < 1e-12


@pytest.mark.parametrize("group", ["soft_overlong", "soft_overlong_small"])
def test_soft_overlong(group: str) -> None:
    for case in GOLDEN["reward_cases"][group]:
        settings = SoftOverlong(cache_frac=case["L_cache"] / case["L_max"])
        got = length_penalty(
            torch.tensor([case["length"]]), torch.tensor([False]), settings, case["L_max"]
        )
        assert got.item() == pytest.approx(case["expected"], abs=1e-12)


def test_pass_at_k() -> None:
    for case in GOLDEN["misc"]["pass_at_k"]:
        assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["expected"])
