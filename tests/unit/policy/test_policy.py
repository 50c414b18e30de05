"""Log-probabilities, adapters and loading."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from grpo_cli.errors import GrpoError
from grpo_cli.policy import logprob
from grpo_cli.policy.policy import Policy, load_policy
from grpo_cli.policy.source import model_fingerprint
from grpo_cli.policy.state import load_adapter, load_optimizer, save_adapter, save_optimizer
from grpo_cli.recipe.schema import Lora, Model
from grpo_cli.tiny import TINY_DIR


@pytest.mark.parametrize("chunk_logits", [1, 30, 2**24])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chosen_logprob_is_log_softmax(
    monkeypatch: pytest.MonkeyPatch, chunk_logits: int, temperature: float
) -> None:
    monkeypatch.setattr(logprob, "_CHUNK_LOGITS", chunk_logits)
    torch.manual_seed(0)
    head = torch.nn.Linear(16, 11).double().requires_grad_(False)
    hidden = torch.randn(7, 16, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(11, (7,))
    got, entropy = logprob.chosen_logprob(hidden, head, ids, temperature)
    full = (head(hidden) / temperature).log_softmax(-1)
    assert torch.allclose(got, full.gather(-1, ids[:, None])[:, 0], atol=1e-12)
    assert torch.allclose(entropy, -(full.exp() * full).sum(-1), atol=1e-12)
    upstream = torch.randn(7, dtype=torch.float64)
    (want_grad,) = torch.autograd.grad(
        (full.gather(-1, ids[:, None])[:, 0] * upstream).sum(), hidden
    )
    (grad,) = torch.autograd.grad((got * upstream).sum(), hidden)
    assert torch.allclose(grad, want_grad, atol=1e-12)


def rows(policy: Policy, prompts, texts: list[str]) -> tuple[list, list]:
    ids = [policy.render(p.messages) for p in prompts[: len(texts)]]
    return ids, [tuple(policy.tokenizer(t, add_special_tokens=False)["input_ids"]) for t in texts]


def test_logprobs_equal_the_whole_models(policy: Policy, prompts) -> None:
    prompt_ids, completion_ids = rows(policy, prompts, ["1+2=3#3", "#7", "12+30=42;42-1=41#41"])
    got_T, _ = policy.logprobs("arm0", prompt_ids, completion_ids, 0.9)
    parts = []
    for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
        with policy.using("arm0"):
            logits = policy.causal(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
        logp = (logits / 0.9).log_softmax(-1)[len(prompt) - 1 : -1]
        parts.append(logp.gather(-1, torch.tensor(completion)[:, None])[:, 0])
    assert (got_T - torch.cat(parts)).abs().max() < 1e-5


def test_logits_exist_for_completion_tokens_only(
    policy: Policy, prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = logprob.F.linear

    def spy(x, weight, bias=None):
        if weight.shape == policy.head.weight.shape:
            seen.append(x.shape[0])
        return real(x, weight, bias)

    monkeypatch.setattr(logprob.F, "linear", spy)
    prompt_ids, completion_ids = rows(policy, prompts, ["1+2=3#3", "#7"])
    policy.logprobs("arm0", prompt_ids, completion_ids, 1.0)
    assert sum(seen) == sum(len(c) for c in completion_ids)


def test_a_fresh_adapter_is_the_base(policy: Policy, prompts) -> None:
    prompt_ids, completion_ids = rows(policy, prompts, ["1+2=3#3", "#7"])
    base, _ = policy.logprobs(None, prompt_ids, completion_ids, 1.0)
    fresh, _ = policy.logprobs("arm1", prompt_ids, completion_ids, 1.0)
    changed, _ = policy.logprobs("arm0", prompt_ids, completion_ids, 1.0)
    assert torch.equal(base, fresh)
    assert (base - changed).abs().max() > 1e-3


def test_training_one_adapter_leaves_the_rest_alone(policy: Policy, prompts) -> None:
    def snapshot() -> dict[str, torch.Tensor]:
        return {n: p.detach().clone() for n, p in policy.peft.named_parameters()}

    before = snapshot()
    parameters = policy.parameters("arm0")
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-2)
    prompt_ids, completion_ids = rows(policy, prompts, ["1+2=3#3", "#7"])
    logp_T, _ = policy.logprobs("arm0", prompt_ids, completion_ids, 1.0)
    logp_T.sum().backward()
    optimizer.step()
    after = snapshot()
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert moved
    assert all(".arm0." in name for name in moved)


def test_adapter_init_depends_on_the_seed_and_leaves_global_randomness(policy: Policy) -> None:
    state = torch.random.get_rng_state()
    policy.add_adapter("seed1", Lora(), 1)
    assert torch.equal(state, torch.random.get_rng_state())
    one, zero = policy.parameters("seed1"), policy.parameters("arm1")
    name = next(n for n in one if "lora_A" in n)
    assert not torch.equal(one[name], zero[name])
    policy.add_adapter("again", Lora(), 1)
    assert torch.equal(policy.parameters("again")[name], one[name])


def test_saved_adapter_loads_in_peft(policy: Policy, prompts, tmp_path: Path) -> None:
    save_adapter(tmp_path, policy, "arm0", "tiny")
    base = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
    other = PeftModel.from_pretrained(base, str(tmp_path)).eval()
    ids = torch.tensor([policy.render(prompts[0].messages)])
    with torch.no_grad(), policy.using("arm0"):
        assert torch.allclose(other(input_ids=ids).logits, policy.causal(input_ids=ids).logits)


def test_adapter_and_optimizer_come_back_to_the_bit(policy: Policy, tmp_path: Path) -> None:
    parameters = policy.parameters("arm0")
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-2)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    save_adapter(tmp_path, policy, "arm0", "tiny")
    save_optimizer(tmp_path / "o.safetensors", optimizer, parameters)
    load_adapter(tmp_path, policy, "arm1")
    other = policy.parameters("arm1")
    again = torch.optim.AdamW(other.values(), lr=1e-2)
    load_optimizer(tmp_path / "o.safetensors", again, other)
    for parameter in other.values():
        parameter.grad = torch.ones_like(parameter)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    again.step()
    assert all(torch.equal(parameters[n], other[n]) for n in parameters)


def test_loading_an_adapter_of_another_rank_is_refused(policy: Policy, tmp_path: Path) -> None:
    policy.add_adapter("thin", Lora(rank=4), 0)
    save_adapter(tmp_path, policy, "thin", "tiny")
    with pytest.raises(GrpoError, match="GR204"):
        load_adapter(tmp_path, policy, "arm0")


def test_unknown_target_layers_are_refused(policy: Policy) -> None:
    with pytest.raises(GrpoError, match=r"GR201.*lora\.targets"):
        policy.add_adapter("bad", Lora(targets=("no_such_layer",)), 0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "model.safetensors").unlink(), "has no weights"),
        (lambda d: (d / "config.json").unlink(), "has no config.json"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\0" * 40), "cannot be loaded"),
        (lambda d: (d / "config.json").write_text("{"), "cannot be loaded"),
    ],
)
def test_a_spoilt_model_folder_is_one_clear_error(tmp_path: Path, spoil, message: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_DIR, folder)
    spoil(folder)
    with pytest.raises(GrpoError, match=f"GR201.*{message}"):
        load_policy(Model(id=str(folder)), "cpu")


def test_an_unknown_hub_id_says_what_to_pass() -> None:
    with pytest.raises(GrpoError) as caught:
        load_policy(Model(id="nobody/no-such-model"), "cpu")
    assert "model.id=DIR" in caught.value.problems[0].hint


def test_a_model_without_chat_template_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_DIR, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(GrpoError, match="no chat template"):
        load_policy(Model(id=str(folder)), "cpu")


def test_the_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_DIR, folder)
    before = model_fingerprint(Model(id=str(folder)))
    assert before == model_fingerprint(Model(id="tiny"))
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert model_fingerprint(Model(id=str(folder))) != before


def test_logits_scaled_after_the_projection_are_refused(policy: Policy) -> None:
    class Capped(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner, self.base_model = inner, inner.base_model
            self.generation_config = inner.generation_config

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.inner.get_output_embeddings()

        def forward(self, input_ids):
            out = self.inner(input_ids=input_ids)
            out.logits = 2 * torch.tanh(out.logits / 2)
            return out

    base = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
    with pytest.raises(GrpoError, match="changes its logits"):
        Policy(Capped(base), policy.tokenizer, torch.device("cpu"))
