"""Loss, gradient and advantages against numbers checked with TRL, verl, slime and prime-rl."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from grpo_cli.objective.advantage import Advantage, advantages
from grpo_cli.objective.aggregate import Aggregate, weights
from grpo_cli.objective.correction import CorrectionSettings, correct, effective_sample_size
from grpo_cli.objective.entropy import Entropy
from grpo_cli.objective.gae import ValueCritic, gae, policy_lambda, value_loss, whitened
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.objective.kl import Kl, kl_estimate
from grpo_cli.objective.loss import Parts, weighted_loss
from grpo_cli.objective.self_verify import JudgedSelfVerify, judged_reward
from grpo_cli.objective.shaping import SoftOverlong, length_penalty
from grpo_cli.policy.logprob import chosen_logprob
from grpo_cli.policy.routing import replayed_gate
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.stats import pass_at_k
from grpo_cli.types import Metric, Status, Tokens
from grpo_cli.verify.load import load_verifier

GOLDEN = json.loads(Path(__file__).with_name("golden_losses.json").read_text())
CASES = {case["id"]: case for case in GOLDEN["policy_loss_cases"]}
ADVANTAGE_CASES = {case["id"]: case for case in GOLDEN["advantage_cases"]}

NOT_OFFERED = {
    "prime_rl_default": "its gradient is dppo's in bypass mode plus a penalty on the squared log "
    "ratio, which the runner does not have",
    "gdpo_trl": "needs several rewards per sample; the runner has one verifier and one reward",
    "passk_verl": "trains for pass@k: only the best sample of a group gets an advantage",
}
"""Policy-loss and advantage cases that are not run, with the reason."""

GROUPS_NOT_OFFERED = {
    "reward_cases.dsmath_v2_verifier": "trains a second model that grades proofs",
    "misc.scalerl_sigmoid": "a fit over many runs, outside the training loop",
}
"""Whole groups of the file that have no counterpart, with the reason."""

KINDS = {kind.model_fields["kind"].default: kind for kind in objective_kinds()}


def made(union: Any, kind: str, **fields: Any) -> Any:
    """The settings class of `union` that a recipe selects with `kind`."""
    return TypeAdapter(union).validate_python({"kind": kind, **fields})


def obj(kind: str, **fields: Any) -> Any:
    return KINDS[kind](**fields)


def agg(kind: str, **fields: Any) -> Any:
    return made(Aggregate, kind, **fields)


def corr(kind: str, **fields: Any) -> Any:
    return made(CorrectionSettings, kind, **fields)


@dataclass(frozen=True)
class Setup:
    """The settings that reproduce one golden case."""

    objective: Any
    aggregate: Any
    kl: Kl = field(default_factory=Kl)
    correction: Any = field(default_factory=lambda: corr("none"))
    advantage: Advantage | None = None
    on_policy: bool = False
    positive_nll: float = 0.0

    @property
    def parts(self) -> Parts:
        return Parts(self.objective, self.kl, self.correction, made(Entropy, "none"))


PPO = obj("clip", low=0.2, high=0.2)
HIGHER = obj("clip", low=0.2, high=0.28)
GSPO = obj("gspo", low=3e-4, high=4e-4)
SEQ, TOKEN = agg("seq_mean"), agg("token_mean")
SEQ_KEEP = agg("seq_mean", masked_in_denominator=True)
TOKEN_KEEP = agg("token_mean", masked_in_denominator=True)

SETUPS = {
    "grpo": Setup(PPO, SEQ),
    "vapo_policy": Setup(HIGHER, TOKEN, positive_nll=0.1),
    "grpo_kl_k3": Setup(PPO, SEQ, Kl(beta=0.04, kind="k3")),
    "grpo_kl_unbiased": Setup(PPO, SEQ, Kl(beta=0.04, kind="k3_weighted")),
    "grpo_kl_k3plus": Setup(PPO, SEQ, Kl(beta=0.04, kind="k3_plus")),
    "grpo_kl_k2": Setup(PPO, SEQ, Kl(beta=0.04, kind="k2")),
    "grpo_onpolicy": Setup(PPO, SEQ, on_policy=True),
    "dual_clip": Setup(obj("clip", low=0.2, high=0.2, dual_clip=3.0), TOKEN),
    "two_sided_delta": Setup(obj("clip", low=0.2, high=0.2, delta=4.0), SEQ),
    "dapo": Setup(HIGHER, TOKEN),
    "dapo_symclip": Setup(PPO, TOKEN),
    "dr_grpo": Setup(PPO, agg("constant", length=8)),
    "dr_grpo_paper_nolen": Setup(PPO, agg("seq_sum")),
    "grpo_overlong_mask": Setup(PPO, SEQ_KEEP),
    "grpo_overlong_mask_verl": Setup(PPO, SEQ),
    "gspo": Setup(GSPO, SEQ),
    "gspo_small": Setup(GSPO, SEQ),
    "gspo_token_small": Setup(obj("gspo_token", low=3e-4, high=4e-4), SEQ),
    "gspo_wide": Setup(obj("gspo", low=0.2, high=0.28), SEQ),
    "gspo_seq_dapo_small": Setup(GSPO, TOKEN),
    "luspo_small": Setup(GSPO, agg("seq_sum")),
    "gmpo": Setup(obj("gmpo", low=0.4, high=0.4), SEQ),
    "cispo_trl": Setup(obj("cispo", ratio_max=5.0), TOKEN),
    "cispo_verl": Setup(obj("cispo", ratio_min=None, ratio_max=1.2), TOKEN),
    "reinforce": Setup(obj("reinforce"), TOKEN),
    "sapo": Setup(obj("sapo", tau_pos=1.0, tau_neg=1.05), SEQ),
    "vespo": Setup(obj("vespo", k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0), TOKEN),
    "dppo_tv": Setup(obj("dppo", divergence="tv", delta=0.15, ratio_max=20.0), TOKEN),
    "dppo_tv_008": Setup(obj("dppo", divergence="tv", delta=0.08, ratio_max=20.0), TOKEN),
    "dppo_kl": Setup(obj("dppo", divergence="kl", delta=0.05, ratio_max=20.0), TOKEN),
    "dppo_kl_0022": Setup(obj("dppo", divergence="kl", delta=0.022, ratio_max=20.0), TOKEN),
    "drpo": Setup(obj("drpo", delta=0.15), TOKEN),
    "dis_mask": Setup(
        obj("reinforce"), TOKEN, correction=corr("icepop", low=0.8, high=3.0, bypass=True)
    ),
    "dro": Setup(obj("dro", beta=0.1), TOKEN),
    "rc_tis_token": Setup(HIGHER, TOKEN, correction=corr("tis_token", cap=2.0)),
    "rc_tis_seq": Setup(HIGHER, TOKEN, correction=corr("tis_seq", cap=2.0)),
    "rc_mis_seq": Setup(HIGHER, TOKEN, correction=corr("mis_seq", cap=3.0)),
    "rc_mis_token": Setup(HIGHER, TOKEN, correction=corr("mis_token", cap=3.0)),
    "rc_icepop": Setup(HIGHER, TOKEN, correction=corr("icepop", low=0.5, high=5.0)),
    "rc_geo_rs": Setup(HIGHER, TOKEN_KEEP, correction=corr("geo_rs", low=0.9, high=1.2)),
    "rc_geo_rs_verl": Setup(HIGHER, TOKEN, correction=corr("geo_rs", low=0.9, high=1.2)),
    "bypass_ppo": Setup(HIGHER, TOKEN, correction=corr("none", bypass=True)),
    "bypass_reinforce_tis": Setup(
        obj("reinforce"), TOKEN, correction=corr("tis_token", cap=2.0, bypass=True)
    ),
    "opsm": Setup(HIGHER, TOKEN, correction=corr("opsm", delta=0.5)),
    "trl_default_vllm": Setup(
        PPO,
        TOKEN,
        correction=corr("mis_seq", cap=3.0),
        advantage=Advantage(scale="group", ddof=1, epsilon=1e-4),
    ),
    "verl_default": Setup(
        obj("clip", low=0.2, high=0.2, dual_clip=3.0),
        TOKEN,
        advantage=Advantage(scale="group", ddof=1, epsilon=1e-6),
    ),
    "scalerl": Setup(
        obj("cispo", ratio_max=5.0),
        agg("prompt_mean"),
        advantage=Advantage(scale="batch_centred", ddof=0, epsilon=0.0),
    ),
}

# Each case's advantage estimator. Lengths are those of the base inputs, the same in every group.
ADVANTAGE_SETUPS = {
    "group_std_ddof0": Advantage(scale="group", ddof=0, epsilon=0.0),
    "group_std_trl": Advantage(scale="group", ddof=1, epsilon=1e-4),
    "group_std_verl": Advantage(scale="group", ddof=1, epsilon=1e-6),
    "group_std_oat": Advantage(scale="group", ddof=1, epsilon=1e-8),
    "none": Advantage(scale="none"),
    "batch_std_trl": Advantage(scale="batch", ddof=1, epsilon=1e-4),
    "batch_std_adv_ddof0": Advantage(scale="batch_centred", ddof=0, epsilon=0.0),
    "rloo": Advantage(baseline="leave_one_out", scale="none"),
    "reinforcepp_baseline_verl": Advantage(baseline="group_mean", scale="batch_tokens"),
    "reinforcepp_verl": Advantage(baseline="none", scale="batch_tokens"),
    "maxrl": Advantage(scale="mean", epsilon=0.0),
    "opo": Advantage(baseline="length_weighted", scale="none"),
    # The runner has one reward; the case sums its two before the group sees them.
    "sum_then_normalize_trl": Advantage(scale="group", ddof=1, epsilon=1e-4),
    # DAPO keeps the groups with contrast: those whose advantages are not all zero.
    "dynamic_sampling_keep": Advantage(scale="none"),
}


@dataclass(frozen=True)
class Flat:
    """A golden case as tokens laid end to end. `place_T` is each token's place in `leaf`."""

    leaf: Tensor
    place_T: Tensor
    old_T: Tensor
    ref_T: Tensor
    sampler_T: Tensor
    adv_N: Tensor
    seq_T: Tensor
    length_N: Tensor
    trained_N: Tensor
    prompt_N: Tensor
    mask: Tensor

    @property
    def logp_T(self) -> Tensor:
        return self.leaf[self.place_T]


