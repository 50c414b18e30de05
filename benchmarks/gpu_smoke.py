"""Five minutes on a CUDA machine: does the GPU path work, and how fast is it?

    python benchmarks/gpu_smoke.py [MODEL]

Checks the canary of every engine that is installed, then trains a few steps with bfloat16 weights
and prints a table to paste into docs/gpu.md. Without MODEL (a folder or hub id of a chat model) it
makes one with random weights and about 200 million parameters, which needs no network. No tracker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 300.0
STEPS = 4


def main() -> None:
    begun = time.monotonic()
    from grpo_cli.prepare import prepare_libraries
    from grpo_cli.rollout.choose import vllm_is_installed
    from grpo_cli.system import facts

    prepare_libraries()
    print("| what | value |\n|---|---|")
    for finding in facts():
        print(f"| {finding.name} | {finding.value} |")
    # In a process of its own: vLLM keeps the memory that it took.
    checked = subprocess.run(
        [sys.executable, "-m", "grpo_cli", "doctor", "--system", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S / 2,
    )
    failed = checked.returncode != 0
    for line in checked.stdout.splitlines():
        for finding in json.loads(line)["findings"]:
            if finding["name"].startswith("engine"):
                print(f"| {finding['name']} | {finding['value']} |")
    with tempfile.TemporaryDirectory() as folder:
        model = sys.argv[1] if len(sys.argv) > 1 else _random_model(Path(folder) / "model")
        print(
            "\n| run | rollout s | learner s | sync s | tokens/s | mismatch mean | canary | GiB |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for engine in ("vllm", "transformers"):
            if engine == "vllm" and not vllm_is_installed():
                continue
            left = LIMIT_S - (time.monotonic() - begun)
            if left < 30:
                print(f"| {engine} | no time left | | | | | | |")
                continue
            failed |= not _row(engine, model, Path(folder) / engine, left)
    sys.exit(int(failed))


def _row(engine: str, model: str, runs: Path, limit_s: float) -> bool:
    command = [
        *(sys.executable, "-m", "grpo_cli", "train", "dapo_tis", "--engine", engine, "--json"),
        *("--runs-dir", str(runs), "--tracking-uri", "none", "--set", f"model.id={model}"),
    ]
    for change in (
        "learner.dtype=bfloat16",
        f"optim.steps={STEPS}",
        "filter={kind: none}",
        "sampling={prompts_per_step: 16, group_size: 8, max_tokens: 256, temperature: 1.0}",
        "eval={every: 0, num_questions: 1, samples_per_question: 1}",
        "checkpoint={every: 1000, keep: 1}",
    ):
        command += ["--set", change]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"| {engine} bfloat16 | not finished in {limit_s:.0f} s | | | | | | |")
        return False
    if done.returncode:
        print(f"| {engine} bfloat16 | exit {done.returncode} | | | | | | |")
        print(done.stderr[-2000:], file=sys.stderr)
        return False
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # The last line is the summary of the run.
    steps = [line["scalars"] for line in lines if "scalars" in line]
    last = next(scalars for scalars in reversed(steps) if "time/rollout_s" in scalars)
    names = ("time/rollout_s", "time/learner_s", "time/sync_s", "time/tokens_per_s")
    cells = [f"{last[name]:.2f}" for name in names]
    cells += [f"{last.get('mismatch/logp_abs_mean', float('nan')):.1e}"]
    cells += [f"{last['canary/logp_abs_mean']:.1e}", f"{last.get('system/gpu_peak_gib', 0):.1f}"]
    print(f"| {engine} bfloat16 | {' | '.join(cells)} |")
    return True


def _random_model(folder: Path) -> str:
    """A Llama with the shipped tokenizer and random weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from grpo_cli.tiny import TINY_DIR

    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
