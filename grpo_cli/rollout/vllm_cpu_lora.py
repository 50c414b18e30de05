"""LoRA for vLLM's CPU backend, one matrix product per adapter instead of one per row.

vLLM 0.32 copies and converts an adapter's weights for every row of a batch, at every layer and
token: on SmolLM2-135M with 32 rows that made sampling four times slower (5.4 to 21 s). What is
here computes the same numbers, in the same precision. A row without an adapter (index -1) gets
nothing, where vLLM gives it the last slot's adapter.

Dims: B rows, L slots, R rank, I and O sizes in and out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_REPLACED = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def install() -> bool:
    """Put them in the place of vLLM's. False when this version has no such functions."""
    try:
        from vllm.lora.ops.torch_ops import lora_ops
        from vllm.lora.punica_wrapper import punica_cpu
    except ImportError:
        return False
    modules: tuple[Any, ...] = (lora_ops, punica_cpu)
    if not all(hasattr(module, name) for module in modules for name in _REPLACED):
        return False
    for name in _REPLACED:
        for module in modules:
            setattr(module, name, globals()[name])
    return True


def bgmv_shrink(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    lora_indices_tensor: Tensor,
    scaling: float = 1.0,
) -> None:
    """output (B, >= R) = scaling * inputs (B, I) @ weights[index] (L, R, I); vLLM's arguments."""
    for rows, product in _products(inputs, lora_b_weights, output_tensor, lora_indices_tensor):
        output_tensor[rows, : product.shape[1]] = scaling * product


def bgmv_expand(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    lora_indices_tensor: Tensor,
    add_inputs: bool = True,
) -> None:
    """output (B, O) += inputs (B, R) @ weights[index] (L, O, R); vLLM's arguments."""
    width = min(lora_b_weights.shape[-2], output_tensor.shape[1])
    bgmv_expand_slice(
        inputs, lora_b_weights, output_tensor, lora_indices_tensor, 0, width, add_inputs
    )


def bgmv_expand_slice(
    inputs: Tensor,
    lora_b_weights: Tensor,
    output_tensor: Tensor,
    lora_indices_tensor: Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """`bgmv_expand` into `slice_size` columns of the output from `slice_offset` on."""
    columns = slice(slice_offset, slice_offset + slice_size)
    for rows, product in _products(inputs, lora_b_weights, output_tensor, lora_indices_tensor):
        # Model and adapter may be padded to other widths.
        product = product[:, :slice_size]
        if add_inputs:
            output_tensor[rows, columns] += product
        else:
            output_tensor[rows, columns] = product


def _products(
    inputs: Tensor, weights: Tensor, output: Tensor, index: Tensor
) -> Iterator[tuple[slice | Tensor, Tensor]]:
    """For each adapter of the batch: its rows, and inputs[rows] @ weights[adapter].T."""
    if weights.dim() == 4:
        weights = weights.squeeze(1)
    inputs = inputs.to(output.dtype)
    # One index for all rows stands for a batch of prompt tokens of one sequence.
    index = index[: len(inputs)]
    present = torch.unique(index).tolist()
    for adapter in present:
        if adapter < 0:
            continue
        weight = weights[adapter].to(output.dtype)
        if len(present) == 1:
            yield slice(0, len(inputs)), inputs @ weight.T
        else:
            rows = (index == adapter).nonzero()[:, 0]
            yield rows, inputs[rows] @ weight.T