def flatten(name: str, setup: Setup, dtype: torch.dtype) -> Flat:
    """The case without its padding, which is NaN before it is dropped."""
    case = CASES[name]
    inputs = GOLDEN["inputs"][case["inputs"]]
    mask = torch.tensor(inputs["mask"]).bool()
    rewards = case["params"].get("rewards", [inputs.get("rewards")])
    prompts = len(rewards)

    def flat(key: str) -> Tensor:
        padded = torch.tensor(inputs[key], dtype=dtype).where(mask, math.nan)
        return padded[mask].repeat(prompts)

    length_N = mask.sum(1).repeat(prompts)
    prompt_N = torch.arange(prompts).repeat_interleave(len(mask))
    if setup.advantage is None:
        adv_N = torch.tensor(case["advantages"], dtype=dtype)
    else:
        reward_N = torch.tensor(rewards, dtype=dtype).flatten()
        adv_N = advantages(reward_N, prompt_N, setup.advantage, length_N=length_N)
        if case["advantages"] is not None:
            given = torch.tensor(case["advantages"], dtype=dtype)
            assert torch.allclose(adv_N, given, atol=1e-9 if dtype == torch.float64 else 2e-6)
    trained_N = length_N.clone()
    trained_N[case["params"].get("truncated", [])] = 0
    num_tokens = int(mask.sum())
    leaf = flat("logp")[:num_tokens].requires_grad_()
    old_T = flat("logp") if setup.on_policy else flat("old_logp")
    return Flat(
        leaf=leaf,
        place_T=torch.arange(num_tokens).repeat(prompts),
        old_T=flat("rollout_logp") if setup.correction.bypass else old_T,
        ref_T=flat("ref_logp"),
        sampler_T=flat("rollout_logp"),
        adv_N=adv_N,
        seq_T=torch.arange(len(length_N)).repeat_interleave(length_N),
        length_N=length_N,
        trained_N=trained_N,
        prompt_N=prompt_N,
        mask=mask,
    )


