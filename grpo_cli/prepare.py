"""From a recipe to what training needs: a checked verifier, an identity, a world, a stop signal.

Shared by `grpo train` (one arm) and `grpo ablate` (many). Heavy imports happen inside functions.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from grpo_cli.checkpoint import replace_file
from grpo_cli.errors import GrpoError, error
from grpo_cli.policy.source import model_fingerprint
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.recipe.schema import Recipe, VerifierChoice
from grpo_cli.rollout.choose import engine_kind, make_engine, require_routing, require_support
from grpo_cli.rollout.disturbed import disturbance, disturbed
from grpo_cli.tasks import Task, task_fingerprint
from grpo_cli.track import default_uri
from grpo_cli.verify.audit_file import AUDIT_FILE, audit_path, gate
from grpo_cli.verify.load import LoadedVerifier, load_verifier
from grpo_cli.verify.pool import VerifierPool
from grpo_cli.verify.sandbox import available_level, require_level

if TYPE_CHECKING:
    from grpo_cli.policy.policy import Policy
    from grpo_cli.trainer import World
    from grpo_cli.types import Prompt

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Judge:
    """A recipe's verifier, loaded, and what its audit says."""

    verifier: LoadedVerifier
    has_audit: bool
    note: str | None
    """What a person should know of the audit and the sandbox before training."""
    sandbox: str | None = None
    """The sandbox level in force; None for a verifier that runs no programs."""

    def environment(self) -> dict[str, str | int | None]:
        """What env.json must hold of it."""
        return {"sandbox": self.sandbox} if self.sandbox is not None else {}

    def copy_audit(self, run: Path) -> None:
        """Put the audit that let this verifier train into the run's folder."""
        if self.has_audit:
            replace_file(run / AUDIT_FILE, audit_path(self.verifier.source).read_bytes())


def open_judge(recipe: Recipe) -> Judge:
    """Load the recipe's verifier and look at its audit.

    Raises:
        GrpoError: GR205 when it cannot be loaded, GR213 when the audit forbids training, GR212 when
            it runs programs and there is no sandbox.
    """
    verifier = load_verifier(recipe.verifier.name, verifiers_dir(), recipe.verifier.options)
    audit, note = gate(
        recipe.audit, verifier.source, _audit_command(recipe.verifier), recipe.task.kind
    )
    if verifier.kind != "code":
        return Judge(verifier, audit is not None, note)
    level = require_level("none") if recipe.verifier.sandbox == "none" else available_level()
    note = "; ".join([*([note] if note else []), f"sandbox {level}"])
    return Judge(verifier, audit is not None, note, level.name)


def identity(
    recipe: Recipe, verifier: LoadedVerifier, plugins: Mapping[str, str]
) -> dict[str, str]:
    """What a run depends on besides its recipe, as a run folder remembers it.

    Raises:
        GrpoError: GR241 for an engine that lacks what the recipe needs of it.
    """
    require_routing(recipe)
    require_support(recipe)
    return {
        "model": model_fingerprint(recipe.model),
        "verifier": verifier.sha256,
        "engine": engine_kind(recipe),
        "task": task_fingerprint(recipe.task),
        **disturbance(),
        **plugins,
    }


def open_pool(verifier: LoadedVerifier, chosen: VerifierChoice) -> VerifierPool:
    """The processes that run the verifier, with the recipe's limits."""
    return VerifierPool(
        verifier.source,
        workers=chosen.workers,
        sample_limit_s=chosen.sample_limit_s or verifier.sample_limit_s,
        batch_limit_s=chosen.batch_limit_s,
        memory_bytes=int(chosen.memory_gib * 2**30),
    )


def build_world(
    recipe: Recipe, verify: VerifierPool, max_adapters: int, notice: Callable[[str], None]
) -> World:
    """Base model, engine, task and questions for up to `max_adapters` arms.

    Raises:
        GrpoError: GR201 when the model cannot be loaded, GR241 for the engine, GR205 for the task.
    """
    from grpo_cli.evaluate import Question
    from grpo_cli.policy.policy import load_policy
    from grpo_cli.rollout.canary import Canary, tolerance
    from grpo_cli.tasks import load_task
    from grpo_cli.trainer import World

    policy = load_policy(recipe.model, recipe.device, recipe.learner)
    chosen = recipe.verifier
    task = load_task(recipe.task, load_verifier(chosen.name, verifiers_dir(), chosen.options))
    engine = make_engine(policy, recipe, max_adapters, notice)
    questions = [
        Question(prompt, policy.render(prompt.messages))
        for prompt in task.held_out(recipe.eval.num_questions)
    ]
    return World(
        policy=policy,
        engine=engine,
        sampler=disturbed(engine),
        canary=Canary(policy, engine, [q.prompt_ids for q in questions], tolerance(recipe)),
        task=task,
        verify=verify,
        questions=questions,
        probe=_probe(policy, task, [question.prompt for question in questions]),
    )


def _probe(
    policy: Policy, task: Task, held_out: Sequence[Prompt]
) -> Callable[[str], Mapping[str, float]]:
    """What a task measures at an evaluation beside sampled answers; most measure nothing."""
    from grpo_cli.next_token_direct import direct_accuracy
    from grpo_cli.tasks.next_token import NextToken

    if not isinstance(task, NextToken):
        return lambda adapter: {}
    return lambda adapter: {
        "eval/next_token_direct": direct_accuracy(policy, adapter, task, held_out).mean
    }


def store_uri(root: Path, tracking_uri: str | None) -> str:
    """The tracker to mirror to: as asked, else MLFLOW_TRACKING_URI, else SQLite in the runs folder.

    Raises:
        GrpoError: GR202 when the runs folder cannot be written as a SQLite address.
    """
    uri = tracking_uri or default_uri(root)
    if uri.startswith("sqlite:") and "?" in str(root) and not tracking_uri:
        raise error(
            "GR202",
            f"the runs folder {root} has a `?` in its path, which a SQLite address cannot hold",
            hint="use another folder, or `--tracking-uri none`",
        )
    return uri


def out_of_memory(problem: Exception) -> GrpoError | None:
    """GR305 for torch's out-of-memory error, whatever the device; None for another exception."""
    if type(problem).__name__ != "OutOfMemoryError":
        return None
    return error(
        "GR305",
        f"out of memory: {str(problem).splitlines()[0]}",
        hint="lower learner.micro_batch_tokens (the run goes on where it was) or engine.batch_rows",
        exit_code=3,
    )


def prepare_libraries() -> None:
    """What must be set before torch and transformers are imported."""
    # torch's threads wait for each other by spinning. When another process takes one of the
    # cores that wait burns its whole time slice (measured on 2 cores: 10 to 100 times slower);
    # spinning briefly costs about a tenth on a quiet machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # The libraries' advice is for people who call them; who runs `grpo` cannot act on it.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="peft|torch|transformers")


@contextmanager
def interrupts(notice: Callable[[str], None]) -> Iterator[threading.Event]:
    """The first Ctrl-C, SIGTERM or hang-up stops after the step; the second leaves at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        notice("finishing this step, then saving; interrupt again to leave at once")

    previous = {s: signal.signal(s, handle) for s in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _audit_command(chosen: VerifierChoice) -> str:
    """What a person types to audit this verifier."""
    library, _, target = chosen.name.partition(":")
    what = f"--{library} {target}" if library in ("trl", "verl") else chosen.name
    return f"grpo verify-verifier {what}"
