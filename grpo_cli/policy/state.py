"""An arm's adapter and optimizer on disk: safetensors and JSON only, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from grpo_cli.errors import error
from grpo_cli.policy.policy import Policy

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_adapter(folder: Path, policy: Policy, adapter: str, base_id: str) -> None:
    """Write the adapter in PEFT's format, so that `PeftModel.from_pretrained` reads the folder."""
    assert policy.peft is not None
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: p.detach().contiguous().cpu() for k, p in policy.parameters(adapter).items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = policy.peft.peft_config[adapter].to_dict()
    config |= {"base_model_name_or_path": base_id, "inference_mode": True}
    # PEFT's own writer leaves the layer names in the order of a set, which differs by process.
    text = json.dumps(config, indent=1, sort_keys=True, default=sorted)
    (folder / "adapter_config.json").write_text(text + "\n")


def load_adapter(folder: Path, policy: Policy, adapter: str) -> None:
    """Copy saved weights into a live adapter.

    Raises:
        GrpoError: GR204 when the tensors are not those of this adapter.
    """
    copy_into(load_file(folder / "adapter_model.safetensors"), policy.parameters(adapter), folder)


def save_optimizer(
    path: Path, optimizer: torch.optim.AdamW, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Write AdamW's moments and step counts by parameter name."""
    tensors = {
        f"{name}.{moment}": optimizer.state[parameter][moment].detach().cpu()
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for moment in _MOMENTS
    }
    save_file(tensors, path)


def load_optimizer(
    path: Path, optimizer: torch.optim.AdamW, parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Give AdamW back what `save_optimizer` wrote."""
    tensors = load_file(path)
    for name, parameter in parameters.items():
        if f"{name}.step" in tensors:
            optimizer.state[parameter] = {
                moment: tensors[f"{name}.{moment}"].to(
                    # AdamW keeps its step count on the CPU.
                    "cpu" if moment == "step" else parameter.device
                )
                for moment in _MOMENTS
            }


def copy_into(
    tensors: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.nn.Parameter],
    folder: Path,
) -> None:
    """Copy tensors into parameters of the same names and shapes.

    Raises:
        GrpoError: GR204 when they are not.
    """
    shapes = {k: tuple(t.shape) for k, t in tensors.items()}
    if shapes != {k: tuple(p.shape) for k, p in parameters.items()}:
        raise error(
            "GR204",
            f"the adapter in {folder} has other layers or ranks than the recipe's `lora`",
            hint="use the recipe that made it, or `--restart`",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