def correction_of(x: Flat, setup: Setup) -> Any:
    return correct(
        setup.correction, x.logp_T.detach(), x.old_T, x.sampler_T, x.adv_N, x.seq_T, len(x.length_N)
    )


def run(
    name: str, setup: Setup, dtype: torch.dtype, micro_batch: int
) -> tuple[float, Tensor, dict[str, Metric]]:
    """Loss, padded gradient and merged metrics of one optimizer step in micro-batches."""
    x = flatten(name, setup, dtype)
    trained_N = x.trained_N.masked_fill(correction_of(x, setup).rejected_N, 0)
    weight_N = weights(
        trained_N,
        setup.aggregate,
        max_tokens=99,
        full_length_N=x.length_N,
        prompt_N=x.prompt_N,
    )
    nll_weight_N = None
    if setup.positive_nll:
        right_N = torch.zeros_like(x.length_N)
        right_N[CASES[name]["params"]["correct"]] = 1
        nll_weight_N = setup.positive_nll / (right_N * x.length_N).sum() * right_N.double()
    total, metrics = 0.0, {}
    for start in range(0, len(x.length_N), micro_batch):
        rows = slice(start, start + micro_batch)
        here_T = (x.seq_T >= start) & (x.seq_T < start + micro_batch)
        tokens = Tokens(
            logp_T=x.logp_T[here_T],
            old_logp_T=x.old_T[here_T],
            adv_N=x.adv_N[rows],
            seq_T=x.seq_T[here_T] - start,
            length_N=x.length_N[rows],
        )
        loss, token_loss = weighted_loss(
            setup.parts,
            tokens,
            weight_N=weight_N[rows],
            ref_logp_T=x.ref_T[here_T],
            sampler_logp_T=x.sampler_T[here_T],
            nll_weight_N=None if nll_weight_N is None else nll_weight_N[rows],
        )
        loss.backward()
        total += loss.item()
        for key, metric in token_loss.metrics.items():
            metrics[key] = metrics.get(key, Metric(0, 0)) + metric
    grad = torch.zeros(x.mask.shape, dtype=dtype)
    grad[x.mask] = x.leaf.grad
    return total, grad, metrics


