"""The loop, over a list of arms: sample, verify, update, evaluate, record.

Every step of every arm ends in one line of its `metrics.jsonl`; the line is written last, so a
step is either on record whole or done again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from grpo_cli.arm import Arm
from grpo_cli.batch import build_batch, minibatches
from grpo_cli.errors import GrpoError, error
from grpo_cli.evaluate import EvalJob, Question, evaluate, summarise
from grpo_cli.guard import Guard
from grpo_cli.policy.heap import give_back_freed
from grpo_cli.policy.policy import Policy
from grpo_cli.rollout.canary import Canary
from grpo_cli.rollout.collect import Demand, collect, pass_rate
from grpo_cli.rollout.engine import Engine
from grpo_cli.self_verdict import answer_part
from grpo_cli.step_record import GAP_STEPS, length_gap, rollout_rows, step_scalars
from grpo_cli.tasks import Task
from grpo_cli.types import (
    EvalRow,
    RunStatus,
    Status,
    StepRecord,
    Verdict,
)
from grpo_cli.update import update
from grpo_cli.update_result import UpdateResult


@dataclass(frozen=True, slots=True)
class World:
    """What all arms share: one base model, one engine, one task, one verifier."""

    policy: Policy
    engine: Engine
    sampler: Engine
    """What training samples from: the engine, except where a test disturbs it on purpose."""
    canary: Canary
    task: Task
    verify: Callable[[Sequence[tuple[str, str]]], list[Verdict]]
    """(text, reference) pairs -> their verdicts, in order."""
    questions: Sequence[Question]
    probe: Callable[[str], Mapping[str, float]]
    """Adapter -> what else the task measures at an evaluation, without sampling."""


class Watch(Protocol):
    """Somebody who looks on."""

    def phase(self, text: str) -> None:
        """What is being done now."""
        ...

    def record(self, arm: Arm, record: StepRecord) -> None:
        """A step is on record."""
        ...


def train(
    arms: Sequence[Arm],
    world: World,
    watch: Watch,
    should_stop: Callable[[], bool],
    failed: Callable[[Arm, GrpoError], None] | None = None,
) -> RunStatus:
    """Train every arm to the end of its recipe, or until `should_stop` says so after a step.

    Args:
        failed: told of an arm that a run-time error ended, which the others survive. Without it the
            error ends the training.

    Raises:
        GrpoError: GR301 when an arm's loss or gradient was not finite too often in a row; GR303
            when a run folder cannot be written.
    """
    guard = Guard(failed)
    for arm in arms:
        with guard.of(arm):
            _sync(arm, world)
    watch.phase("evaluating the base model")
    new = [(arm, dict[str, float]()) for arm in guard.alive(arms) if not arm.started]
    _evaluate_and_record(new, world, watch, guard)
    while active := [arm for arm in guard.alive(arms) if not arm.finished]:
        if should_stop():
            for arm in active:
                arm.save()
            return RunStatus.STOPPED
        _step(active, world, watch, guard)
    return RunStatus.DONE


def _step(arms: Sequence[Arm], world: World, watch: Watch, guard: Guard[Arm]) -> None:
    watch.phase("sampling")
    collected = guard.together(arms, lambda some: _collect(some, world))
    world.engine.rest()
    watch.phase("updating")
    records: list[tuple[Arm, dict[str, float]]] = []
    for arm, demand in collected:
        with guard.of(arm):
            records.append((arm, _learn(arm, demand, world)))
        if len(arms) > 1:
            give_back_freed()
    for arm, scalars in records:
        with guard.of(arm):
            before = time.perf_counter()
            scalars |= _sync(arm, world)
            scalars["time/sync_s"] = time.perf_counter() - before
    alive = guard.alive(arms)
    records = [(arm, scalars) for arm, scalars in records if arm in alive]
    due = [(arm, s) for arm, s in records if _eval_due(arm)]
    if due:
        watch.phase("evaluating")
    _evaluate_and_record(due, world, watch, guard)
    for arm, scalars in records:
        if not _eval_due(arm):
            with guard.of(arm):
                _record(arm, scalars, watch)
    for arm in guard.alive(arms):
        if arm.finished or arm.progress.step % arm.recipe.checkpoint.every == 0:
            with guard.of(arm):
                arm.save()


def _collect(arms: Sequence[Arm], world: World) -> list[Demand]:
    demands = [
        Demand(
            a.adapter,
            a.seed,
            a.progress.step + 1,
            a.recipe,
            frozenset(a.progress.solved),
            coin_rate=a.coin_rate(),
        )
        for a in arms
    ]
    collect(
        world.sampler,
        demands,
        world.task,
        lambda prompt: world.policy.render(prompt.messages),
        world.verify,
    )
    return demands


def _learn(arm: Arm, demand: Demand, world: World) -> dict[str, float]:
    """The updates of one step and its metrics."""
    lr = arm.set_learning_rate()
    version, before = arm.progress.version, time.perf_counter()
    batch, result = None, UpdateResult(nonfinite_in_a_row=arm.progress.nonfinite_in_a_row)
    if demand.kept:
        batch = build_batch(
            world.policy, arm.adapter, arm.reference, demand.kept, arm.recipe, arm.critic
        )
        if not (arm.critic and arm.critic.trains_alone(arm.progress.step + 1)):
            result = update(
                world.policy,
                arm.adapter,
                arm.reference,
                arm.optimizer,
                batch,
                arm.recipe,
                arm.progress.nonfinite_in_a_row,
            )
        if arm.critic:
            result.add(arm.critic.update(batch, minibatches(batch, arm.recipe.optim.minibatches)))
    learner_s = time.perf_counter() - before
    _advance(arm, demand, result)
    arm.refresh_reference()
    arm.run.write_rollouts(arm.progress.step, rollout_rows(demand, batch, result.learner_logp))
    if result.nonfinite_in_a_row >= arm.recipe.optim.max_nonfinite:
        raise error(
            "GR301",
            f"step {arm.progress.step}: loss or gradient was not finite "
            f"{result.nonfinite_in_a_row} times in a row; no such step was taken",
            hint="lower optim.lr or optim.max_grad_norm; the last checkpoint is intact",
            exit_code=3,
        )
    scalars = step_scalars(arm, demand, batch, result)
    scalars["optim/lr"] = lr
    # What this arm cost, whoever else trained in the same process.
    elapsed = demand.rollout_s + demand.verify_s + time.perf_counter() - before
    made = demand.kept + demand.dropped
    sampled = sum(len(c.token_ids) for g in made for c in g.group.completions)
    return scalars | {
        "mismatch/staleness": _staleness(demand, version),
        "time/rollout_s": demand.rollout_s,
        "time/verify_s": demand.verify_s,
        "time/verify_max_s": max((v.elapsed_s for g in made for v in g.verdicts), default=0.0),
        "time/learner_s": learner_s,
        "time/step_s": elapsed,
        "time/tokens_per_s": sampled / elapsed,
        "time/rollout_tokens_per_s": sampled / demand.rollout_s if demand.rollout_s else math.nan,
        "time/learner_tokens_per_s": scalars["loss/tokens"] / learner_s,
        **world.policy.memory(),
    }


def _sync(arm: Arm, world: World) -> dict[str, float]:
    """Hand the arm's weights to the engine, and prove that it samples with them."""
    world.engine.sync(arm.adapter, arm.progress.version)
    return world.canary.check(arm.adapter)


