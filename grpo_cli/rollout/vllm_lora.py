"""Adapters into a live vLLM engine: in memory where its internals allow, else through files.

Runs inside vLLM's worker, which here is this process.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from grpo_cli.errors import error

SyncMode = Literal["memory", "disk"]


def in_memory_problem(worker: Any) -> str | None:
    """What of vLLM's internals the in-memory push misses, or None when all of it is there."""
    try:
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper
    except ImportError as problem:
        return str(problem)
    manager = getattr(getattr(worker, "model_runner", None), "lora_manager", None)
    adapters = getattr(manager, "_adapter_manager", None)
    wanted = [
        (LoRAModel, "from_lora_tensors"),
        (PEFTHelper, "from_dict"),
        (manager, "lora_config"),
        (manager, "vocab_size"),
        (adapters, "remove_adapter"),
        (adapters, "add_adapter"),
        (adapters, "activate_adapter"),
        (adapters, "capacity"),
        (adapters, "modules"),
        (adapters, "_get_lora_layer_weights"),
    ]
    return next((f"no {name}" for owner, name in wanted if not hasattr(owner, name)), None)


def push(
    worker: Any, lora_id: int, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    """Put an adapter into its slot; the slot's old weights are gone afterwards.

    Args:
        worker: vLLM's worker.
        lora_id: the slot's number, 1 or more.
        tensors: weights under PEFT's names. They are copied: vLLM folds alpha / rank into the
            tensors it is given, in place.
        config: the adapter's PEFT configuration.

    Raises:
        GrpoError: GR241 when the adapter fits no module of vLLM's model, which vLLM itself would
            take without a word and answer as the base model.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager = worker.model_runner.lora_manager
    adapters = manager._adapter_manager
    helper = PEFTHelper.from_dict(dict(config))
    helper.validate_legal(manager.lora_config)
    mapper = getattr(adapters.model, "hf_to_vllm_mapper", None)
    adapter = LoRAModel.from_lora_tensors(
        lora_model_id=lora_id,
        tensors={name: tensor.detach().clone() for name, tensor in tensors.items()},
        peft_helper=helper,
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        model_vocab_size=manager.vocab_size,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
    )
    adapters.remove_adapter(lora_id)
    # Making room would quietly drop another arm.
    assert len(adapters) < adapters.capacity, "more adapters than vLLM was started for"
    adapters.add_adapter(adapter)
    if not matched_modules(adapters, adapter):
        adapters.remove_adapter(lora_id)
        raise no_module(next(iter(tensors), "none"))
    adapters.activate_adapter(lora_id)


def matched_modules(adapters: Any, adapter: Any) -> int:
    """How many of the model's modules the adapter has weights for."""
    return sum(adapters._get_lora_layer_weights(adapter, n) is not None for n in adapters.modules)


def no_module(example: str) -> Exception:
    """The error for an adapter that vLLM would ignore."""
    return error(
        "GR241",
        f"the adapter fits no module of vLLM's model (its first tensor is `{example}`)",
        hint="use lora.targets that vLLM serves for this model, or `--engine transformers`",
        exit_code=3,
    )


class AdapterFiles:
    """Adapters as PEFT folders, a new path for every version so that no cache can be stale."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="grpo-adapters-"))

    def write(
        self, name: str, nonce: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> Path:
        """The folder of this version; the one before the last is deleted."""
        from safetensors.torch import save_file

        folder = self._root / name / nonce
        folder.mkdir(parents=True)
        contiguous = {k: t.detach().cpu().contiguous() for k, t in tensors.items()}
        save_file(contiguous, folder / "adapter_model.safetensors")
        text = json.dumps(dict(config), default=sorted)
        (folder / "adapter_config.json").write_text(text)
        versions = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in versions[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self._root, ignore_errors=True)