def test_every_case_is_run_or_listed() -> None:
    cases = CASES.keys() | ADVANTAGE_CASES.keys()
    run_here = SETUPS.keys() | ADVANTAGE_SETUPS.keys()
    assert len(CASES) == 48
    assert len(ADVANTAGE_CASES) == 16
    assert len(NOT_OFFERED) <= 4
    assert not run_here & NOT_OFFERED.keys()
    assert run_here | NOT_OFFERED.keys() == cases
    assert all(NOT_OFFERED.values())


def test_every_group_of_the_file_is_run_or_listed() -> None:
    run_here = {
        "inputs",
        "policy_loss_cases",
        "advantage_cases",
        "gae",
        "onpolicy_token_weight",
        "kl_tokenwise",
        "kl_expectation",
        "entropy",
        "mismatch_metrics",
        "r3_gating",
        "reward_cases.soft_overlong",
        "reward_cases.soft_overlong_small",
        "reward_cases.rpt_prefix",
        "reward_cases.dsmath_v2_generator",
        "misc.pass_at_k",
    }
    nested = {"reward_cases", "misc"}
    groups = GOLDEN.keys() - nested - {"meta"}
    # `gt_note` is a remark, not a case.
    groups |= {f"{key}.{name}" for key in nested for name in GOLDEN[key] if name != "gt_note"}
    assert run_here | GROUPS_NOT_OFFERED.keys() == groups


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
@pytest.mark.parametrize("name", SETUPS)
def test_loss_and_gradient(name: str, micro_batch: int) -> None:
    expected = CASES[name]["expected"]
    loss, grad, _ = run(name, SETUPS[name], torch.float64, micro_batch)
    assert abs(loss - expected["loss"]) < 1e-7
    want = torch.tensor(expected["grad_logp"], dtype=torch.float64)
    assert (grad - want).abs().max() < 1e-7


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
@pytest.mark.parametrize("name", SETUPS)
def test_loss_and_gradient_in_float32(name: str, micro_batch: int) -> None:
    expected = CASES[name]["expected"]
    loss, grad, _ = run(name, SETUPS[name], torch.float32, micro_batch)
    assert abs(loss - expected["loss"]) < 2e-6 * max(1, abs(expected["loss"]))
    want = torch.tensor(expected["grad_logp"], dtype=torch.float64)
    assert ((grad.double() - want).abs() / want.abs().clamp(min=1)).max() < 2e-6


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_clip_fractions_do_not_depend_on_micro_batches(micro_batch: int) -> None:
    _, _, metrics = run("grpo", SETUPS["grpo"], torch.float64, micro_batch)
    for side in ("low", "high"):
        want = CASES["grpo"]["expected"][f"clip_{side}_frac"]
        assert metrics[f"ratio/clipped_{side}_frac"].value == pytest.approx(want)


