"""Sampling with vLLM in this process, on CUDA or on a CPU; adapters are swapped between steps.

One engine serves every arm: a LoRA slot each, and one with a zero adapter for the base model.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_cli.errors import error
from grpo_cli.policy.policy import Policy
from grpo_cli.policy.source import model_path
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout import vllm_cpu_lora
from grpo_cli.rollout.engine import Request, Scoring
from grpo_cli.rollout.vllm_lora import AdapterFiles, SyncMode, in_memory_problem, push
from grpo_cli.types import Completion, Finish

TESTED = "0.32"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_BASE = "base"


class VllmEngine:
    """An `Engine` on vLLM. Prompts go in and completions come out as token ids, so nothing is
    ever tokenised twice; log-probabilities are vLLM's processed ones, after temperature."""

    def __init__(
        self, policy: Policy, recipe: Recipe, max_adapters: int, notice: Callable[[str], None]
    ) -> None:
        """Start vLLM with the weights of the recipe's model.

        Args:
            policy: the learner, whose adapters are copied at every `sync`.
            recipe: the keys `model`, `learner`, `lora`, `sampling` and `engine` are read.
            max_adapters: most adapters alive at once, without the base model.
            notice: told what a person should know, in one line.

        Raises:
            GrpoError: GR241 when vLLM is not installed or refuses these settings.
        """
        self._policy = policy
        self._max_prompt = recipe.engine.max_prompt_tokens
        self._sleeps = recipe.engine.sleep
        with _own_randomness():
            self._llm = _start(policy, recipe, max_adapters)
        self._ids = {_BASE: 1}
        self._versions: dict[str, int] = {}
        self._nonces: dict[str, str] = {}
        self._pushed = 0
        self._most = max_adapters
        self._files: AdapterFiles | None = None
        self.mode: SyncMode = "memory"
        self._worker = getattr(self._llm.llm_engine, "model_executor", None)
        self._worker = getattr(self._worker, "driver_worker", self._worker)
        self._worker = getattr(self._worker, "worker", self._worker)
        version = metadata.version(_distribution())
        if not version.startswith(f"{TESTED}."):
            notice(f"vLLM {version} is outside the tested range {TESTED}.*")
        if problem := in_memory_problem(self._worker):
            self.mode = "disk"
            self._files = AdapterFiles()
            weakref.finalize(self, self._files.close)
            notice(f"adapters go to vLLM through files: this version has {problem}")

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; all adapters together.

        Raises:
            GrpoError: GR241 when a prompt is longer than `engine.max_prompt_tokens`, GR301 when
                the model's log-probabilities are not finite.
        """
        from vllm import SamplingParams

        for request in requests:
            self._check_length(request.prompt_ids)
        eos = sorted(self._policy.eos_ids)
        outputs = self._generate(
            [request.prompt_ids for request in requests],
            [
                SamplingParams(
                    n=1,
                    temperature=request.temperature,
                    top_p=request.top_p,
                    top_k=request.top_k or 0,
                    min_p=0.0,
                    max_tokens=request.max_tokens,
                    seed=request.seed,
                    stop_token_ids=eos,
                    logprobs=0,
                    flat_logprobs=True,
                    detokenize=False,
                )
                for request in requests
            ],
            [request.adapter for request in requests],
        )
        return [
            self._completion(request, output)
            for request, output in zip(requests, outputs, strict=True)
        ]

    def score(self, scorings: Sequence[Scoring]) -> list[tuple[float, ...]]:
        """Log-probability of each completion token at temperature 1."""
        from vllm import SamplingParams

        # Prompt log-probabilities are always computed anew, so no cached block can stand in. One
        # sequence a call: on a CPU, vLLM 0.32 takes the adapters of several for the wrong rows.
        scores = []
        for scoring in scorings:
            parameters = SamplingParams(
                n=1, temperature=1.0, max_tokens=1, seed=0, prompt_logprobs=0, detokenize=False
            )
            ids = (*scoring.prompt_ids, *scoring.completion_ids)
            (output,) = self._generate([ids], [parameters], [scoring.adapter])
            start = len(scoring.prompt_ids)
            scores.append(
                tuple(
                    float(output.prompt_logprobs[start + i][token].logprob)
                    for i, token in enumerate(scoring.completion_ids)
                )
            )
        return scores

    def sync(self, adapter: str, version: int) -> None:
        """Copy the learner's weights of `adapter` into its slot.

        Raises:
            GrpoError: GR241 when there are more adapters than slots, or when the adapter fits no
                module of vLLM's model.
        """
        if adapter not in self._ids and len(self._ids) > self._most:
            raise error("GR241", f"vLLM was started for {self._most} adapters, not more")
        tensors = {name: p.detach() for name, p in self._policy.parameters(adapter).items()}
        if _BASE not in self._nonces:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
            self._put(_BASE, adapter, zeros)
        self._put(adapter, adapter, tensors)
        self._versions[adapter] = version

    def rest(self) -> None:
        """Free the GPU for the learner (`engine.sleep`); the next call wakes the engine."""
        if self._sleeps and not self._llm.llm_engine.is_sleeping():
            # Level 2 would drop the base weights and leave garbage in the LoRA slots.
            self._llm.sleep(level=1)

    def _put(self, name: str, like: str, tensors: dict[str, Tensor]) -> None:
        self._wake()
        if self._llm.llm_engine.get_num_unfinished_requests():
            raise error("GR241", "an adapter cannot change while requests are in flight")
        assert self._policy.peft is not None
        config = self._policy.peft.peft_config[like].to_dict()
        config["target_modules"] = sorted(config["target_modules"])
        slot = self._ids.setdefault(name, len(self._ids) + 1)
        self._pushed += 1
        # vLLM's prefix cache knows an adapter by name and path: a path that never comes twice
        # is a cache that is never stale.
        nonce = str(self._pushed)
        with _own_randomness():
            if self._files is None:
                push(self._worker, slot, tensors, config)
                self._nonces[name] = f"memory://{name}/{nonce}"
            else:
                from vllm.lora.request import LoRARequest

                path = str(self._files.write(name, nonce, tensors, config))
                request = LoRARequest(name, slot, path, load_inplace=True)
                self._llm.llm_engine.add_lora(request)
                self._nonces[name] = path

    def _generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        parameters: Sequence[Any],
        adapters: Sequence[str | None],
    ) -> list[Any]:
        from vllm.lora.request import LoRARequest

        self._wake()
        loras = None
        if self._nonces:
            # Never a row without an adapter: on a CPU it would get its neighbour's.
            names = [adapter or _BASE for adapter in adapters]
            loras = [LoRARequest(name, self._ids[name], self._nonces[name]) for name in names]
        elif any(adapters):
            raise error("GR241", f"no weights were pushed for {next(filter(None, adapters))}")
        with _own_randomness():
            outputs: list[Any] = self._llm.generate(
                [{"prompt_token_ids": list(prompt)} for prompt in prompts],
                list(parameters),
                lora_request=loras,
                use_tqdm=False,
            )
        for output, lora in zip(outputs, loras or (), strict=bool(loras)):
            served = getattr(output.lora_request, "lora_path", None)
            if served != lora.lora_path:
                raise error(
                    "GR306",
                    f"vLLM answered with adapter {served}, not {lora.lora_path}",
                    exit_code=3,
                )
        return outputs

    def _completion(self, request: Request, output: Any) -> Completion:
        answer = output.outputs[0]
        ids, logp = tuple(answer.token_ids), tuple(float(x) for x in answer.logprobs.logprobs)
        if len(ids) != len(logp) or answer.finish_reason not in ("stop", "length"):
            raise error(
                "GR241",
                f"vLLM ended a completion with `{answer.finish_reason}` and {len(logp)} "
                f"log-probabilities for {len(ids)} tokens",
                exit_code=3,
            )
        if not np.isfinite(logp).all():
            raise error(
                "GR301",
                "the model's log-probabilities are not finite",
                hint="lower optim.lr; earlier checkpoints are intact",
                exit_code=3,
            )
        return Completion(
            token_ids=ids,
            text=self._policy.decode(ids),
            logp=logp,
            finish=Finish.STOP if answer.finish_reason == "stop" else Finish.LENGTH,
            adapter_version=self._versions.get(request.adapter or "", 0),
        )

    def _check_length(self, prompt_ids: Sequence[int]) -> None:
        if len(prompt_ids) > self._max_prompt:
            raise error(
                "GR241",
                f"a prompt has {len(prompt_ids)} tokens, and vLLM was given room for "
                f"{self._max_prompt}",
                hint=f"--set engine.max_prompt_tokens={len(prompt_ids)}",
            )

    def _wake(self) -> None:
        # A request to a sleeping engine waits for ever.
        if self._llm.llm_engine.is_sleeping():
            self._llm.wake_up()


def _start(policy: Policy, recipe: Recipe, max_adapters: int) -> Any:
    settings, on_cpu = recipe.engine, policy.device.type == "cpu"
    _prepare_environment(on_cpu)
    try:
        from vllm import LLM
        from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    except ImportError as problem:
        raise error(
            "GR241",
            f"vLLM cannot be imported: {problem}",
            hint="pip install 'grpo-cli[vllm]' (CUDA) or 'grpo-cli[vllm-cpu]', or "
            "`--engine transformers`",
        ) from None
    if settings.quantization and settings.quantization not in QUANTIZATION_METHODS:
        raise error(
            "GR241",
            f"this vLLM has no engine.quantization `{settings.quantization}`",
            hint="it offers: " + ", ".join(sorted(QUANTIZATION_METHODS)),
        )
    memory: dict[str, Any] = {"gpu_memory_utilization": settings.gpu_memory}
    if on_cpu:
        memory = {"kv_cache_memory_bytes": int(settings.cpu_cache_gib * 2**30)}
    dtype = recipe.learner.dtype if settings.dtype == "auto" else settings.dtype
    limit = settings.max_prompt_tokens + recipe.sampling.max_tokens
    longest = getattr(policy.causal.config, "max_position_embeddings", limit)
    set_num_threads = torch.set_num_threads
    if on_cpu:
        vllm_cpu_lora.install()
    try:
        return LLM(
            model=model_path(recipe.model),
            revision=recipe.model.revision,
            dtype=dtype,
            quantization=settings.quantization,
            hf_overrides={"head_dtype": "float32"} if settings.fp32_head else {},
            skip_tokenizer_init=True,
            max_model_len=min(limit, longest),
            max_logprobs=1,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_lora=True,
            max_loras=max_adapters + 1,
            max_cpu_loras=max_adapters + 1,
            max_lora_rank=_rank(recipe.lora.rank),
            lora_dtype=getattr(torch, dtype),
            seed=0,
            use_tqdm_on_load=False,
            enable_sleep_mode=settings.sleep and not on_cpu,
            disable_log_stats=True,
            **memory,
        )
    except (ValueError, RuntimeError, NotImplementedError, OSError) as problem:
        lines = [line for line in str(problem).splitlines() if line.strip()]
        raise error(
            "GR241",
            f"vLLM refused these settings: {lines[-1] if lines else type(problem).__name__}",
            hint="see the keys of `engine`, or use `--engine transformers`",
        ) from problem
    finally:
        # On a CPU vLLM puts a warning in the place of this function.
        torch.set_num_threads = set_num_threads


def _prepare_environment(on_cpu: bool) -> None:
    """What vLLM reads from the environment when it is imported or started."""
    if "vllm" in sys.modules and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
        raise error("GR241", "vLLM was imported before its engine could be put in this process")
    # In this process, so that adapters are handed over as tensors.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Some of it is said before vLLM has read that.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if on_cpu:
        # Otherwise vLLM takes all threads but one away from the learner too.
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))


def _rank(rank: int) -> int:
    """The smallest slot size of vLLM that holds the rank."""
    fitting = [size for size in _RANKS if size >= rank]
    if not fitting:
        raise error(
            "GR241",
            f"lora.rank {rank} is above vLLM's limit of {_RANKS[-1]}",
            hint="lower it, or use `--engine transformers`",
        )
    return fitting[0]


def _distribution() -> str:
    """The name under which vLLM is installed: the CPU build has its own."""
    for name in ("vllm", "vllm-cpu"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return "vllm"


@contextmanager
def _own_randomness() -> Iterator[None]:
    """vLLM seeds and draws from the global generators; nobody else may notice."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 the global one is meant
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
