"""`Policy`: one frozen base model with a LoRA adapter per arm.

Dims: N sequences, T completion tokens laid end to end, D hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from grpo_cli.errors import GrpoError, error
from grpo_cli.hub import hub_or_cache
from grpo_cli.policy.chat import chat_text, turn_end
from grpo_cli.policy.experts import linear_names, refuse_experts
from grpo_cli.policy.logprob import chosen_logprob, upcast
from grpo_cli.policy.routing import find_routers
from grpo_cli.policy.source import model_path
from grpo_cli.recipe.schema import Learner, Lora, Model
from grpo_cli.seeds import seed63
from grpo_cli.support import Support, joined_support
from grpo_cli.types import Message

_LEARNER = Learner()


class Policy:
    """The base model is loaded once; every arm adds an adapter and trains only that.

    The reference policy of the KL term is the base with all adapters off, so it costs no memory.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device,
        *,
        fp32_head: bool = False,
        thinking: bool | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.thinking = thinking
        self.device = device
        self.causal = model.to(device).eval().requires_grad_(False)
        self.peft: PeftModel | None = None
        self._active: str | None = None
        self.body: torch.nn.Module = model.base_model  # type: ignore[assignment]
        self._projection: torch.nn.Linear = model.get_output_embeddings()  # type: ignore[operator]
        self.head = _in_float32(self._projection) if fp32_head else self._projection
        self.eos_ids = _eos_ids(model, tokenizer)
        self.routers = find_routers(self.body, device)
        """Of a mixture of experts; None for a dense model."""
        self._all_linear = "all-linear" if self.routers is None else linear_names(model)
        self._check_head()

    def _check_head(self) -> None:
        # Some architectures scale or cap their logits after the projection. Then body + head is
        # not the model, and every log-probability would be quietly wrong.
        ids = torch.arange(4, device=self.device)[None] % self.head.weight.shape[0]
        with torch.no_grad():
            want = upcast(self.causal(input_ids=ids).logits)
            got = self.logits(self.body(input_ids=ids).last_hidden_state)
        if not torch.allclose(want, got, rtol=1e-3, atol=1e-3):
            raise error(
                "GR201",
                f"{type(self.causal).__name__} changes its logits after the projection, which this "
                "version cannot train",
                hint="use a Llama, Qwen, Mistral or SmolLM model",
            )

    def add_adapter(self, name: str, lora: Lora, run_seed: int) -> None:
        """A fresh adapter; its start depends on the run seed alone and its output is the base's.

        Raises:
            GrpoError: GR201 when `lora.targets` names no layer of this model.
        """
        targets = self._all_linear if lora.targets == "all-linear" else list(lora.targets)
        if self.routers is not None:
            refuse_experts(self.causal, targets)
        config = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM"
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed63(run_seed, "lora"))
            try:
                if self.peft is None:
                    self.peft = get_peft_model(self.causal, config, adapter_name=name)
                else:
                    self.peft.add_adapter(name, config)
            except ValueError as problem:
                raise error("GR201", f"lora.targets: {problem}") from None
        if self.causal.get_output_embeddings() is not self._projection:  # type: ignore[operator]
            raise error(
                "GR201",
                "lora.targets names the vocabulary projection, which stays frozen here",
                hint="leave it out, or use `all-linear`",
            )
        self.peft.eval()
        self._active = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states (..., D), in float32 or better."""
        return upcast(self.head(hidden.to(self.head.weight.dtype)))

    def environment(self) -> dict[str, str | int | None]:
        """What of this machine decides the bits of a result."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {
            "device": str(self.device),
            "gpu": gpu,
            "cuda": torch.version.cuda,
            "torch_threads": torch.get_num_threads(),
        }

    def memory(self) -> dict[str, float]:
        """The most GPU memory that torch held so far, in GiB; nothing on a CPU."""
        if self.device.type != "cuda":
            return {}
        return {"system/gpu_peak_gib": torch.cuda.max_memory_reserved(self.device) / 2**30}

    def copy_adapter(self, source: str, target: str) -> None:
        """Give one adapter the weights of another of the same shape."""
        into = self.parameters(target)
        with torch.no_grad():
            for name, parameter in self.parameters(source).items():
                into[name].copy_(parameter)

    def parameters(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters of one adapter, by name without the adapter's own name."""
        assert self.peft is not None
        marker = f".{adapter}."
        return {
            name.replace(marker, "."): parameter
            for name, parameter in self.peft.named_parameters()
            if marker in name
        }

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """Run forward passes with one adapter on, or with the bare base model (None)."""
        if self.peft is None or adapter is None:
            if self.peft is None:
                yield
            else:
                with self.peft.disable_adapter():
                    yield
            return
        if self._active != adapter:
            self.peft.set_adapter(adapter)
            self._active = adapter
        yield

    def logprobs(
        self,
        adapter: str | None,
        prompts: Sequence[tuple[int, ...]],
        completions: Sequence[tuple[int, ...]],
        temperature: float,
        *,
        entropy_grad: bool = False,
        support: Sequence[Support] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability (with gradient, if enabled) and entropy of every completion token, (T,).

        Logits exist for completion tokens only. `support` holds the tokens of each completion over
        which both are renormalised; None is the whole vocabulary.
        """
        ids_T = torch.tensor([t for c in completions for t in c], device=self.device)
        return chosen_logprob(
            self.hidden(adapter, prompts, completions).to(self.head.weight.dtype),
            self.head,
            ids_T,
            temperature,
            entropy_grad=entropy_grad,
            support=None if support is None else joined_support(support).to(self.device),
        )

    def hidden(
        self,
        adapter: str | None,
        prompts: Sequence[tuple[int, ...]],
        completions: Sequence[tuple[int, ...]],
    ) -> Tensor:
        """Last hidden state of the position before every completion token, (T, D).

        One forward pass over right-padded rows: under a causal mask padding on the right cannot
        reach a real token, so no attention mask is needed.
        """
        width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
        rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)
        row_T = [i for i, c in enumerate(completions) for _ in c]
        position_T = [
            len(p) + j - 1 for p, c in zip(prompts, completions, strict=True) for j in range(len(c))
        ]
        with self.using(adapter):
            hidden: Tensor = self.body(input_ids=ids, use_cache=False).last_hidden_state
        return hidden[row_T, position_T]

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt token ids of a chat, up to where the assistant starts to write."""
        text = chat_text(self.tokenizer, messages, self.thinking)
        # The template already holds every special token; adding them again would double the BOS.
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion for the verifier and for people; special tokens are left out."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def resolve_device(name: str) -> torch.device:
    """`auto` takes the GPU when there is one.

    Raises:
        GrpoError: GR201 when `cuda` is asked for and absent.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise error("GR201", "device is `cuda`, but no GPU is visible", hint="--set device=cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def load_policy(model: Model, device_name: str, learner: Learner = _LEARNER) -> Policy:
    """Load the base model and its tokenizer.

    Raises:
        GrpoError: GR201 when the model is not there, has no weights, has no chat template, or
            needs code from its repository.
    """
    path = model_path(model)
    try:
        with hub_or_cache():
            config = AutoConfig.from_pretrained(path, revision=model.revision)
            tokenizer = AutoTokenizer.from_pretrained(path, revision=model.revision)
            causal = AutoModelForCausalLM.from_pretrained(
                path,
                revision=model.revision,
                config=config,
                dtype=getattr(torch, learner.dtype),
                use_safetensors=True,
                attn_implementation="sdpa",
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as problem:
        raise _load_error(model, path, problem) from None
    if not tokenizer.chat_template:
        raise error(
            "GR201",
            f"model `{model.id}` has no chat template",
            hint="use an instruct model, or put a chat_template.jinja into its folder",
        )
    return Policy(
        causal,
        tokenizer,
        resolve_device(device_name),
        fp32_head=learner.fp32_head,
        thinking=model.thinking,
    )


def _in_float32(projection: torch.nn.Linear) -> torch.nn.Linear:
    """A float32 copy of a frozen projection; itself when it is float32 already."""
    if projection.weight.dtype == torch.float32:
        return projection
    return copy.deepcopy(projection).float()


def _load_error(model: Model, path: str, problem: Exception) -> GrpoError:
    first_line = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            what, hint = "has no config.json", "pass a folder in Hugging Face format"
        elif not list(folder.glob("*.safetensors")):
            what = "has no weights (*.safetensors)"
            hint = "download them, or convert them with `save_pretrained`"
        else:
            what, hint = f"cannot be loaded: {first_line}", "check that its files are complete"
        return error("GR201", f"model folder `{model.id}` {what}", hint=hint)
    return error(
        "GR201",
        f"model `{model.id}` is neither a folder here nor available from the hub: {first_line}",
        hint="pass a local folder: --set model.id=DIR, or use `--setup tiny`, which needs no "
        "download",
    )


def _eos_ids(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    declared = getattr(generation, "eos_token_id", None)
    ids = set(declared) if isinstance(declared, list) else {declared}
    ids |= {tokenizer.eos_token_id, turn_end(tokenizer)}
    found = frozenset(i for i in ids if isinstance(i, int))
    if not found:
        raise error("GR201", "the model names no end-of-sequence token")
    return found