@pytest.mark.parametrize("name", [n for n in SETUPS if "weights" in CASES[n]["expected"]])
def test_correction_weights(name: str) -> None:
    x = flatten(name, SETUPS[name], torch.float64)
    correction = correction_of(x, SETUPS[name])
    weight_T = correction.weight_T.masked_fill(correction.rejected_N[x.seq_T], 0)
    want = torch.tensor(CASES[name]["expected"]["weights"], dtype=torch.float64)[x.mask]
    assert not correction.weight_T.requires_grad
    assert (weight_T - want).abs().max() < 1e-9


def test_opsm_drops_the_negative_sequence_that_went_off_policy() -> None:
    x = flatten("opsm", SETUPS["opsm"], torch.float64)
    keep_N = torch.tensor(CASES["opsm"]["expected"]["keep"])[:, 0]
    assert torch.equal(correction_of(x, SETUPS["opsm"]).weight_T, keep_N[x.seq_T].double())


@pytest.mark.parametrize(
    ("key", "name", "advantage"),
    [
        ("grpo", "grpo", "A_std"),
        ("dapo_token_mean", "dapo", "A_std"),
        ("dr_grpo", "dr_grpo", "A_nostd"),
        ("gspo", "gspo", "A_std"),
        ("luspo", "luspo_small", "A_std"),
        ("gmpo", "gmpo", "A_std"),
        ("cispo", "cispo_trl", "A_std"),
        ("sapo", "sapo", "A_std"),
    ],
)
def test_onpolicy_token_weight(key: str, name: str, advantage: str) -> None:
    group, setup = GOLDEN["onpolicy_token_weight"], replace(SETUPS[name], on_policy=True)
    x = flatten(name, setup, torch.float64)
    adv_N = torch.tensor(group[advantage], dtype=torch.float64)
    weight_N = weights(x.length_N, setup.aggregate, max_tokens=99)
    tokens = Tokens(x.logp_T, x.old_T, adv_N, x.seq_T, x.length_N)
    loss, _ = weighted_loss(setup.parts, tokens, weight_N=weight_N)
    loss.backward()
    want = torch.tensor(group[key], dtype=torch.float64)[x.seq_T]
    assert (x.leaf.grad - want).abs().max() < 1e-12


@pytest.mark.parametrize("name", [n for n in ADVANTAGE_SETUPS if n != "dynamic_sampling_keep"])
def test_advantages(name: str) -> None:
    case = ADVANTAGE_CASES[name]
    rewards = torch.tensor(case["rewards"], dtype=torch.float64)
    if name == "sum_then_normalize_trl":
        rewards = rewards.sum(-1)
    groups, size = rewards.shape
    prompt_N = torch.arange(groups).repeat_interleave(size)
    lengths = GOLDEN["inputs"]["base"]["lengths"]
    length_N = torch.tensor(lengths[:size]).repeat(groups)
    got = advantages(rewards.flatten(), prompt_N, ADVANTAGE_SETUPS[name], length_N=length_N)
    want = torch.tensor(case["expected"], dtype=torch.float64)
    assert (got.view_as(rewards) - want).abs().max() < 1e-9


