"""The loop, over a list of arms: sample, verify, update, evaluate, record.

Every step of every arm ends in one line of its `metrics.jsonl`; the line is written last, so a
step is either on record whole or done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_cli.arm import Arm
from grpo_cli.errors import error
from grpo_cli.evaluate import EvalJob, Question, evaluate, summarise
from grpo_cli.policy.policy import Policy
from grpo_cli.rollout.collect import Demand, collect, has_contrast, is_truncated, pass_rate
from grpo_cli.rollout.engine import Engine
from grpo_cli.tasks import Task
from grpo_cli.types import (
    Batch,
    EvalRow,
    RunStatus,
    ScoredGroup,
    Status,
    StepRecord,
    Verdict,
)
from grpo_cli.update import build_batch, update
from grpo_cli.update_result import UpdateResult


@dataclass(frozen=True, slots=True)
class World:
    """What all arms share: one base model, one engine, one task, one verifier."""

    policy: Policy
    engine: Engine
    task: Task
    verify: Callable[[str, str], Verdict]
    questions: Sequence[Question]


class Watch(Protocol):
    """Somebody who looks on."""

    def phase(self, text: str) -> None:
        """What is being done now."""
        ...

    def record(self, arm: Arm, record: StepRecord) -> None:
        """A step is on record."""
        ...


def train(
    arms: Sequence[Arm], world: World, watch: Watch, should_stop: Callable[[], bool]
) -> RunStatus:
    """Train every arm to the end of its recipe, or until `should_stop` says so after a step.

    Raises:
        GrpoError: GR301 when an arm's loss or gradient was not finite too often in a row; GR303
            when a run folder cannot be written.
    """
    for arm in arms:
        world.engine.sync(arm.adapter, arm.progress.version)
    watch.phase("evaluating the base model")
    _evaluate_and_record([(arm, {}) for arm in arms if not arm.started], world, watch)
    while active := [arm for arm in arms if not arm.finished]:
        if should_stop():
            for arm in active:
                arm.save()
            return RunStatus.STOPPED
        _step(active, world, watch)
    return RunStatus.DONE


def _step(arms: Sequence[Arm], world: World, watch: Watch) -> None:
    start = time.perf_counter()
    demands = [
        Demand(a.adapter, a.seed, a.progress.step + 1, a.recipe, frozenset(a.progress.solved))
        for a in arms
    ]
    watch.phase("sampling")
    collect(
        world.engine,
        demands,
        world.task,
        lambda prompt: world.policy.render(prompt.messages),
        world.verify,
    )
    records: list[tuple[Arm, dict[str, float]]] = []
    for arm, demand in zip(arms, demands, strict=True):
        watch.phase("updating")
        lr = arm.set_learning_rate()
        before = time.perf_counter()
        batch, result = None, UpdateResult(nonfinite_in_a_row=arm.progress.nonfinite_in_a_row)
        if demand.kept:
            batch = build_batch(world.policy, arm.adapter, arm.reference, demand.kept, arm.recipe)
            result = update(
                world.policy,
                arm.adapter,
                arm.reference,
                arm.optimizer,
                batch,
                arm.recipe,
                arm.progress.nonfinite_in_a_row,
            )
        learner_s = time.perf_counter() - before
        _advance(arm, demand, result)
        arm.refresh_reference()
        world.engine.sync(arm.adapter, arm.progress.version)
        arm.run.write_rollouts(arm.progress.step, rollout_rows(demand, batch))
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
        elapsed = time.perf_counter() - start
        made = (g for g in demand.kept + demand.dropped)
        sampled = sum(len(c.token_ids) for g in made for c in g.group.completions)
        scalars |= {
            "time/rollout_s": demand.rollout_s,
            "time/verify_s": demand.verify_s,
            "time/learner_s": learner_s,
            "time/step_s": elapsed,
            "time/tokens_per_s": sampled / elapsed,
        }
        records.append((arm, scalars))
    due = [(arm, s) for arm, s in records if _eval_due(arm)]
    if due:
        watch.phase("evaluating")
    _evaluate_and_record(due, world, watch)
    for arm, scalars in records:
        if not _eval_due(arm):
            _record(arm, scalars, watch)
    for arm in arms:
        if arm.finished or arm.progress.step % arm.recipe.checkpoint.every == 0:
            arm.save()


def _advance(arm: Arm, demand: Demand, result: UpdateResult) -> None:
    made = demand.kept + demand.dropped
    progress = arm.progress
    progress.step += 1
    progress.version += result.updates
    progress.prompts_seen += len(made)
    progress.tokens_generated += sum(len(c.token_ids) for g in made for c in g.group.completions)
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
    arms: Sequence[tuple[Arm, dict[str, float]]], world: World, watch: Watch
) -> None:
    """Evaluate the arms in one sampling call, then write their records."""
    if not arms:
        return
    start = time.perf_counter()
    jobs = [
        EvalJob(
            arm.adapter,
            arm.seed,
            arm.recipe.eval.samples_per_question,
            arm.recipe.sampling.max_tokens,
            arm.recipe.sampling.temperature,
        )
        for arm, _ in arms
    ]
    for (arm, scalars), rows in zip(
        arms, evaluate(world.engine, world.verify, world.questions, jobs), strict=True
    ):
        arm.run.write_eval(arm.progress.step, rows)
        _check_verdicts(rows, world)
        scalars |= summarise(rows)
        scalars["time/eval_s"] = time.perf_counter() - start
        _record(arm, scalars, watch)


def _check_verdicts(rows: Sequence[EvalRow], world: World) -> None:
    """A verifier that fails on everything must not end as a run without numbers."""
    if any(row.status in (Status.OK, Status.UNPARSED) for row in rows):
        return
    first = rows[0]
    reference = next(
        q.prompt.reference for q in world.questions if q.prompt.id == first.question_id
    )
    verdict = world.verify(first.text, reference)
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


def step_scalars(
    arm: Arm, demand: Demand, batch: Batch | None, result: UpdateResult
) -> dict[str, float]:
    """A step's metrics, with one definition for every arm.

    `reward/*`, `group/*_frac`, `completion/*` and `verifier/*` cover everything sampled in the
    step, whether or not a filter kept it; `policy/*`, `ratio/*` and `mismatch/*` are means over all
    trainable tokens of the batch, each minibatch with the policy it trains, and are absent when
    nothing trained. A fraction with nothing to count is NaN.
    """
    made = demand.kept + demand.dropped
    pairs = [
        (completion, verdict, reward)
        for group in made
        for completion, verdict, reward in zip(
            group.group.completions, group.verdicts, group.rewards, strict=True
        )
    ]
    valid = [p for p in pairs if not p[1].missing]
    lengths = [len(c.token_ids) for c, _, _ in pairs]
    contrast = [has_contrast(group) for group in made]
    best = [_unanimous(group) for group in made]
    progress = arm.progress
    return {
        "reward/mean": _mean(reward for _, _, reward in valid),
        "reward/accuracy": _mean(verdict.score for _, verdict, _ in valid),
        "group/mixed_frac": _mean(contrast),
        "group/all_right_frac": _mean(score == 1 for score in best),
        "group/all_wrong_frac": _mean(score == 0 for score in best),
        "group/zero_variance_frac": _mean(_num_rewards(group) <= 1 for group in made),
        "group/sampled": len(made),
        "group/used": len(demand.kept),
        "group/rounds": demand.rounds,
        "completion/mean_length": _mean(lengths),
        "completion/mean_length_right": _mean(
            len(c.token_ids) for c, verdict, _ in valid if verdict.score == 1
        ),
        "completion/mean_length_wrong": _mean(
            len(c.token_ids) for c, verdict, _ in valid if verdict.score < 1
        ),
        "completion/truncated_frac": _mean(is_truncated(c) for c, _, _ in pairs),
        "verifier/unparsed_frac": _mean(v.status is Status.UNPARSED for _, v, _ in pairs),
        "verifier/error_frac": _mean(v.status is Status.ERROR for _, v, _ in pairs),
        "verifier/timeout_frac": _mean(v.status is Status.TIMEOUT for _, v, _ in pairs),
        **result.scalars(),
        **_batch_scalars(batch),
        "optim/updates": result.updates,
        "optim/without_signal": result.without_signal,
        "optim/nonfinite": progress.nonfinite,
        "progress/tokens_generated": progress.tokens_generated,
        "progress/prompts_seen": progress.prompts_seen,
    }


def _batch_scalars(batch: Batch | None) -> dict[str, float]:
    """Sizes and advantages of what trained; a group is effective when an advantage is not 0."""
    if batch is None:
        return {"loss/tokens": 0, "loss/sequences": 0, "group/effective": 0}
    trained_N = batch.length_N > 0
    adv_N = batch.adv_N[trained_N]
    return {
        "loss/tokens": int(batch.length_N.sum()),
        "loss/sequences": int(trained_N.sum()),
        "loss/masked_sequences": int((~trained_N).sum()),
        "loss/masked_tokens": int((batch.full_length_N - batch.length_N).sum()),
        "group/effective": len(batch.prompt_N[trained_N & (batch.adv_N != 0)].unique()),
        **({} if batch.kl_N is None else {"reward/kl_mean": float(batch.kl_N.mean())}),
        "advantage/mean": _mean(adv_N.tolist()),
        "advantage/std": float(adv_N.std()) if len(adv_N) > 1 else float("nan"),
        "advantage/min": min(adv_N.tolist(), default=float("nan")),
        "advantage/max": max(adv_N.tolist(), default=float("nan")),
    }


def rollout_rows(demand: Demand, batch: Batch | None) -> Iterator[dict[str, object]]:
    """One row per completion; groups that a filter dropped have `kept` false and no advantage."""
    adv_N = iter(batch.adv_N.tolist() if batch else ())
    for kept, groups in ((True, demand.kept), (False, demand.dropped)):
        for scored in groups:
            for index, (completion, verdict, reward) in enumerate(
                zip(scored.group.completions, scored.verdicts, scored.rewards, strict=True)
            ):
                yield {
                    "prompt_id": scored.group.prompt.id,
                    "prompt": [
                        {"role": m.role, "content": m.content} for m in scored.group.prompt.messages
                    ],
                    "reference": scored.group.prompt.reference,
                    "sample": index,
                    "kept": kept,
                    "completion": completion.text,
                    "token_ids": list(completion.token_ids),
                    "sampler_logp": list(completion.logp),
                    "finish": completion.finish,
                    "adapter_version": completion.adapter_version,
                    "score": _or_none(verdict.score),
                    "status": verdict.status,
                    "parsed": verdict.parsed,
                    "detail": verdict.detail,
                    "reward": _or_none(reward),
                    "advantage": next(adv_N) if kept else None,
                }


def _num_rewards(group: ScoredGroup) -> int:
    """How many different rewards the group has after shaping."""
    return len({r for r, v in zip(group.rewards, group.verdicts, strict=True) if not v.missing})


def _unanimous(group: ScoredGroup) -> float | None:
    """The score that every verdict of the group gave, if there is one."""
    scores = {verdict.score for verdict in group.verdicts if not verdict.missing}
    return scores.pop() if len(scores) == 1 else None


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    kept = [float(value) for value in values]
    return sum(kept) / len(kept) if kept else float("nan")


def _or_none(value: float) -> float | None:
    return None if value != value else value
