"""From a loaded recipe to a trained run: folder, model, resume, signals, mirror.

Heavy imports happen inside `launch`, after everything that can be refused cheaply was checked.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from grpo_cli.errors import GrpoError, error
from grpo_cli.policy.source import model_fingerprint
from grpo_cli.progress import Progress
from grpo_cli.recipe.load import Loaded
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.rundir import RunDir
from grpo_cli.track import MirrorResult, default_uri, start_mirror
from grpo_cli.types import RunStatus
from grpo_cli.verify.load import LoadedVerifier, load_verifier

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
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
    uri = job.tracking_uri or default_uri(job.root)
    if uri.startswith("sqlite:") and "?" in str(job.root) and not job.tracking_uri:
        raise error(
            "GR202",
            f"the runs folder {job.root} has a `?` in its path, which a SQLite address cannot hold",
            hint="use another folder, or `--tracking-uri none`",
        )
    verifier = load_verifier(recipe.verifier.name, verifiers_dir())
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
        identity={
            "model": model_fingerprint(recipe.model),
            "verifier": verifier.sha256,
            **job.plugins,
        },
    )
    with run:
        if run.info.status is RunStatus.DONE:
            run.check_complete(run.info.step)
            return Outcome(RunStatus.DONE, run.path, already_done=True)
        progress.header(job.loaded, job.seed, run.path)
        progress.phase("loading the model")
        try:
            return _train(job, run, verifier, progress, uri)
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
            if type(problem).__name__ == "OutOfMemoryError":
                raise error(
                    "GR305",
                    f"out of memory: {str(problem).splitlines()[0]}",
                    hint="lower learner.micro_batch_tokens (the run goes on where it was) or "
                    "engine.batch_rows",
                    exit_code=3,
                ) from problem
            raise
        finally:
            progress.close()


def _train(
    job: Launch, run: RunDir, verifier: LoadedVerifier, progress: Progress, uri: str
) -> Outcome:
    import time

    from grpo_cli.arm import Arm
    from grpo_cli.evaluate import Question
    from grpo_cli.policy.policy import load_policy
    from grpo_cli.rollout.transformers_engine import TransformersEngine
    from grpo_cli.tasks import load_task
    from grpo_cli.trainer import World, train

    recipe = job.loaded.recipe
    policy = load_policy(recipe.model, recipe.device)
    task = load_task(recipe.task)
    world = World(
        policy=policy,
        engine=TransformersEngine(policy, recipe.engine.batch_rows),
        task=task,
        verify=verifier,
        questions=[
            Question(prompt, policy.render(prompt.messages))
            for prompt in task.held_out(recipe.eval.num_questions)
        ],
    )
    arm = Arm(recipe, job.seed, run, policy, "arm0")
    resumed = arm.resume()
    progress.begin(str(policy.device), resumed, run.path)
    run.set_status(RunStatus.RUNNING)
    run.note_environment(policy.environment())
    mirror = None if uri == "none" else start_mirror(run.path, uri)
    start = time.monotonic()
    status = RunStatus.FAILED
    patience_s = _TRACKER_PATIENCE_S
    try:
        with _interrupts(progress) as stop:
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


@contextmanager
def _interrupts(progress: Progress) -> Iterator[threading.Event]:
    """The first Ctrl-C, SIGTERM or hang-up stops after the step; the second leaves at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        progress.notice("finishing this step, then saving; interrupt again to leave at once")

    previous = {s: signal.signal(s, handle) for s in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