def test_dynamic_sampling_keeps_groups_with_contrast() -> None:
    case = ADVANTAGE_CASES["dynamic_sampling_keep"]
    rewards = torch.tensor(case["rewards"], dtype=torch.float64)
    prompt_N = torch.arange(len(rewards)).repeat_interleave(rewards.shape[1])
    got = advantages(rewards.flatten(), prompt_N, ADVANTAGE_SETUPS["dynamic_sampling_keep"])
    assert got.view_as(rewards).any(1).double().tolist() == case["expected"]


@pytest.mark.parametrize(
    ("kind", "key"), [("k2", "k2"), ("k3", "k3"), ("k3_plus", "k3"), ("k3_weighted", "k3")]
)
def test_kl_tokenwise(kind: str, key: str) -> None:
    case = GOLDEN["kl_tokenwise"]
    mask = torch.tensor(case["mask"]).bool()
    logp_T, ref_T, want_T = (
        torch.tensor(case[k], dtype=torch.float64)[mask] for k in ("lp", "ref", key)
    )
    # With the policy unmoved the ratio of k3_weighted is 1.
    assert (kl_estimate(kind, logp_T, ref_T, logp_T) - want_T).abs().max() < 1e-12


def enumerated(kind: str) -> tuple[Tensor, Tensor]:
    """Value and gradient on the logits, in exact expectation, of the estimator used as a loss."""
    case = GOLDEN["kl_expectation"]
    logits_V = torch.tensor(case["pi"], dtype=torch.float64).log().requires_grad_()
    ref_V = torch.tensor(case["ref"], dtype=torch.float64).log()
    logp_V = logits_V.log_softmax(0)
    prob_V, old_V = logp_V.detach().exp(), logp_V.detach()
    value = (prob_V * kl_estimate(kind, logp_V, ref_V, old_V)).sum()
    (grad_V,) = torch.autograd.grad(value, logits_V)
    return value.detach(), grad_V


@pytest.mark.parametrize(
    ("kind", "value", "grad"),
    [
        ("k2", "E_k2", "E_grad_k2"),
        ("k3", "E_k3", "E_grad_k3"),
        ("k3_plus", "E_k3", "E_grad_k2"),
        ("k3_weighted", "E_ratio_k3", "E_grad_ratio_k3"),
    ],
)
def test_kl_expectation(kind: str, value: str, grad: str) -> None:
    case = GOLDEN["kl_expectation"]
    got_value, got_grad = enumerated(kind)
    assert got_value.item() == pytest.approx(case[value], abs=1e-12)
    assert (got_grad - torch.tensor(case[grad], dtype=torch.float64)).abs().max() < 1e-12
    direction = "forward" if kind == "k3" else "reverse"
    true = torch.tensor(case[f"grad_{direction}_kl"], dtype=torch.float64)
    assert (got_grad - true).abs().max() < 1e-12


