"""What an engine promises: exact log-probabilities, randomness per sample, honest endings."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from grpo_cli.policy.policy import Policy
from grpo_cli.rollout.engine import Engine, Request
from grpo_cli.rollout.transformers_engine import TransformersEngine, _inverse_cdf
from grpo_cli.seeds import data_index, sample_seed, seed63
from grpo_cli.types import Finish


@pytest.fixture
def engine(policy: Policy) -> Engine:
    return TransformersEngine(policy, batch_rows=24)


def requests(policy: Policy, prompts, samples: int = 4, **changes) -> list[Request]:
    fields = {"adapter": "arm0", "max_tokens": 40, "temperature": 1.0, **changes}
    return [
        Request(policy.render(p.messages), sample_seed(0, 1, p.id, k), **fields)
        for p in prompts
        for k in range(samples)
    ]


@pytest.mark.parametrize("adapter", [None, "arm0", "arm1"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_learner_finds_the_samplers_logprobs(
    policy: Policy, prompts, engine: Engine, adapter: str | None, temperature: float
) -> None:
    asked = requests(policy, prompts[:8], adapter=adapter, temperature=temperature)
    got = engine.sample(asked)
    logp_T, _ = policy.logprobs(
        adapter, [r.prompt_ids for r in asked], [c.token_ids for c in got], temperature
    )
    sampler_T = torch.tensor([x for c in got for x in c.logp])
    assert (logp_T - sampler_T).abs().max() < 1e-5


def test_a_completion_does_not_depend_on_its_neighbours(
    policy: Policy, prompts, engine: Engine
) -> None:
    asked = requests(policy, prompts[:12])
    together = engine.sample(asked)
    order = np.random.default_rng(0).permutation(len(asked))
    shuffled = engine.sample([asked[i] for i in order])
    for place, i in enumerate(order):
        assert shuffled[place].token_ids == together[i].token_ids
    alone = [engine.sample([request])[0] for request in asked[::7]]
    for one, other in zip(alone, together[::7], strict=True):
        assert one.token_ids == other.token_ids
        assert one.logp == pytest.approx(other.logp, abs=1e-5)


def test_several_adapters_in_one_call(policy: Policy, prompts, engine: Engine) -> None:
    asked = [
        dataclasses.replace(request, adapter=adapter)
        for request in requests(policy, prompts[:4], samples=1)
        for adapter in ("arm0", None, "arm1")
    ]
    together = engine.sample(asked)
    for adapter in ("arm0", None, "arm1"):
        mine = [i for i, r in enumerate(asked) if r.adapter == adapter]
        own = engine.sample([asked[i] for i in mine])
        assert [together[i] for i in mine] == own


def test_global_randomness_is_neither_read_nor_moved(
    policy: Policy, prompts, engine: Engine
) -> None:
    asked = requests(policy, prompts[:2])
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 the point is the legacy global state
    state, np_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = engine.sample(asked)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (np_state == np.random.get_state()[1]).all()  # noqa: NPY002
    torch.manual_seed(2)
    assert engine.sample(asked) == first


def test_samples_of_a_group_differ_and_so_do_run_seeds(
    policy: Policy, prompts, engine: Engine
) -> None:
    prompt = prompts[-1]
    asked = [
        Request(policy.render(prompt.messages), sample_seed(s, 1, prompt.id, k), None, 40, 1.5)
        for s in (0, 1)
        for k in range(8)
    ]
    got = [c.token_ids for c in engine.sample(asked)]
    assert len(set(got[:8])) >= 7
    assert set(got[:8]) != set(got[8:])


def test_endings(policy: Policy, prompts, engine: Engine) -> None:
    got = engine.sample(requests(policy, prompts, samples=2, max_tokens=12))
    for completion in got:
        assert len(completion.token_ids) == len(completion.logp) <= 12
        ends = completion.token_ids[-1] in policy.eos_ids
        assert ends == (completion.finish is Finish.STOP)
        assert not policy.eos_ids & set(completion.token_ids[:-1])
        if completion.finish is Finish.LENGTH:
            assert len(completion.token_ids) == 12
    assert {c.finish for c in got} == {Finish.STOP, Finish.LENGTH}


def test_eos_exactly_at_the_limit_is_a_stop(policy: Policy, prompts, engine: Engine) -> None:
    asked = requests(policy, prompts[:8])
    ended = [
        (r, c) for r, c in zip(asked, engine.sample(asked), strict=True) if c.finish is Finish.STOP
    ]
    assert ended
    for request, completion in ended:
        exact = dataclasses.replace(request, max_tokens=len(completion.token_ids))
        short = dataclasses.replace(request, max_tokens=len(completion.token_ids) - 1)
        assert engine.sample([exact])[0].finish is Finish.STOP
        if short.max_tokens:
            assert engine.sample([short])[0].finish is Finish.LENGTH


def test_every_declared_eos_ends_a_completion(policy: Policy, prompts, engine: Engine) -> None:
    asked = requests(policy, prompts[:4])
    common = max(
        (ids := [t for c in engine.sample(asked) for t in c.token_ids[:-1]]), key=ids.count
    )
    policy.eos_ids = policy.eos_ids | {common}
    for completion in engine.sample(asked):
        assert common not in completion.token_ids[:-1]
    assert any(c.token_ids[-1] == common for c in engine.sample(asked))


def test_decoding_stops_when_every_row_is_done(
    policy: Policy, prompts, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    forward = policy.body.forward

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        return forward(*args, **kwargs)

    monkeypatch.setattr(policy.body, "forward", counted)
    got = engine.sample(requests(policy, prompts[:4], max_tokens=200))
    # One call reads the prompts and yields the first token, then one call for each further token.
    assert calls == max(len(c.token_ids) for c in got) < 200


def test_first_tokens_follow_the_policys_probabilities(
    policy: Policy, prompts, engine: Engine
) -> None:
    prompt_ids = policy.render(prompts[3].messages)
    with torch.no_grad(), policy.using("arm0"):
        prob = policy.causal(input_ids=torch.tensor([prompt_ids])).logits[0, -1].softmax(-1)
    count = 4000
    got = engine.sample([Request(prompt_ids, seed63("x", k), "arm0", 1, 1.0) for k in range(count)])
    seen = torch.bincount(torch.tensor([c.token_ids[0] for c in got]), minlength=len(prob)).double()
    error = (seen / count - prob).abs()
    assert (error < 4.5 * (prob * (1 - prob) / count).sqrt() + 1e-3).all()


def test_impossible_tokens_are_never_drawn() -> None:
    logp = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(3, 3)
    assert _inverse_cdf(
        logp, torch.tensor([0.0, 0.5, 1 - 2e-16], dtype=torch.float64)
    ).tolist() == [1, 1, 1]


def test_the_version_is_on_every_completion(policy: Policy, prompts, engine: Engine) -> None:
    engine.sync("arm0", 7)
    engine.sync("arm1", 3)
    got = engine.sample(
        [
            *requests(policy, prompts[:2], adapter="arm0"),
            *requests(policy, prompts[:2], adapter="arm1"),
        ]
    )
    assert [c.adapter_version for c in got] == [7] * 8 + [3] * 8


def test_seeds_do_not_collide_or_move_together() -> None:
    places = itertools.product(range(3), range(5), "abc", range(8))
    seeds = {sample_seed(*place) for place in places}
    assert len(seeds) == 3 * 5 * 3 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed63(1, "23") != seed63("1", 23) != seed63(12, "3")


def test_data_order_is_a_permutation_of_each_epoch() -> None:
    first = [data_index(0, "data", i, 50) for i in range(50)]
    second = [data_index(0, "data", i, 50) for i in range(50, 100)]
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != [data_index(1, "data", i, 50) for i in range(50)]
    assert first != [data_index(0, "refill", i, 50) for i in range(50)]
