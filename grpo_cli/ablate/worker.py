"""A process that trains some cells of an ablation: `python -m grpo_cli.ablate.worker`.

It says what happens in JSON lines on standard output, and ends after the step when its standard
input closes: whoever started it is gone then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_cli.ablate.plan import Cell, Plan
from grpo_cli.ablate.store import plugin_files, read_plan
from grpo_cli.errors import GrpoError
from grpo_cli.prepare import (
    build_world,
    identity,
    interrupts,
    open_judge,
    open_pool,
    out_of_memory,
    prepare_libraries,
)
from grpo_cli.rundir import RunDir
from grpo_cli.types import RunStatus, StepRecord

if TYPE_CHECKING:
    from grpo_cli.arm import Arm
    from grpo_cli.trainer import World


class _Reporter:
    """The trainer's watch: tells the process that started this one."""

    def phase(self, text: str) -> None:
        """What is being done now."""
        say(event="phase", text=text)

    def record(self, arm: Arm, record: StepRecord) -> None:
        """Nothing: the record is in the run folder."""


def say(**event: object) -> None:
    """One event on standard output. That nobody reads it must not end the training."""
    try:
        print(json.dumps(event), flush=True)  # noqa: T201 this is the data
    except (BrokenPipeError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 until the process ends


def work(
    folder: Path,
    wanted: set[tuple[str, int]],
    threads: int | None,
    processes: int,
    command: Sequence[str],
) -> RunStatus:
    """Train cells that share a world to their end, each on from where it is.

    Args:
        wanted: (arm, seed) of the cells.
        threads: of torch; None leaves its own choice, which `grpo train` has too.
        processes: how many such processes run, for the record.

    Raises:
        GrpoError: what keeps all of them from training; one cell's failure is its own.
    """
    import torch

    from grpo_cli.recipe.plugins import load_plugins
    from grpo_cli.trainer import train

    if threads is not None:
        torch.set_num_threads(threads)
    plugins = load_plugins(plugin_files(folder))
    plan = read_plan(folder)
    cells = [cell for cell in plan.cells if (cell.arm, cell.seed) in wanted]
    recipe = plan.arm(cells[0].arm).recipe
    judge = open_judge(recipe)
    with ExitStack() as stack:
        # Whoever sends the signal has told the person.
        stop = stack.enter_context(interrupts(lambda text: None))
        verify = stack.enter_context(open_pool(judge.verifier, recipe.verifier))
        say(event="phase", text="loading the model")
        world = build_world(recipe, verify, len(cells), lambda text: say(event="notice", text=text))
        arms: list[Arm] = []
        for number, cell in enumerate(cells):
            try:
                run = stack.enter_context(_open(folder, plan, cell, plugins, command))
            except GrpoError as problem:
                say(event="refused", arm=cell.arm, seed=cell.seed, problem=str(problem))
                continue
            if run.info.status is not RunStatus.DONE:
                judge.copy_audit(run.path)
                run.note_environment(judge.environment())
                arms += _arm(plan, cell, run, world, f"cell{number}", processes, len(cells))
        return _train_all(arms, lambda: train(arms, world, _Reporter(), stop.is_set, _failed))


def _open(
    folder: Path, plan: Plan, cell: Cell, plugins: dict[str, str], command: Sequence[str]
) -> RunDir:
    arm = plan.arm(cell.arm)
    judge = open_judge(arm.recipe)
    return RunDir.open(
        folder.parent,
        recipe_name=folder.name,
        name=arm.name,
        seed=cell.seed,
        recipe=arm.recipe,
        origins=arm.origins,
        sources=arm.sources,
        command=command,
        identity=identity(arm.recipe, judge.verifier, plugins),
    )


def _arm(
    plan: Plan, cell: Cell, run: RunDir, world: World, adapter: str, processes: int, together: int
) -> list[Arm]:
    """The arm of a cell, resumed; none when its folder is damaged."""
    from grpo_cli.arm import Arm

    try:
        arm = Arm(plan.arm(cell.arm).recipe, cell.seed, run, world.policy, adapter)
        arm.resume()
    except GrpoError as problem:
        run.set_status(RunStatus.FAILED, reason=str(problem))
        say(event="refused", arm=cell.arm, seed=cell.seed, problem=str(problem))
        return []
    run.set_status(RunStatus.RUNNING)
    on_cpu = world.policy.device.type == "cpu"
    run.note_environment(
        {
            **world.policy.environment(),
            "cells_together": together,
            "processes": processes,
            "repeatable": "bits, with as many torch threads" if on_cpu else "seeds, order, steps",
        }
    )
    return [arm]


def _train_all(arms: Sequence[Arm], train: Callable[[], RunStatus]) -> RunStatus:
    """Train, and leave no run folder behind that says it is still running."""
    left = RunStatus.FAILED
    reason: str | None = None
    try:
        left = train() if arms else RunStatus.DONE
    except KeyboardInterrupt:
        left, reason = RunStatus.STOPPED, "interrupted"
    except Exception as problem:
        full = out_of_memory(problem) or problem
        reason = str(full) if isinstance(full, GrpoError) else f"{type(full).__name__}: {full}"
        raise full from problem
    finally:
        for arm in arms:
            if arm.run.info.status is RunStatus.RUNNING:
                done = arm.finished and reason is None
                arm.run.set_status(RunStatus.DONE if done else left, None if done else reason)
    return left


def _failed(arm: Arm, problem: GrpoError) -> None:
    arm.run.set_status(RunStatus.FAILED, reason=str(problem))
    say(event="failed", arm=arm.run.info.name, seed=arm.seed, problem=str(problem))


def _end_with(parent: int) -> None:
    """Stop after the step once the starting process is gone, which closes the pipe."""

    def wait() -> None:
        while os.read(parent, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main(args: Sequence[str]) -> int:
    """Entry point. 0: all it could do is done; 130: stopped; 2 or 3: an error, on stderr."""
    parser = argparse.ArgumentParser(prog="python -m grpo_cli.ablate.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", required=True, help="JSON: [[arm, seed], ...]")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--command", default="[]", help="JSON: what a person typed")
    options = parser.parse_args(args)
    _end_with(sys.stdin.fileno())
    prepare_libraries()
    wanted = {(arm, seed) for arm, seed in json.loads(options.cells)}
    try:
        status = work(
            options.folder,
            wanted,
            options.threads,
            options.processes,
            json.loads(options.command),
        )
    except GrpoError as problem:
        say(event="error", problem=str(problem), exit_code=problem.exit_code)
        return problem.exit_code
    return 130 if status is RunStatus.STOPPED else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