def test_kl_in_the_reward_in_expectation() -> None:
    case = GOLDEN["kl_expectation"]
    logits_V = torch.tensor(case["pi"], dtype=torch.float64).log().requires_grad_()
    ref_V = torch.tensor(case["ref"], dtype=torch.float64).log()
    logp_V = logits_V.log_softmax(0)
    prob_V, old_V = logp_V.detach().exp(), logp_V.detach()
    k1_V = kl_estimate("k1_reward", logp_V, ref_V, old_V).detach()
    assert (prob_V * k1_V).sum().item() == pytest.approx(case["E_k1"], abs=1e-12)
    # One token per answer: the reward of answer v loses k1_v, so its advantage is -k1_v.
    tokens = Tokens(logp_V, old_V, -k1_V, torch.arange(3), torch.ones(3, dtype=torch.long))
    setup = Setup(obj("reinforce"), TOKEN)
    loss, _ = weighted_loss(setup.parts, tokens, weight_N=prob_V)
    (grad_V,) = torch.autograd.grad(loss, logits_V)
    want_V = torch.tensor(case["E_grad_k1_in_reward"], dtype=torch.float64)
    assert (grad_V - want_V).abs().max() < 1e-12


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_entropy(temperature: float) -> None:
    case = GOLDEN["entropy"]
    # Logits that the temperature brings back to those of the case.
    hidden = torch.tensor(case["logits"], dtype=torch.float64) * temperature
    hidden_TD = hidden.requires_grad_()
    head = torch.nn.Linear(3, 3, bias=False, dtype=torch.float64)
    head.weight = torch.nn.Parameter(torch.eye(3, dtype=torch.float64), requires_grad=False)
    ids_T = torch.tensor([0, 1, 2])
    logp_T, entropy_T = chosen_logprob(hidden_TD, head, ids_T, temperature, entropy_grad=True)
    want_T = torch.tensor(case["entropy"], dtype=torch.float64)
    assert (entropy_T.detach() - want_T).abs().max() < 1e-12

    parts = replace(
        SETUPS["reinforce"].parts, entropy=made(Entropy, "bonus", coef=case["bonus_coef"])
    )
    one_N = torch.ones(3, dtype=torch.long)
    tokens = Tokens(logp_T, logp_T.detach(), torch.zeros(3).double(), torch.arange(3), one_N)
    loss, _ = weighted_loss(
        parts,
        tokens,
        weight_N=torch.full((3,), 1 / 3, dtype=torch.float64),
        entropy_T=entropy_T,
        entropy_weight=1 / 3,
    )
    assert loss.item() == pytest.approx(case["loss_term"], abs=1e-12)
    loss.backward()
    want = torch.tensor(case["grad_logits"], dtype=torch.float64) / temperature
    assert (hidden_TD.grad - want).abs().max() < 1e-12


@pytest.mark.parametrize("group", ["soft_overlong", "soft_overlong_small"])
def test_soft_overlong(group: str) -> None:
    for case in GOLDEN["reward_cases"][group]:
        settings = SoftOverlong(cache_frac=case["L_cache"] / case["L_max"])
        got = length_penalty(
            torch.tensor([case["length"]]), torch.tensor([False]), settings, case["L_max"]
        )
        assert got.item() == pytest.approx(case["expected"], abs=1e-12)


@pytest.mark.parametrize(("marker", "frame"), [(None, "\\boxed{%s}"), ("#", "#%s")])
def test_rpt_prefix(marker: str | None, frame: str) -> None:
    verifier = load_verifier("next_token", verifiers_dir())
    for case in GOLDEN["reward_cases"]["rpt_prefix"]:
        tokens = case["continuation_tokens"]
        ends = list(accumulate(len(token.encode()) for token in tokens))
        reference = json.dumps({"text": "".join(tokens), "ends": ends, "marker": marker})
        verdict = verifier(f"<think>{frame % 'no'}</think>{frame % case['prediction']}", reference)
        assert (verdict.status, verdict.score) == (Status.OK, case["expected"]), case


def test_dsmath_v2_generator() -> None:
    for case in GOLDEN["reward_cases"]["dsmath_v2_generator"]:
        # A meta-verifier's score is a factor of the honesty term, and so of its weight.
        weight = case["beta"] * case["R_meta"]
        settings = JudgedSelfVerify(answer_weight=case["alpha"], honesty_weight=weight)
        said = case["s_self"] if case["R_format"] else None
        got = judged_reward(case["R_Y"], said, settings)
        assert got == pytest.approx(case["expected"], abs=1e-7)


