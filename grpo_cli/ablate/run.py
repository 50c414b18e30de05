"""Run a plan: workers for what is missing, signals, the mirror, and the comparison at the end.

Must not import torch: it runs in the workers.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from filelock import FileLock

from grpo_cli.ablate.layout import Layout, choose_layout
from grpo_cli.ablate.mirror import start_mirror
from grpo_cli.ablate.plan import Cell, Plan
from grpo_cli.ablate.store import merged, write_plan
from grpo_cli.ablate.watch import Board, CellState
from grpo_cli.errors import GrpoError, error
from grpo_cli.prepare import interrupts
from grpo_cli.rundir import is_held, read_info
from grpo_cli.runlock import claim, release
from grpo_cli.track import MirrorResult
from grpo_cli.types import RunStatus, StepRecord

MAX_PARALLEL = 32
"""Cells that train at the same time unless a person says otherwise."""
_TICK_S = 0.5
_ORPHAN_PATIENCE_S = 120.0
_TRACKER_PATIENCE_S = 15.0
_DIVERGED = "[GR301]"
"""A cell that diverged has given its answer: the same command does not run it again."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a plan; nothing here changes a result by more than rounding."""

    root: Path
    uri: str
    command: Sequence[str]
    max_parallel: int = MAX_PARALLEL
    processes: int | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended. `status` is DONE when every cell has ended, well or not."""

    status: RunStatus
    num_done: int
    failed: tuple[CellState, ...]
    num_cells: int
    seconds: float
    layouts: tuple[Layout, ...] = ()
    mirror: MirrorResult | None = None
    problems: tuple[str, ...] = ()
    """What kept workers from training."""


View = Callable[[Board, Sequence[tuple[CellState, StepRecord]]], None]
"""Called a few times a second with what is new."""


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[str]
    cells: Sequence[Cell]
    events: queue.SimpleQueue[dict[str, object]] = field(default_factory=queue.SimpleQueue)


def missing_cells(folder: Path, plan: Plan) -> list[Cell]:
    """The cells without an answer: not done, and not ended by a loss that was not finite."""

    def has_answer(cell: Cell) -> bool:
        try:
            info = read_info(folder / cell.run)
        except GrpoError as problem:
            if problem.problems[0].code == "GR206":
                return False
            raise
        diverged = (info.reason or "").startswith(_DIVERGED)
        return info.status is RunStatus.DONE or (info.status is RunStatus.FAILED and diverged)

    return [cell for cell in plan.cells if not has_answer(cell)]


def batches(plan: Plan, cells: Sequence[Cell], max_parallel: int) -> Iterator[list[Cell]]:
    """The cells that may share base model and engine, at most `max_parallel` at a time."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_world(plan, cell), []).append(cell)
    for group in groups.values():
        for start in range(0, len(group), max_parallel):
            yield group[start : start + max_parallel]


def spread(plan: Plan, cells: Sequence[Cell], processes: int) -> list[list[Cell]]:
    """The cells dealt to the workers, so that each gets about as many of every arm."""
    order = [arm.name for arm in plan.arms]
    hands: list[list[Cell]] = [[] for _ in range(min(processes, len(cells)))]
    for cell in cells:
        first = (order.index(cell.arm) + cell.seed) % len(hands)
        turn = [*range(first, len(hands)), *range(first)]
        hands[min(turn, key=lambda i: len(hands[i]))].append(cell)
    return hands


def run_plan(
    folder: Path,
    plan: Plan,
    options: Options,
    view: View,
    report: Callable[[], None],
    notice: Callable[[str], None],
) -> Ended:
    """Write the plan and train every cell that has no answer yet. `report` writes the comparison
    before the mirror sends it.

    Raises:
        GrpoError: GR203 when another process runs this ablation, GR202 when its folder cannot be
            written.
    """
    begun = time.monotonic()
    layouts: list[Layout] = []
    problems: list[str] = []
    with ExitStack() as stack:
        lock = _claim(options.root, folder)
        stack.callback(release, folder, [lock])
        # Only now: a process that is refused must not change the plan of the one that runs.
        plan = merged(folder, plan)
        write_plan(folder, plan)
        board = Board(folder, plan.outline)
        stop = stack.enter_context(interrupts(notice))
        _wait_for_orphans(folder, plan, notice, stop)
        board.refresh()
        view(board, [])
        missing = missing_cells(folder, plan)
        mirror = None if options.uri == "none" or not missing else start_mirror(folder, options.uri)
        try:
            for batch in batches(plan, missing, options.max_parallel):
                if stop.is_set():
                    break
                layout = choose_layout(
                    plan.arm(batch[0].arm).recipe,
                    len(batch),
                    options.root,
                    processes=options.processes,
                    exact=options.exact,
                    notice=notice,
                )
                plural = "" if layout.processes == 1 else "es"
                cells = f"{len(batch)} cell{'' if len(batch) == 1 else 's'}"
                notice(f"{cells} in {layout.processes} process{plural} ({layout.why})")
                layouts.append(layout)
                problems += _train(folder, plan, batch, layout, options, board, view, stop)
            view(board, board.refresh())
            if not board.num_open:
                report()
        finally:
            board.phase = "waiting for the tracker"
            view(board, board.refresh())
            result = mirror.finish(_TRACKER_PATIENCE_S) if mirror else None
            board.phase = ""
            view(board, [])
    failed = tuple(cell for cell in board.cells if cell.state == "failed")
    status = RunStatus.STOPPED if stop.is_set() else RunStatus.FAILED
    return Ended(
        status=status if board.num_open else RunStatus.DONE,
        num_done=board.num_done,
        failed=failed,
        num_cells=len(board.cells),
        seconds=time.monotonic() - begun,
        layouts=tuple(dict.fromkeys(layouts)),
        mirror=result,
        problems=tuple(dict.fromkeys(problems)),
    )


