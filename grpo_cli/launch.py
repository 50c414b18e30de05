"""From a loaded recipe to a trained run: folder, model, resume, signals, mirror.

Heavy imports happen inside `launch`, after everything that can be refused cheaply was checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_cli.errors import GrpoError
from grpo_cli.prepare import (
    build_world,
    identity,
    interrupts,
    open_judge,
    open_pool,
    out_of_memory,
    store_uri,
)
from grpo_cli.progress import Progress
from grpo_cli.recipe.load import Loaded
from grpo_cli.rollout.choose import engine_kind
from grpo_cli.rundir import RunDir
from grpo_cli.track import MirrorResult, start_mirror
from grpo_cli.types import RunStatus
from grpo_cli.verify.pool import VerifierPool

_TRACKER_PATIENCE_S = 15.0
"""Longest wait at the end for a tracker that makes progress; one that does not gets about 3 s."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What `grpo train` was asked to do."""

    loaded: Loaded
    seed: int
    name: str
    root: Path
    command: Sequence[str]
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Name -> SHA-256 of the plug-ins that the recipe may use."""
    restart: bool = False
    tracking_uri: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `mirror` is None when nothing was sent to a tracker."""

    status: RunStatus
    run: Path
    already_done: bool = False
    train_s: float = 0.0
    mirror: MirrorResult | None = None


def launch(job: Launch, progress: Progress) -> Outcome:
    """Train one arm, continuing an unfinished run of the same recipe and seed.

    Raises:
        GrpoError: exit code 2 for what can be refused before training, 3 for a run that failed.
    """
    recipe = job.loaded.recipe
    uri = store_uri(job.root, job.tracking_uri)
    judge = open_judge(recipe)
    run = RunDir.open(
        job.root,
        recipe_name=job.loaded.name,
        name=job.name,
        seed=job.seed,
        recipe=recipe,
        origins=job.loaded.origins,
        sources=job.loaded.sources,
        command=job.command,
        restart=job.restart,
        identity=identity(recipe, judge.verifier, job.plugins),
    )
    with run:
        if run.info.status is RunStatus.DONE:
            run.check_complete(run.info.step)
            return Outcome(RunStatus.DONE, run.path, already_done=True)
        progress.header(job.loaded, job.seed, run.path, judge.note)
        judge.copy_audit(run.path)
        run.note_environment(judge.environment())
        progress.phase("loading the model")
        try:
            with open_pool(judge.verifier, recipe.verifier) as verify:
                return _train(job, run, verify, progress, uri)
        except GrpoError as problem:
            if problem.exit_code == 2 and run.info.step < 0:
                run.discard()  # refused before anything was done: nothing worth keeping
            else:
                run.set_status(RunStatus.FAILED, reason=str(problem))
            raise
        except KeyboardInterrupt:
            run.set_status(RunStatus.STOPPED, reason="interrupted")
            raise
        except Exception as problem:
            run.set_status(RunStatus.FAILED, reason=f"{type(problem).__name__}: {problem}")
            if (full := out_of_memory(problem)) is not None:
                raise full from problem
            raise
        finally:
            progress.close()


def _train(job: Launch, run: RunDir, verify: VerifierPool, progress: Progress, uri: str) -> Outcome:
    import time

    from grpo_cli.arm import Arm
    from grpo_cli.trainer import train

    recipe = job.loaded.recipe
    world = build_world(recipe, verify, 1, progress.notice)
    policy = world.policy
    arm = Arm(recipe, job.seed, run, policy, "arm0")
    resumed = arm.resume()
    progress.begin(f"{policy.device}   engine {engine_kind(recipe)}", resumed, run.path)
    run.set_status(RunStatus.RUNNING)
    run.note_environment(policy.environment())
    mirror = None if uri == "none" else start_mirror(run.path, uri)
    start = time.monotonic()
    status = RunStatus.FAILED
    patience_s = _TRACKER_PATIENCE_S
    try:
        with interrupts(progress.notice) as stop:
            status = train([arm], world, progress, stop.is_set)
        train_s = time.monotonic() - start
        run.set_status(status)
    except KeyboardInterrupt:
        patience_s = 0.0  # whoever interrupts twice does not want to wait
        raise
    finally:
        progress.phase("waiting for the tracker")
        result = mirror.finish(patience_s) if mirror else None
    return Outcome(status, run.path, train_s=train_s, mirror=result)
