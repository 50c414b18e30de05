"""Run folders with rollouts of known lengths, scores and log-probabilities."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.compare_runs import write_run

HOSTILE = "</script><script>alert(1)</script>\x1b[31m[bold red]\x00\ud800\u202eab<b>&\"'\n# x"


def row(
    prompt: str,
    sample: int,
    score: float | None,
    length: int,
    advantage: float | None,
    **changes: Any,
) -> dict[str, Any]:
    """One completion, as `grpo_cli.step_record.rollout_rows` writes it."""
    kept = advantage is not None
    logp = [-0.5] * length
    return {
        "prompt_id": prompt,
        "prompt": [{"role": "user", "content": f"what is {prompt}?"}],
        "reference": "16",
        "sample": sample,
        "kept": kept,
        "completion": f"answer {sample}",
        "token_ids": [6] * length,
        "sampler_logp": logp,
        "learner_logp": logp if kept else None,
        "finish": "stop",
        "adapter_version": 0,
        "score": score,
        "status": "error" if score is None else "ok",
        "parsed": None,
        "detail": None,
        "reward": score,
        "advantage": advantage,
        **changes,
    }


def write_rollouts(run: Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The rollouts of a step."""
    path = run / "rollouts" / f"step-{step:06d}.jsonl.gz"
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in rows)
    return path


def two_groups() -> list[dict[str, Any]]:
    """Two groups that train, one minibatch each, and three that were dropped."""
    return [
        row("a", 0, 1.0, 1, 1.0),
        row("a", 1, 0.0, 3, -1.0, finish="length", reward=-0.5),
        row("b", 0, 1.0, 2, 0.5),
        row("b", 1, 0.0, 2, -0.5, learner_logp=[-0.5, -0.9], token_ids=[6, 7]),
        row("c", 0, 1.0, 2, None),
        row("c", 1, 1.0, 2, None),
        row("d", 0, 0.0, 2, None),
        row("d", 1, 0.0, 9, None),
        row("e", 0, 1.0, 2, None),
        row("e", 1, 0.0, 2, None),
    ]


def explained_run(
    root: Path, rows: Sequence[Mapping[str, Any]], name: str = "grpo", **changes: Any
) -> Path:
    """A finished run whose last step, 8, has these rollouts."""
    run = write_run(root, name, 0, 0.5, changes=changes)
    write_rollouts(run, 8, rows)
    return run