def test_mismatch_metrics() -> None:
    expected = GOLDEN["mismatch_metrics"]["expected"]
    x = flatten("rc_icepop", SETUPS["rc_icepop"], torch.float64)
    metrics = correction_of(x, SETUPS["rc_icepop"]).metrics
    log_rho_T = x.old_T - x.sampler_T
    log_rho_N = torch.zeros(4, dtype=torch.float64).index_add(0, x.seq_T, log_rho_T)
    assert effective_sample_size(log_rho_N) == pytest.approx(expected["ess_seq_normalised"])
    # chi2 = mean rho^2 - 1, so the ESS of the tokens is mean(rho)^2 / (chi2 + 1).
    assert effective_sample_size(log_rho_T) == pytest.approx(
        log_rho_T.exp().mean().item() ** 2 / (expected["chi2_token"] + 1)
    )
    assert metrics["correction/modified_frac"].value == pytest.approx(
        expected["frac_icepop_masked"]
    )
    # k3 = mean(rho - 1) - mean(log rho), and the mean of log rho is minus the KL of the case.
    assert metrics["correction/weight_mean"].value == pytest.approx(
        1 + expected["k3"] - expected["kl_rollout_train"]
    )


def test_r3_gating() -> None:
    case = GOLDEN["r3_gating"]
    train_E, infer_E, replay_E = (
        torch.tensor(case[key], dtype=torch.float64)
        for key in ("train_scores", "infer_scores", "gate_replay")
    )
    for chosen_by, want_E in (
        (infer_E, replay_E),
        (train_E, torch.tensor(case["gate_train_own"], dtype=torch.float64)),
    ):
        experts_K = chosen_by.topk(case["k"]).indices
        logits_E = train_E.clone().requires_grad_()
        gate_K = replayed_gate(logits_E[None], experts_K[None], renormalised=True)[0]
        got_E = torch.zeros_like(train_E).scatter(0, experts_K, gate_K.detach())
        assert (got_E - want_E).abs().max() < 1e-7
        # The gradient of a softmax over the recorded experts, through the current logits.
        (grad_E,) = torch.autograd.grad(gate_K[0], logits_E)
        first_E = torch.zeros_like(train_E)
        first_E[experts_K[0]] = 1
        assert (grad_E - want_E[experts_K[0]] * (first_E - want_E)).abs().max() < 1e-7


def test_pass_at_k() -> None:
    for case in GOLDEN["misc"]["pass_at_k"]:
        assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["expected"])


def test_gae_for_policy_and_critic() -> None:
    case = GOLDEN["gae"]
    mask = torch.tensor(case["mask"]).bool()
    length_N = mask.sum(1)

    def flat(padded: list[list[float]]) -> Tensor:
        return torch.tensor(padded, dtype=torch.float64)[mask]

    reward_T, value_T = flat(case["rewards"]), flat(case["values"])
    for name, lam in (("critic_lambda_1", 1.0), ("policy_lambda_095", 0.95)):
        lambda_N = torch.full((len(length_N),), lam, dtype=torch.float64)
        adv_T = gae(reward_T, value_T, length_N, case["gamma"], lambda_N)
        assert (adv_T - flat(case[name]["advantages"])).abs().max() < 1e-7
        if "returns" in case[name]:
            assert (adv_T + value_T - flat(case[name]["returns"])).abs().max() < 1e-7
        else:
            want = flat(case[name]["whitened_verl"])
            assert (whitened(adv_T) - want).abs().max() < 1e-7


def test_length_adaptive_lambda() -> None:
    case = GOLDEN["gae"]["length_adaptive"]
    settings = ValueCritic(length_alpha=case["alpha"])
    found = policy_lambda(torch.tensor(case["lengths"]), settings)
    assert found.tolist() == pytest.approx(case["lam_clamped"], abs=1e-7)


def test_clipped_value_loss() -> None:
    case = GOLDEN["gae"]["value_loss"]
    mask = torch.tensor(GOLDEN["gae"]["mask"]).bool()
    value, old, target = (
        torch.tensor(case[key], dtype=torch.float64)[mask]
        for key in ("vpreds", "old_values", "returns")
    )
    loss_T, stopped_T = value_loss(value, old, target, case["cliprange_value"])
    assert float(loss_T.mean()) == pytest.approx(case["expected_half_token_mean"], abs=1e-7)
    assert float(stopped_T.double().mean()) == pytest.approx(case["clipfrac"], abs=1e-7)
