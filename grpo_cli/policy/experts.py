"""Which layers of a mixture of experts get an adapter.

transformers 5 fuses the experts of a layer into three-dimensional parameters and makes the router a
module of its own, so neither is an `nn.Linear`. PEFT still takes their old names (`gate_proj`,
`w1`, `gate`, ...) and puts an adapter on the fused parameter or on the router.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from peft import LoraConfig
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

from grpo_cli.errors import GrpoError, error
from grpo_cli.policy.routing import is_router


def linear_names(causal: torch.nn.Module) -> list[str]:
    """What `lora.targets: all-linear` stands for, so that experts and routers stay frozen.

    Every `nn.Linear` but the vocabulary projection and routers, without those whose name PEFT takes
    for an expert's (in DeepSeek-V3 the shared expert). To be asked before there is an adapter.
    """
    head = causal.get_output_embeddings()  # type: ignore[operator]
    routers = [m for m in causal.modules() if is_router(m)]
    # PhiMoE's router is a linear layer itself.
    left_out = {id(head), *(id(part) for router in routers for part in router.modules())}
    names = [
        name
        for name, module in causal.named_modules()
        if isinstance(module, torch.nn.Linear) and id(module) not in left_out
    ]
    return sorted(_as_peft_reads(causal, names).target_modules or ())


def refuse_experts(causal: torch.nn.Module, targets: Sequence[str]) -> None:
    """Refuse `lora.targets` that reach further than `linear_names`.

    Raises:
        GrpoError: GR201 when they name experts or routers.
    """
    try:
        fused = _as_peft_reads(causal, targets).target_parameters
    except ValueError as problem:
        raise _frozen(str(problem)) from None
    if fused:
        raise _frozen(f"PEFT reads {', '.join(sorted(fused))}")


def _as_peft_reads(causal: torch.nn.Module, names: Sequence[str]) -> LoraConfig:
    config = LoraConfig(target_modules=list(names))
    convert_peft_config_for_transformers(config, causal, None)
    return config


def _frozen(why: str) -> GrpoError:
    return error(
        "GR201",
        f"lora.targets names experts or routers, which stay frozen here: {why}",
        hint="name attention layers such as [q_proj, v_proj], or use `all-linear`",
    )