def _claim(root: Path, folder: Path) -> FileLock:
    try:
        return claim(root, folder)
    except GrpoError as problem:
        if problem.problems[0].code != "GR203":
            raise
        raise error(
            "GR203",
            problem.problems[0].message,
            hint=f"`grpo runs watch {folder.name}` looks on; another `--name` is another ablation",
        ) from problem


def _train(
    folder: Path,
    plan: Plan,
    cells: Sequence[Cell],
    layout: Layout,
    options: Options,
    board: Board,
    view: View,
    stop: threading.Event,
) -> list[str]:
    """Start the workers for some cells and look on until they have ended."""
    workers: list[_Worker] = []
    problems: list[str] = []
    try:
        for number, hand in enumerate(spread(plan, cells, layout.processes)):
            workers.append(_start(folder, hand, layout, options, number))
        told = False
        while any(worker.process.poll() is None for worker in workers):
            if stop.is_set() and not told:
                told = True
                for worker in workers:
                    worker.process.terminate()  # it finishes its step and saves
            problems += _hear(workers, board)
            view(board, board.refresh())
            time.sleep(_TICK_S)
        problems += _hear(workers, board)
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            if worker.process.stdin is not None:
                with suppress(OSError):
                    worker.process.stdin.close()
    for worker in workers:
        code = worker.process.returncode
        if code not in (0, 130) and not problems:
            log = folder / "logs"
            problems.append(f"a worker ended with code {code}; {log} has its output")
    board.phase = ""
    return problems


def _start(
    folder: Path, cells: Sequence[Cell], layout: Layout, options: Options, number: int
) -> _Worker:
    (folder / "logs").mkdir(exist_ok=True)
    arguments = [
        *("--cells", json.dumps([[cell.arm, cell.seed] for cell in cells])),
        *("--processes", str(layout.processes)),
        *("--command", json.dumps(list(options.command))),
    ]
    environment = {**os.environ, "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
    if layout.threads is not None:
        arguments += ["--threads", str(layout.threads)]
        environment["OMP_NUM_THREADS"] = str(layout.threads)
    with open(folder / "logs" / f"worker-{number}.log", "ab") as log:
        process = subprocess.Popen(
            # -P: a file of the current folder must not stand in for a module.
            [sys.executable, "-P", "-m", "grpo_cli.ablate.worker", str(folder), *arguments],
            stdin=subprocess.PIPE,  # closes when this process is gone, however it went
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C comes once, from here
        )
    worker = _Worker(process, cells)
    assert process.stdout is not None
    threading.Thread(target=_listen, args=(process.stdout, worker.events), daemon=True).start()
    return worker


def _listen(stream: IO[str], events: queue.SimpleQueue[dict[str, object]]) -> None:
    with stream:
        for line in stream:
            with suppress(ValueError):
                events.put(json.loads(line))


def _hear(workers: Sequence[_Worker], board: Board) -> list[str]:
    """Take in what the workers said; what keeps cells from training."""
    problems = []
    for worker in workers:
        while not worker.events.empty():
            event = worker.events.get()
            kind, text = event.get("event"), str(event.get("text", ""))
            if kind == "phase":
                board.phase = text
            elif kind == "notice":
                board.notes.append(text)
            elif kind == "refused":
                problems.append(f"{event['arm']} s{event['seed']}: {event['problem']}")
            elif kind == "error":
                problems.append(str(event["problem"]))
    return problems


def _wait_for_orphans(
    folder: Path, plan: Plan, notice: Callable[[str], None], stop: threading.Event
) -> None:
    """Wait until no worker of a killed `grpo ablate` holds a cell: it ends after its step."""
    deadline = time.monotonic() + _ORPHAN_PATIENCE_S
    said = False
    while held := [cell for cell in plan.cells if is_held(folder / cell.run)]:
        if stop.is_set() or time.monotonic() > deadline:
            raise error(
                "GR203",
                f"{folder / held[0].run} is in use by another process",
                hint="wait for it or stop it",
            )
        if not said:
            notice("a worker of an earlier attempt is finishing its step")
            said = True
        time.sleep(_TICK_S)


def _world(plan: Plan, cell: Cell) -> str:
    """What cells must have in common to train in one process."""
    tree = plan.arm(cell.arm).recipe.tree()
    parts = ("model", "device", "lora", "engine", "learner", "task", "verifier", "audit")
    shared = {key: tree[key] for key in parts if key in tree}
    numbers = (tree["eval"]["num_questions"], tree["sampling"]["max_tokens"])
    return json.dumps([shared, numbers], sort_keys=True)
