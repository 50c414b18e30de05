"""The peer's side of `step.py`: the same workload in TRL, in its own environment."""

from __future__ import annotations

import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

QUESTION = json.load(sys.stdin)
LENGTHS: list[int] = []


def contrast(completions, **_: object) -> list[float]:
    """The reward of benchmarks/contrast."""
    return [len(c[0]["content"]) % 5 / 4 for c in completions]


class Clock(TrainerCallback):
    """One JSON line for each whole step: rollout, log-probabilities, update."""

    def on_step_begin(self, *args: object, **kwargs: object) -> None:
        self.begun = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **kwargs: object) -> None:
        if logs and "completions/mean_length" in logs:
            tokens = logs["completions/mean_length"] * QUESTION["per_step"] * QUESTION["samples"]
            seconds = time.perf_counter() - self.begun
            print(json.dumps({"step": seconds, "tokens": tokens}), flush=True)


def main() -> None:
    model = sys.argv[1]
    rows = QUESTION["per_step"] * QUESTION["samples"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=1,
            num_generations=QUESTION["samples"],
            max_completion_length=QUESTION["tokens"],
            max_steps=len(QUESTION["prompts"]) // QUESTION["per_step"],
            beta=0.0,
            learning_rate=1e-5,
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=contrast,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": p} for p in QUESTION["prompts"]]),
            peft_config=LoraConfig(
                r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            callbacks=[Clock()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
