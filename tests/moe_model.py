"""A mixture of experts with random weights and the tiny world's tokenizer, as a model folder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from grpo_cli.tiny.build import build_tokenizer

KINDS = {
    "qwen3": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"norm_topk_prob": True}),
    "qwen3-full": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"norm_topk_prob": False}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {}),
    "olmoe": (OlmoeConfig, OlmoeForCausalLM, {"norm_topk_prob": False}),
}


def save_moe(folder: Path, kind: str = "qwen3") -> Path:
    """2 layers of 8 experts, 2 for each token: 35,000 parameters for `qwen3`."""
    tokenizer = build_tokenizer()
    config_of, model_of, more = KINDS[kind]
    experts = "num_local_experts" if kind == "mixtral" else "num_experts"
    config = config_of(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        **{experts: 8},
        **({"moe_intermediate_size": 16, "head_dim": 16} if kind.startswith("qwen3") else {}),
        **more,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_of(config)
        # Wide enough that routers prefer some experts and an update changes choices.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
