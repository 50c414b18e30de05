"""Top-k and top-p in the sampler, and the renormalisation over what they kept in the learner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from grpo_cli.errors import GrpoError
from grpo_cli.policy import logprob
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.choose import require_support
from grpo_cli.rollout.collect import score
from grpo_cli.rollout.engine import Request
from grpo_cli.rollout.transformers_engine import TransformersEngine
from grpo_cli.seeds import sample_seed, seed63
from grpo_cli.support import Support, joined_support, kept_tokens, support_scalars
from grpo_cli.types import Completion, RolloutGroup, ScoredGroup, Status, Verdict
from tests.unit.test_update import SMALL, run

MASK = ("sampling.top_p=0.9", "sampling.top_k=5", "sampling.keep_sampling_mask=true")


def plain(logits: Sequence[float], top_p: float, top_k: int | None) -> list[int]:
    """The kept ids, one token at a time."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    total = math.fsum(math.exp(logits[i]) for i in order)
    kept: list[int] = []
    for i in order:
        if top_p == 1 or math.fsum(math.exp(logits[j]) for j in kept) < top_p * total:
            kept.append(i)
    return sorted(kept)


def kept_ids(logits: Sequence[float], top_p: float, top_k: int | None) -> list[int]:
    mask_RV = kept_tokens(
        torch.tensor([logits]), torch.tensor([top_p]).double(), torch.tensor([top_k or len(logits)])
    )
    return mask_RV[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.37, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("top_k", [None, 2, 3, 12, 50])
def test_truncation_is_the_plain_one(top_p: float, top_k: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 5.0):
        for _ in range(10):
            logits = (scale * torch.randn(12, generator=generator)).tolist()
            logits[3] = logits[7] = logits[1]  # ties
            assert kept_ids(logits, top_p, top_k) == plain(logits, top_p, top_k)


@pytest.mark.parametrize(
    ("logits", "top_p", "top_k", "kept"),
    [
        ([0, 0, 0, 0], 0.5, None, [0, 1]),  # reached exactly
        ([0, 0, 0, 0], 0.51, None, [0, 1, 2]),
        ([0, 0, 0, 0], 0.5, 2, [0]),  # the share is of what top_k left
        ([0, 1, 1, 1], 1.0, 2, [1, 2]),  # of equals the lower ids
        ([0, 9, 0, 0], 1e-9, None, [1]),  # the likeliest stays
        ([0, 200, 0, 0], 1.0, None, [0, 1, 2, 3]),  # 1 cuts nothing, whatever the rounding
        ([-math.inf, 1, 2, -math.inf], 0.99, 3, [1, 2]),
    ],
)
def test_truncation_by_hand(
    logits: list[float], top_p: float, top_k: int | None, kept: list[int]
) -> None:
    assert kept_ids([float(x) for x in logits], top_p, top_k) == kept


def requests(policy: Policy, prompts, **changes) -> list[Request]:
    fields = {"top_p": 0.9, "support": True, **changes}
    return [
        Request(
            policy.render(p.messages), sample_seed(0, 1, p.id, k), "arm0", 30, 1.2, False, **fields
        )
        for p in prompts
        for k in range(2)
    ]


def sampled(policy: Policy, asked: Sequence[Request]) -> list[Completion]:
    return TransformersEngine(policy, batch_rows=24).sample(asked)


@pytest.mark.parametrize("changes", [{}, {"top_p": 1.0, "top_k": 3}, {"top_k": 4, "top_p": 0.7}])
def test_the_learner_finds_the_samplers_logprobs(policy: Policy, prompts, changes) -> None:
    asked = requests(policy, prompts[:8], **changes)
    got = sampled(policy, asked)
    supports = [c.support for c in got]
    sampler_T = torch.tensor([x for c in got for x in c.logp])
    ids = [c.token_ids for c in got]
    contexts = [r.prompt_ids for r in asked]
    logp_T, entropy_T = policy.logprobs("arm0", contexts, ids, 1.2, support=supports)
    assert (logp_T - sampler_T).abs().max() < 1e-5
    # Over the whole vocabulary they are others: what the mask is for.
    whole_T, whole_entropy_T = policy.logprobs("arm0", contexts, ids, 1.2)
    assert (whole_T < sampler_T + 1e-5).all()
    assert (whole_T - sampler_T).abs().max() > 0.1
    assert (entropy_T < whole_entropy_T + 1e-5).all()
    one_T = joined_support(supports).size_T == 1
    assert bool(one_T.any()) == (asked[0].top_p < 1)
    assert not logp_T[one_T].any()
    assert not entropy_T[one_T].any()


def test_the_support_is_the_smallest_set_that_reaches_top_p(policy: Policy, prompts) -> None:
    for request, done in zip(
        asked := requests(policy, prompts[:4]), sampled(policy, asked), strict=True
    ):
        assert done.support is not None
        assert len(done.support.size_T) == len(done.token_ids)
        with torch.no_grad(), policy.using("arm0"):
            ids = torch.tensor([[*request.prompt_ids, *done.token_ids]])
            logits = policy.causal(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        prob_TV = (logits / 1.2).softmax(-1)
        pieces = done.support.ids.split(done.support.size_T.tolist())
        for token, prob_V, kept in zip(done.token_ids, prob_TV, pieces, strict=True):
            assert token in kept
            assert kept.tolist() == sorted(set(kept.tolist()))
            inside = prob_V[kept.long()]
            assert inside.sum() > 0.9 - 1e-4
            assert inside.sum() - inside.min() < 0.9 + 1e-4


def test_tokens_follow_the_renormalised_probabilities(policy: Policy, prompts) -> None:
    prompt_ids = policy.render(prompts[3].messages)
    with torch.no_grad(), policy.using("arm0"):
        logits = policy.causal(input_ids=torch.tensor([prompt_ids])).logits[0, -1] / 5
    kept = plain(logits.tolist(), 0.8, 6)
    prob = torch.zeros_like(logits)
    prob[kept] = logits[kept].softmax(-1)
    assert len(kept) > 2
    count = 4000
    got = sampled(
        policy,
        [
            Request(prompt_ids, seed63("x", k), "arm0", 1, 5.0, top_p=0.8, top_k=6)
            for k in range(count)
        ],
    )
    seen = torch.bincount(torch.tensor([c.token_ids[0] for c in got]), minlength=len(prob)).double()
    error = (seen / count - prob).abs()
    assert (error < 4.5 * (prob * (1 - prob) / count).sqrt() + 1e-9).all()
    assert all(c.support is None for c in got), "not asked for"


def test_a_row_without_truncation_keeps_its_bits_beside_one_with(policy: Policy, prompts) -> None:
    off = requests(policy, prompts[:4], top_p=1.0)
    alone = sampled(policy, off)
    cut = [replace(r, top_k=2) if i % 2 else r for i, r in enumerate(off)]
    together = sampled(policy, cut)
    assert all(c.support is None for c in alone)
    assert together[::2] == alone[::2]
    assert together[1::2] != alone[1::2]


@pytest.mark.parametrize("chunk_logits", [1, 30, 2**24])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_renormalised_logprob_entropy_and_their_gradients(
    monkeypatch: pytest.MonkeyPatch, chunk_logits: int, temperature: float
) -> None:
    monkeypatch.setattr(logprob, "_CHUNK_LOGITS", chunk_logits)
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 11).double().requires_grad_(False)
    hidden = torch.randn(7, 16, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(11, (7,))
    mask = torch.rand(7, 11) < 0.4
    mask[2] = False  # the chosen one alone
    mask[5] = True  # everything
    mask.scatter_(-1, ids[:, None], True)
    support = Support(mask.nonzero()[:, 1].int(), mask.sum(-1).int())
    assert torch.equal(support.mask(11), mask)
    got, entropy = logprob.chosen_logprob(
        hidden, head, ids, temperature, entropy_grad=True, support=support
    )
    full = (head(hidden) / temperature).masked_fill(~mask, -torch.inf).log_softmax(-1)
    want = full.gather(-1, ids[:, None])[:, 0]
    want_entropy = torch.stack(
        [-(row[m].exp() * row[m]).sum() for row, m in zip(full, mask, strict=True)]
    )
    assert torch.allclose(got, want, atol=1e-12)
    assert torch.allclose(entropy, want_entropy, atol=1e-12)
    up, up_entropy = torch.randn(2, 7, dtype=torch.float64)
    (want_grad,) = torch.autograd.grad(
        (want * up).sum() + (want_entropy * up_entropy).sum(), hidden, retain_graph=True
    )
    (grad,) = torch.autograd.grad((got * up).sum() + (entropy * up_entropy).sum(), hidden)
    assert torch.allclose(grad, want_grad, atol=1e-12)
    assert grad[2].abs().max() < 1e-12


def recipe(*sets: str) -> Recipe:
    return load("grpo", sets=[*SMALL, *MASK, "kl.beta=0", *sets]).recipe


def groups(policy: Policy, prompts, chosen: Recipe) -> list[ScoredGroup]:
    """Real completions of `arm0`; every other sample counts as right."""
    found, sampling = [], chosen.sampling
    for prompt in prompts[: sampling.prompts_per_step]:
        ids = policy.render(prompt.messages)
        one = Request(
            ids, 0, "arm0", sampling.max_tokens, 1.0, False, sampling.top_p, sampling.top_k, True
        )
        size = range(sampling.group_size)
        done = sampled(policy, [replace(one, seed=sample_seed(0, 1, prompt.id, k)) for k in size])
        verdicts = tuple(Verdict(float(k % 2), Status.OK) for k in size)
        found.append(score(RolloutGroup(prompt, ids, tuple(done)), chosen, verdicts))
    return found


def with_support(group: ScoredGroup, change) -> ScoredGroup:
    changed = tuple(replace(c, support=change(c)) for c in group.group.completions)
    return replace(group, group=replace(group.group, completions=changed))


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("entropy={kind: bonus, coef: 0.1}",),
        ("kl={beta: 0.1, kind: k3_weighted}", "optim.epochs_per_batch=2"),
        ("kl={beta: 0.05, kind: k1_reward}",),
        ("correction={kind: opsm, delta: 0.1}", "optim.minibatches=2"),
    ],
    ids=lambda s: " ".join(s) or "grpo",
)
def test_micro_batches_change_nothing(policy: Policy, prompts, sets: tuple[str, ...]) -> None:
    scored = groups(policy, prompts, recipe(*sets))
    whole, one = run(policy, recipe(*sets), scored)
    for tokens in (1, 200):
        parts, other = run(policy, recipe(*sets, f"learner.micro_batch_tokens={tokens}"), scored)
        for name in whole:
            assert (whole[name] - parts[name]).abs().max() < 1e-5, name
        for name, value in one.scalars().items():
            assert other.scalars()[name] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True), (
                name
            )


