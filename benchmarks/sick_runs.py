"""Does `grpo doctor` name the fault of runs that were made sick on purpose?

    python benchmarks/sick_runs.py [--seeds 3] [--healthy 5] [--only NAME] [--runs-dir DIR]

Trains small real runs of the tiny world, one kind of fault at a time, and healthy ones, and prints
the first finding of each. A run that is already in the folder is not trained again. The exit code
is 1 when a first finding is not one that names the fault, or a healthy run has a finding.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_cli.health.doctor import Diagnosis, diagnose

BASE = (
    "optim.steps=24",
    "sampling.prompts_per_step=8",
    "eval.every=12",
    "eval.num_questions=40",
    "eval.samples_per_question=4",
    "checkpoint.every=24",
)

PAYS_FOR_LOOKS = '''"""Pays for an answer that looks worked out, whatever it says."""

import re


def verify(text: str, reference: str) -> float:
    return float(bool(re.search(r"=\\d+#\\d+\\s*$", text)))
'''


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to make a run, and the findings that name what is wrong with it."""

    expected: tuple[str, ...]
    recipe: str = "dapo"
    sets: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    verifier: str | None = None
    """Source of a verifier file to score with."""


KINDS = {
    "healthy": Kind(()),
    "cold": Kind(("D-EXPLORATION",), sets=("sampling.temperature=0.2",)),
    "long": Kind(
        ("D-LENGTH",),
        sets=("aggregate.kind=seq_mean", "overlong.kind=mask", "optim.steps=48"),
    ),
    "sampler": Kind(("D-OFF-POLICY",), env={"GRPO_DISTURB_SAMPLER": "temperature:1.3"}),
    "verifier": Kind(("D-VERIFIER-PAYS",), recipe="dr_grpo", verifier=PAYS_FOR_LOOKS),
    "easy": Kind(
        ("D-CONTRAST",), recipe="grpo", sets=("task.max_level=1", "sampling.temperature=0.6")
    ),
    "lr_x50": Kind(("D-STEP-SIZE",), recipe="grpo", sets=("optim.lr=0.015",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of each sick kind")
    parser.add_argument("--healthy", type=int, default=5, help="seeds of the healthy kind")
    parser.add_argument("--only", choices=list(KINDS), help="one kind")
    parser.add_argument("--runs-dir", type=Path, help="default: a temporary folder")
    args = parser.parse_args()
    root = args.runs_dir or Path(tempfile.mkdtemp(prefix="sick-runs-"))
    wrong = 0
    print(f"{'KIND':<10} {'SEED':<5} {'SECONDS':<8} {'NAMED':<6} FIRST FINDING")
    for name, kind in KINDS.items():
        if args.only not in (None, name):
            continue
        for seed in range(args.healthy if name == "healthy" else args.seeds):
            start = time.monotonic()
            run = make_run(name, seed, root)
            seconds = time.monotonic() - start
            found = diagnose(run)
            named = is_named(kind, found)
            wrong += not named
            print(
                f"{name:<10} {seed:<5} {seconds:<8.0f} {'yes' if named else 'NO':<6} "
                f"{describe(found)}",
                flush=True,
            )
    print(f"{wrong} not named; runs in {root}")
    raise SystemExit(int(wrong > 0))


def make_run(name: str, seed: int, root: Path) -> Path:
    """The folder of a run of this kind, trained now if it is not there.

    Raises:
        RuntimeError: the run left no metrics; with what it said.
    """
    kind = KINDS[name]
    sets = [*BASE, *kind.sets]
    if kind.verifier is not None:
        file = (root / f"{name}.py").resolve()
        root.mkdir(parents=True, exist_ok=True)
        file.write_text(kind.verifier)
        sets.append(f"verifier.name={file}:verify")
    command = [sys.executable, "-m", "grpo_cli", "train", kind.recipe, "--seed", str(seed)]
    command += ["--name", name, "--runs-dir", str(root), "--tracking-uri", "none", "--quiet"]
    command += [part for s in sets for part in ("--set", s)]
    done = subprocess.run(
        command, env={**os.environ, **kind.env}, capture_output=True, text=True, check=False
    )
    # A run that its own sickness ended is a run to diagnose too.
    runs = sorted(root.glob(f"{kind.recipe}/{name}/s{seed}-*/metrics.jsonl"))
    if len(runs) != 1:
        raise RuntimeError(f"{name}, seed {seed}: exit code {done.returncode}\n{done.stderr}")
    return runs[0].parent


def is_named(kind: Kind, found: Diagnosis) -> bool:
    """Whether the first finding is one of the expected ones; none at all for a healthy run."""
    first = found.findings[0].id if found.findings else None
    return first in kind.expected if kind.expected else first is None


def describe(found: Diagnosis) -> str:
    """The first finding, and the names of the others."""
    if not found.findings:
        return "healthy"
    first, *rest = found.findings
    others = f"   (then {', '.join(f.id for f in rest)})" if rest else ""
    return f"{first.severity:<5} {first.id}: {first.headline}{others}"


if __name__ == "__main__":
    main()
