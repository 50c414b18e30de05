"""How many processes train the cells, by a measurement on this machine. Must not import torch.

On a GPU, or with vLLM, one process serves all cells. On a CPU the same cells may be spread over
processes with one thread each, because small matrices gain little from a second thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from grpo_cli.checkpoint import replace_file
from grpo_cli.errors import GrpoError
from grpo_cli.policy.source import model_fingerprint, model_path
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.choose import engine_kind

CACHE = "layout.json"
"""In the runs folder: what was measured, by machine and model."""
_TIMEOUT_S = 180.0
_COPIES = 4
"""Copies of the base weights that a training process may need, roughly: weights, activations."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`threads` None leaves torch's own choice. `why` is a sentence for a person.

    Example:
        Layout(processes=2, threads=1, why="measured: 2 processes with one thread each do 1.4 times
               the work of one with 2 threads")
    """

    processes: int
    threads: int | None
    why: str


def choose_layout(
    recipe: Recipe,
    num_cells: int,
    root: Path,
    *,
    processes: int | None = None,
    exact: bool = False,
    measure: bool = True,
    notice: Callable[[str], None] = lambda text: None,
) -> Layout:
    """The layout for cells of this recipe's model and engine.

    Args:
        processes: what a person asked for.
        exact: keep torch's own number of threads, as `grpo train` does.
        measure: False only looks up what was measured before.
    """
    if engine_kind(recipe) != "transformers" or _has_gpu(recipe):
        return Layout(1, None, "one process: all cells share the device and the engine")
    cores = len(os.sched_getaffinity(0))
    if processes is not None:
        threads = None if processes == 1 else max(1, cores // processes)
        return Layout(processes, threads, f"{processes} as asked with --processes")
    if exact:
        return Layout(1, None, "one process: --exact keeps the threads of `grpo train`")
    most = min(cores, num_cells, _that_fit(recipe))
    if most < 2:
        what = "cell" if num_cells < 2 else "core" if cores < 2 else "copy of the model in memory"
        return Layout(1, None, f"one process: one {what}")
    key = _machine(recipe, most)
    found = _read(root).get(key)
    if found is None:
        if not measure:
            return Layout(1, None, "measured when it runs")
        notice("measuring which layout is faster, once for this machine and model")
        try:
            found = _measure(recipe, most, cores)
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            return Layout(1, None, f"one process: the measurement failed ({problem})")
        _remember(root, key, found)
    one_s, many_s = found
    gain = most * one_s / many_s
    if gain <= 1:
        return Layout(
            1, None, f"measured: {most} one-thread processes do {gain:.2f} times the work of one"
        )
    return Layout(
        most,
        1,
        f"measured: {most} one-thread processes do {gain:.2f} times the work of one process with "
        f"{cores} threads",
    )


def _measure(recipe: Recipe, processes: int, cores: int) -> tuple[float, float]:
    """Seconds per piece of work: of one process with all threads, of each of several with one."""
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000", "TRANSFORMERS_VERBOSITY": "error"}
    text = json.dumps(recipe.tree())
    workers = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo_cli.ablate.calibrate", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            start_new_session=True,
        )
        for _ in range(processes)
    ]
    try:
        for worker in workers:
            _expect(worker.stdout, "ready")
        _tell(workers[0].stdin, cores)
        one_s = float(_line(workers[0].stdout))
        for worker in workers:
            _tell(worker.stdin, 1)
        many_s = max(float(_line(worker.stdout)) for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(_TIMEOUT_S)
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    stream.close()
    return one_s, many_s


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    line = stream.readline()
    if not line:
        raise ValueError("a process ended early")
    return line.strip()


def _expect(stream: IO[str] | None, word: str) -> None:
    if (line := _line(stream)) != word:
        raise ValueError(f"it said {line!r}")


def _tell(stream: IO[str] | None, threads: int) -> None:
    assert stream is not None
    stream.write(f"{threads}\n")
    stream.flush()


def _read(root: Path) -> dict[str, tuple[float, float]]:
    try:
        document = json.loads((root / CACHE).read_bytes())
        return {key: (float(v["one_s"]), float(v["many_s"])) for key, v in document.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remember(root: Path, key: str, found: tuple[float, float]) -> None:
    known = {**_read(root), key: found}
    document = {k: {"one_s": one, "many_s": many} for k, (one, many) in known.items()}
    try:
        root.mkdir(parents=True, exist_ok=True)
        replace_file(root / CACHE, (json.dumps(document, indent=1) + "\n").encode())
    except (OSError, GrpoError):
        return  # measured again next time


def _machine(recipe: Recipe, processes: int) -> str:
    facts = (
        platform.node(),
        platform.machine(),
        str(len(os.sched_getaffinity(0))),
        metadata.version("torch"),
        model_fingerprint(recipe.model),
        str(processes),
    )
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _has_gpu(recipe: Recipe) -> bool:
    """Without torch, which takes seconds to import: the driver's device file."""
    if recipe.device == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    return recipe.device == "cuda" or Path("/dev/nvidiactl").exists()


def _that_fit(recipe: Recipe) -> int:
    """Processes whose copies of a local model fit into free memory; 1 for a model of the hub."""
    folder = Path(model_path(recipe.model))
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if not weights:
        return 1
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, int(free // (_COPIES * weights)))