def _staleness(demand: Demand, version: int) -> float:
    """Optimizer steps between the weights that sampled and those that train first, at most."""
    versions = [
        c.adapter_version for g in demand.kept + demand.dropped for c in g.group.completions
    ]
    return version - min(versions, default=version)


def _advance(arm: Arm, demand: Demand, result: UpdateResult) -> None:
    made = demand.kept + demand.dropped
    progress = arm.progress
    progress.step += 1
    progress.version += result.updates
    progress.prompts_seen += len(made)
    progress.tokens_generated += sum(len(c.token_ids) for g in made for c in g.group.completions)
    progress.length_gaps = [*progress.length_gaps, length_gap(made)][-GAP_STEPS:]
    progress.nonfinite += result.nonfinite
    progress.nonfinite_in_a_row = result.nonfinite_in_a_row
    ceiling = arm.recipe.filter.pass_rate_ceiling
    if ceiling is not None:
        sampled = {group.group.prompt.id: pass_rate(group) for group in made}
        solved = (set(progress.solved) - set(sampled)) | {
            prompt for prompt, rate in sampled.items() if rate >= ceiling
        }
        progress.solved = sorted(solved)


def _eval_due(arm: Arm) -> bool:
    every = arm.recipe.eval.every
    return arm.finished or bool(every and arm.progress.step % every == 0)