def test_the_reference_and_the_base_share_the_support(policy: Policy, prompts) -> None:
    """With the base itself as the policy every KL is 0; over the whole vocabulary on one side only
    it would be -log of the kept probability."""
    chosen = recipe("kl={beta: 0.1, kind: k3}", "optim.minibatches=1")
    policy.copy_adapter("arm1", "arm0")
    _, result = run(policy, chosen, groups(policy, prompts, chosen))
    scalars = result.scalars()
    assert scalars["policy/kl_ref"] == pytest.approx(0, abs=1e-6)
    assert scalars["policy/kl_base"] == pytest.approx(0, abs=1e-6)


def test_without_the_mask_the_ratio_would_be_biased(policy: Policy, prompts) -> None:
    chosen = recipe("optim.minibatches=1", "correction={kind: none, bypass: true}")
    scored = groups(policy, prompts, chosen)
    _, kept = run(policy, chosen, scored)
    assert kept.scalars()["ratio/mean"] == pytest.approx(1, abs=1e-4)
    _, lost = run(policy, chosen, [with_support(g, lambda c: None) for g in scored])
    assert lost.scalars()["ratio/mean"] < 0.99


def test_one_kept_token_has_no_gradient(policy: Policy, prompts) -> None:
    def alone(completion: Completion) -> Support:
        ids = torch.tensor(completion.token_ids, dtype=torch.int32)
        return Support(ids, torch.ones_like(ids))

    chosen = recipe("optim.minibatches=1", "entropy={kind: bonus, coef: 0.1}")
    _, result = run(
        policy, chosen, [with_support(g, alone) for g in groups(policy, prompts, chosen)]
    )
    assert result.update_norm < 1e-6
    assert result.scalars()["policy/entropy"] == 0


def test_the_metrics_count_positions() -> None:
    def sizes(*counts: int) -> Support:
        size_T = torch.tensor(counts, dtype=torch.int32)
        return Support(torch.zeros(sum(counts), dtype=torch.int32), size_T)

    found = support_scalars([sizes(1, 4), sizes(1)])
    assert found == {"policy/support_mean": 2, "policy/support_one_frac": pytest.approx(2 / 3)}
    assert all(map(math.isnan, support_scalars([]).values()))


@pytest.mark.parametrize(
    "sets",
    [("sampling.top_p=0.9",), ("sampling.top_k=20",), ("sampling.keep_sampling_mask=true",)],
)
def test_truncation_and_mask_go_together(sets: tuple[str, ...]) -> None:
    with pytest.raises(GrpoError, match="keep_sampling_mask") as caught:
        load("grpo", sets=sets)
    assert [p.code for p in caught.value.problems] == ["GR110"]


def test_vllm_does_not_hand_the_support_over() -> None:
    with pytest.raises(GrpoError, match=r"GR241.*kept"):
        require_support(recipe("engine.kind=vllm"))
    require_support(recipe("engine.kind=transformers"))
    require_support(load("grpo", sets=["engine.kind=vllm"]).recipe)
