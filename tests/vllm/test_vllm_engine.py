"""vLLM behind the `Engine` protocol. Each test is a trap that some trainer fell into."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.load import load
from grpo_cli.rollout import vllm_cpu_lora, vllm_lora
from grpo_cli.rollout.canary import Canary
from grpo_cli.rollout.engine import Request, Scoring
from grpo_cli.rollout.vllm_engine import _rank, _start
from grpo_cli.rollout.vllm_lora import AdapterFiles
from grpo_cli.seeds import sample_seed
from grpo_cli.types import Finish
from tests.vllm.conftest import ARMS, Live, move, random_state

# Longer than a block of vLLM's cache, so that it can be cached at all.
LONG = tuple(4 + i % 12 for i in range(64))


def requests(prompts, live: Live, adapters, samples: int = 4, **changes) -> list[Request]:
    fields = {"max_tokens": 40, "temperature": 1.0, **changes}
    return [
        Request(live.policy.render(p.messages), sample_seed(0, 1, p.id, k), adapter, **fields)
        for p in prompts
        for k in range(samples)
        for adapter in adapters
    ]


def gap(live: Live, asked, got, adapter: str | None) -> float:
    """Largest |learner - sampler| over the rows of one adapter."""
    mine = [(r, c) for r, c in zip(asked, got, strict=True) if r.adapter == adapter]
    logp_T, _ = live.policy.logprobs(
        adapter, [r.prompt_ids for r, _ in mine], [c.token_ids for _, c in mine],
        mine[0][0].temperature,
    )  # fmt: skip
    return float((logp_T.detach() - torch.tensor([x for _, c in mine for x in c.logp])).abs().max())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_each_row_of_a_mixed_batch_has_its_own_adapter(live: Live, prompts, temperature) -> None:
    asked = requests(prompts[:6], live, (*ARMS, None), temperature=temperature)
    got = live.engine.sample(asked)
    for adapter in (*ARMS, None):
        assert gap(live, asked, got, adapter) < 1e-4, adapter
    texts = {a: [c.text for r, c in zip(asked, got, strict=True) if r.adapter == a] for a in ARMS}
    assert len({tuple(t) for t in texts.values()}) == 3, "the adapters do differ"


def test_a_sync_is_in_effect_at_once_and_says_its_version(live: Live) -> None:
    asked = [Request(LONG, seed, "arm0", 24, 1.0) for seed in range(4)]
    live.engine.sample(asked)  # fills the prefix cache with the old adapter's keys and values
    move(live.policy, "arm0", 11, size=0.1)
    live.engine.sync("arm0", 7)
    got = live.engine.sample(asked)
    assert gap(live, asked, got, "arm0") < 1e-4
    assert {c.adapter_version for c in got} == {7}


def test_a_push_leaves_the_learners_weights_alone(live: Live) -> None:
    # vLLM folds alpha / rank into the tensors it is given, in place.
    before = {k: p.clone() for k, p in live.policy.parameters("arm1").items()}
    base = {k: p.clone() for k, p in live.policy.causal.state_dict().items()}
    for version in range(3):
        live.engine.sync("arm1", version)
    live.engine.sample([Request(LONG, 0, "arm1", 4, 1.0)])
    assert all(torch.equal(p, before[k]) for k, p in live.policy.parameters("arm1").items())
    assert all(torch.equal(p, base[k]) for k, p in live.policy.causal.state_dict().items())


def test_an_adapter_that_fits_nothing_is_an_error(live: Live) -> None:
    config = live.policy.peft.peft_config["arm0"].to_dict()
    config["target_modules"] = sorted(config["target_modules"])
    tensors = {
        name.replace("model.layers", "model.blocks"): p
        for name, p in live.policy.parameters("arm0").items()
    }
    with pytest.raises(GrpoError, match="fits no module"):
        vllm_lora.push(live.engine._worker, live.engine._ids["arm0"], tensors, config)
    live.engine.sync("arm0", 0)


def test_no_adapter_is_loaded_while_tokens_are_made(live: Live, monkeypatch) -> None:
    manager = live.engine._worker.model_runner.lora_manager
    loads = []
    monkeypatch.setattr(manager, "_load_adapter", lambda request: loads.append(request))
    live.engine.sample([Request(LONG, 0, arm, 12, 1.0) for arm in ARMS])
    assert loads == []


def test_global_random_state_is_neither_read_nor_moved(live: Live) -> None:
    before = random_state()
    asked = [Request(LONG, 5, "arm0", 16, 1.0)]
    first = live.engine.sample(asked)
    live.engine.sync("arm0", 1)
    live.engine.score([Scoring("arm0", LONG[:20], LONG[20:])])
    assert random_state() == before
    torch.manual_seed(12345)
    assert live.engine.sample(asked)[0].token_ids == first[0].token_ids


def test_starting_the_engine_did_not_seed_the_trainer(live: Live) -> None:
    before, after = live.random_states
    assert before == after


def test_a_completion_depends_on_its_seed_alone(live: Live, prompts) -> None:
    asked = requests(prompts[:6], live, ("arm0", "arm1"))
    together = live.engine.sample(asked)
    backwards = live.engine.sample(asked[::-1])[::-1]
    alone = [live.engine.sample([r])[0] for r in asked[::9]]
    assert [c.token_ids for c in backwards] == [c.token_ids for c in together]
    assert [c.token_ids for c in alone] == [c.token_ids for c in together[::9]]


def test_groups_of_neighbouring_prompts_are_not_correlated(live: Live, prompts) -> None:
    # With seed + index, sample 1 of a prompt draws the numbers of sample 0 of the next.
    asked = [
        dataclasses.replace(r, prompt_ids=LONG) for r in requests(prompts[:12], live, ("arm0",))
    ]
    seeds = sorted(r.seed for r in asked)
    assert min(b - a for a, b in itertools.pairwise(seeds)) > 1_000_000
    texts = [c.token_ids for c in live.engine.sample(asked)]
    assert len(set(texts)) > len(texts) * 0.9, "one prompt, many seeds: nearly all differ"


def test_the_engine_wakes_before_it_works(live: Live) -> None:
    live.engine._llm.sleep(level=1)  # a request to a sleeping engine would hang
    assert live.engine._llm.llm_engine.is_sleeping()
    got = live.engine.sample([Request(LONG, 3, "arm0", 8, 1.0)])
    assert got[0].token_ids


def test_a_stop_token_at_the_limit_is_a_stop(live: Live, prompts) -> None:
    asked = requests(prompts[:6], live, ("arm0",), samples=8)
    ended = [
        (r, c)
        for r, c in zip(asked, live.engine.sample(asked), strict=True)
        if c.finish is Finish.STOP and len(c.token_ids) > 2
    ]
    request, whole = ended[0]
    assert whole.token_ids[-1] in live.policy.eos_ids
    exact = dataclasses.replace(request, max_tokens=len(whole.token_ids))
    short = dataclasses.replace(request, max_tokens=len(whole.token_ids) - 1)
    at_limit, cut = live.engine.sample([exact, short])
    assert (at_limit.finish, at_limit.token_ids) == (Finish.STOP, whole.token_ids)
    assert (cut.finish, cut.token_ids) == (Finish.LENGTH, whole.token_ids[:-1])
    assert len(cut.logp) == len(cut.token_ids)


def test_every_declared_end_token_is_a_stop(live: Live, monkeypatch) -> None:
    asked = [Request(LONG, seed, "arm0", 24, 1.0) for seed in range(8)]
    whole = live.engine.sample(asked)
    second = next(c.token_ids[1] for c in whole if len(c.token_ids) > 3)
    monkeypatch.setattr(live.policy, "eos_ids", live.policy.eos_ids | {second})
    ended = [c for c in live.engine.sample(asked) if c.token_ids[-1] == second]
    assert ended
    assert all(c.finish is Finish.STOP for c in ended)


def test_scores_are_the_learners(live: Live) -> None:
    for adapter in (*ARMS, None):
        (sampler,) = live.engine.score([Scoring(adapter, LONG[:40], LONG[40:])])
        learner, _ = live.policy.logprobs(adapter, [LONG[:40]], [LONG[40:]], 1.0)
        assert (torch.tensor(sampler) - learner).abs().max() < 1e-4


def test_the_canary_sees_a_sync_that_did_not_happen(live: Live, monkeypatch) -> None:
    canary = Canary(live.policy, live.engine, [LONG], 1e-3)
    readings = canary.check("arm2")
    assert readings["canary/logp_abs_mean"] < 1e-4
    assert readings["canary/moved"] > 0.01
    move(live.policy, "arm2", 21)
    with pytest.raises(GrpoError, match="weights before the last sync") as caught:
        canary.check("arm2")
    assert caught.value.exit_code == 3
    live.engine.sync("arm2", 1)
    canary.check("arm2")


def test_adapters_through_files_give_the_same(live: Live, monkeypatch) -> None:
    asked = [Request(LONG, seed, "arm0", 24, 1.0) for seed in range(4)]
    live.engine.sync("arm0", 1)
    in_memory = live.engine.sample(asked)
    files = AdapterFiles()
    monkeypatch.setattr(live.engine, "_files", files)
    live.engine.sync("arm0", 2)
    through_files = live.engine.sample(asked)
    assert [c.token_ids for c in through_files] == [c.token_ids for c in in_memory]
    move(live.policy, "arm0", 31)
    live.engine.sync("arm0", 3)
    assert gap(live, asked, live.engine.sample(asked), "arm0") < 1e-4
    files.close()
    monkeypatch.undo()
    live.engine.sync("arm0", 4)


def test_missing_internals_are_named(live: Live, monkeypatch) -> None:
    assert live.engine.mode == "memory"
    assert live.notices == []
    assert vllm_lora.in_memory_problem(live.engine._worker) is None
    monkeypatch.delattr("vllm.lora.lora_model.LoRAModel.from_lora_tensors")
    assert vllm_lora.in_memory_problem(live.engine._worker) == "no from_lora_tensors"


def test_more_adapters_than_slots_is_an_error(live: Live) -> None:
    live.policy.add_adapter("arm3", live.recipe.lora, 3)
    with pytest.raises(GrpoError, match="started for 3 adapters"):
        live.engine.sync("arm3", 0)


def test_a_prompt_without_room_is_an_error_that_says_what_to_set(live: Live) -> None:
    with pytest.raises(GrpoError, match="2000 tokens") as caught:
        live.engine.sample([Request((5,) * 2000, 0, "arm0", 4, 1.0)])
    assert "engine.max_prompt_tokens=2000" in str(caught.value.problems[0].hint)


def test_quantisation_that_vllm_lacks_is_refused_with_its_list(live: Live) -> None:
    recipe = load("dapo", sets=["engine.quantization=int3"]).recipe
    with pytest.raises(GrpoError, match="int3") as caught:
        _start(live.policy, recipe, 1)
    assert "fp8" in str(caught.value.problems[0].hint)


@pytest.mark.parametrize(("rank", "slot"), [(1, 1), (4, 8), (16, 16), (17, 32)])
def test_a_rank_gets_the_smallest_slot_that_holds_it(rank: int, slot: int) -> None:
    assert _rank(rank) == slot


def test_a_rank_above_the_limit_is_an_error() -> None:
    with pytest.raises(GrpoError, match="above vLLM's limit"):
        _rank(513)


@pytest.mark.parametrize("index", [[1, 1, 1, 1], [0, 2, 0, 1], [2, 2, 0, 0]])
def test_the_products_per_adapter_are_vllms_products_per_row(live: Live, index) -> None:
    import importlib.util

    # The functions as vLLM ships them, loaded beside the ones that replaced them.
    spec = importlib.util.find_spec("vllm.lora.ops.torch_ops.lora_ops")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, generator=generator, dtype=torch.bfloat16)
    a = torch.randn(3, 1, 5, 6, generator=generator).bfloat16()
    b = torch.randn(3, 1, 8, 5, generator=generator).bfloat16()
    rows = torch.tensor(index)
    buffers, outs = [], []
    for functions in (theirs, vllm_cpu_lora):
        buffer, out = torch.zeros(4, 5), torch.ones(4, 12, dtype=torch.bfloat16)
        functions.bgmv_shrink(x, a, buffer, rows, 0.5)
        functions.bgmv_expand_slice(buffer, b, out, rows, 2, 8, True)
        functions.bgmv_expand(buffer, b, out, rows, True)
        buffers.append(buffer)
        outs.append(out.float())
    assert torch.allclose(*buffers, atol=1e-5)
    assert torch.allclose(*outs, atol=0.1), "bfloat16 sums in another order"


def test_a_row_without_an_adapter_gets_nothing(live: Live) -> None:
    out = torch.zeros(2, 5)
    index = torch.tensor([-1, 0])
    vllm_cpu_lora.bgmv_shrink(torch.ones(2, 6), torch.ones(1, 5, 6), out, index)
    assert out.tolist() == [[0.0] * 5, [6.0] * 5]
