"""Time one training step of a fixed workload, alone or in turn with TRL.

    python benchmarks/step.py MODEL [--engine vllm] [--peer trl] [--rounds 2]

MODEL is a folder with SmolLM2-135M-Instruct or its hub id. The workload: bfloat16 weights, LoRA of
rank 16 on all linear layers, 4 prompts x 8 samples x at most 64 tokens, one optimizer step, no KL,
and a reward that differs in almost every group. The first step of each process is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEER_VERSION = "1.16.*"
PROMPTS, SAMPLES, TOKENS = 4, 8, 64
PHASES = ("rollout", "learner", "sync", "verify")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--engine", default="auto", choices=["auto", "vllm", "transformers"])
    parser.add_argument("--peer", choices=["trl"])
    parser.add_argument("--peer-venv", type=Path, default=HERE.parent / ".venv-trl")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each process")
    args = parser.parse_args()
    if args.peer:
        _install_peer(args.peer_venv)
    ours: list[dict[str, float]] = []
    peer: list[dict[str, float]] = []
    for number in range(args.rounds):
        ours += _run_ours(args)
        _show(f"grpo  round {number + 1}", ours[-args.steps :])
        if args.peer:
            peer += _run_peer(args)
            _show(f"{args.peer:5} round {number + 1}", peer[-args.steps :])
    _show("grpo  all", ours)
    if peer:
        _show(f"{args.peer:5} all", peer)
        ratio = _median(peer, "step") / _median(ours, "step")
        per_token = _median(peer, "step_per_token") / _median(ours, "step_per_token")
        print(f"ratio {args.peer} / grpo: {ratio:.2f} a step, {per_token:.2f} a sampled token")


def _run_ours(args: argparse.Namespace) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "grpo_cli", "train", "grpo", "--setup", "smollm2-arithmetic"),
            *("--engine", args.engine, "--tracking-uri", "none", "--json", "--runs-dir", folder),
        ]
        for change in (
            f"model.id={args.model}",
            f"verifier={{name: {HERE / 'contrast'}}}",
            "learner.dtype=bfloat16",
            "lora={rank: 16, alpha: 32, targets: all-linear}",
            f"sampling.prompts_per_step={PROMPTS}",
            f"sampling.group_size={SAMPLES}",
            f"sampling.max_tokens={TOKENS}",
            f"optim.steps={args.steps + 1}",
            "optim.minibatches=1",
            "kl.beta=0",
            "eval={every: 0, num_questions: 1, samples_per_question: 1}",
        ):
            command += ["--set", change]
        lines = _lines(command)
    found = []
    for scalars in (line["scalars"] for line in lines if line.get("step", 0) > 1):
        step = {phase: scalars[f"time/{phase}_s"] for phase in PHASES}
        tokens = scalars["completion/mean_length"] * PROMPTS * SAMPLES
        found.append({**step, "step": sum(step.values()), "tokens": tokens})
    return _finish(found)


def _run_peer(args: argparse.Namespace) -> list[dict[str, float]]:
    from grpo_cli.recipe.load import load
    from grpo_cli.tasks import load_task

    recipe = load("grpo", setup="smollm2-arithmetic").recipe
    task = load_task(recipe.task)
    prompts = [
        [{"role": m.role, "content": m.content} for m in task.train(i).messages]
        for i in range(PROMPTS * (args.steps + 1))
    ]
    command = [str(args.peer_venv / "bin/python"), str(HERE / "peer_trl.py"), args.model]
    question = {"prompts": prompts, "samples": SAMPLES, "per_step": PROMPTS, "tokens": TOKENS}
    return _finish(_lines(command, json.dumps(question))[1:])


def _finish(steps: list[dict[str, float]]) -> list[dict[str, float]]:
    # The largest child so far: exact only for the side that needs more.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return [{**s, "step_per_token": s["step"] / s["tokens"], "peak": peak} for s in steps]


def _lines(command: list[str], text: str | None = None) -> list[dict]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def _install_peer(venv: Path) -> None:
    if (venv / "bin/trl").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin/python")
    subprocess.run(["sh", str(HERE.parent / ".ci/install-torch"), python], check=True)
    subprocess.run(
        [python, "-m", "pip", "-q", "install", f"trl=={PEER_VERSION}", "peft"], check=True
    )


def _median(steps: list[dict[str, float]], name: str) -> float:
    return statistics.median(step[name] for step in steps if name in step)


def _show(title: str, steps: list[dict[str, float]]) -> None:
    names = [name for name in (*PHASES, "step") if name in steps[0]]
    seconds = "  ".join(f"{name} {_median(steps, name):6.2f} s" for name in names)
    tokens = _median(steps, "tokens")
    rate = tokens / _median(steps, "step")
    print(f"{title}: {seconds}  {tokens:.0f} tokens  {rate:.0f} tokens/s", flush=True)
    each = ", ".join(f"{step['step']:.1f}" for step in steps)
    print(f"    steps {each} s; peak memory {_median(steps, 'peak'):.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