def _evaluate_and_record(
    arms: Sequence[tuple[Arm, dict[str, float]]], world: World, watch: Watch, guard: Guard[Arm]
) -> None:
    """Evaluate the arms in one sampling call, then write their records."""
    start = time.perf_counter()
    scalars_of = {arm.adapter: scalars for arm, scalars in arms}
    for arm, rows in guard.together([arm for arm, _ in arms], lambda some: _evaluate(some, world)):
        with guard.of(arm):
            arm.run.write_eval(arm.progress.step, rows)
            _check_verdicts(rows, world)
            scalars = scalars_of[arm.adapter] | summarise(
                rows, arm.recipe.health.reflection_markers
            )
            scalars |= world.probe(arm.adapter)
            scalars["time/eval_s"] = (time.perf_counter() - start) / len(arms)
            _record(arm, scalars, watch)


def _evaluate(arms: Sequence[Arm], world: World) -> list[tuple[EvalRow, ...]]:
    """The held-out rows of every arm.

    Arms of one seed that have not trained yet are the same policy asked the same questions with
    the same random numbers, so one of them answers for all.
    """
    jobs = [_eval_job(arm) for arm in arms]
    first: dict[object, int] = {}
    answers_for = [
        first.setdefault(
            i if arm.progress.version else (replace(job, adapter=None), arm.recipe.lora), i
        )
        for i, (arm, job) in enumerate(zip(arms, jobs, strict=True))
    ]
    asked = sorted(set(answers_for))
    rows = evaluate(world.engine, world.verify, world.questions, [jobs[i] for i in asked])
    found = dict(zip(asked, rows, strict=True))
    return [found[i] for i in answers_for]


def _eval_job(arm: Arm) -> EvalJob:
    return EvalJob(
        arm.adapter,
        arm.seed,
        arm.recipe.eval.samples_per_question,
        arm.recipe.sampling.max_tokens,
        arm.recipe.sampling.temperature,
        arm.recipe.sampling.top_p,
        arm.recipe.sampling.top_k,
    )


def _check_verdicts(rows: Sequence[EvalRow], world: World) -> None:
    """A verifier that fails on everything must not end as a run without numbers."""
    if any(row.status in (Status.OK, Status.UNPARSED) for row in rows):
        return
    first = rows[0]
    prompt = next(q.prompt for q in world.questions if q.prompt.id == first.question_id)
    (verdict,) = world.verify([(answer_part(first.text, prompt), prompt.reference)])
    raise error(
        "GR304",
        f"the verifier failed on all {len(rows)} held-out answers, first with: "
        f"{verdict.detail or verdict.status}",
        hint="mend the verifier; no step was judged with it",
        exit_code=3,
    )


def _record(arm: Arm, scalars: dict[str, float], watch: Watch) -> None:
    record = StepRecord(arm.progress.step, time.time_ns() // 1_000_000, scalars)
    arm.run.append(record)
    arm.started = True
    watch.record(arm, record)
