"""Sample and score every policy in every wording, a block of questions at a time.

Heavy imports happen inside functions: when all rows are on disk, no model is loaded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_cli.errors import GrpoError, error
from grpo_cli.measure.rows import Cell, Rows, Sampled, Store, sampled
from grpo_cli.measure.target import Subject
from grpo_cli.prepare import Judge, open_pool
from grpo_cli.recipe.schema import Model, Recipe
from grpo_cli.rollout.choose import engine_kind
from grpo_cli.types import Prompt, Verdict

if TYPE_CHECKING:
    from grpo_cli.evaluate import EvalJob, Question
    from grpo_cli.policy.policy import Policy
    from grpo_cli.rollout.engine import Engine
    from grpo_cli.verify.pool import VerifierPool

_MANY_ROWS = 2048
"""Rows of a block for an engine that does its own batching."""
_TELL_S = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to sample: all policies get all questions in all wordings, with the same seeds."""

    recipe: Recipe
    judge: Judge
    k: int
    seed: int
    questions: Mapping[str, Sequence[Prompt]]
    """Wording -> prompts, the same questions in the same order in each."""
    policies: Mapping[str, Subject]
    """Label -> policy."""

    @property
    def block(self) -> int:
        """Questions in a block. Whole engine batches, so that a cell's answers are those of one
        call: what is decoded together decides the rounding."""
        own = engine_kind(self.recipe) == "transformers"
        return math.lcm(self.recipe.engine.batch_rows if own else _MANY_ROWS, self.k) // self.k


def sample(plan: Plan, store: Store, say: Say) -> Rows:
    """The rows of every cell, in the order policy, wording; what the store has is used again.

    Raises:
        GrpoError: GR201 and GR241 for a model or engine, GR303 when rows cannot be written, GR304
            when the verifier failed on every answer.
    """
    rows: Rows = {}
    block = plan.block * plan.k
    for cell in (Cell(label, name) for label in plan.policies for name in plan.questions):
        wanted = [(p.id, i) for p in plan.questions[cell.template] for i in range(plan.k)]
        done = store.finished(cell, wanted)
        # Of an unfinished cell whole blocks only: a block is decoded together, and must be again.
        whole = len(done) if len(done) == len(wanted) else len(done) // block * block
        rows[cell] = done[:whole]
    store.keep(rows)
    if reused := sum(map(len, rows.values())):
        say(f"{reused} finished rows used again from {store.folder}")
    todo = [c for c, r in rows.items() if len(r) < len(plan.questions[c.template]) * plan.k]
    if todo:
        with open_pool(plan.judge.verifier, plan.recipe.verifier) as pool:
            for model in dict.fromkeys(plan.policies[cell.policy].model for cell in todo):
                cells = [cell for cell in todo if plan.policies[cell.policy].model == model]
                _sample_model(plan, model, cells, rows, pool, store, say)
    return rows


def _sample_model(
    plan: Plan,
    model: Model,
    cells: Sequence[Cell],
    rows: Rows,
    pool: VerifierPool,
    store: Store,
    say: Say,
) -> None:
    """Load one base model with the adapters on it, and sample what is missing."""
    from grpo_cli.evaluate import EvalJob, Question

    say(f"loading {model.id}")
    labels = dict.fromkeys(cell.policy for cell in cells)
    policy, engine, adapters = _load(plan, model, list(labels), say)
    sampling = plan.recipe.sampling
    for cell in cells:
        questions = [Question(p, policy.render(p.messages)) for p in plan.questions[cell.template]]
        job = EvalJob(
            adapters[cell.policy],
            plan.seed,
            plan.k,
            sampling.max_tokens,
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
        )
        for new in _blocks(plan, cell, questions, job, engine, pool, len(rows[cell]), say):
            store.append(cell, new)
            rows[cell] += new


def _load(
    plan: Plan, model: Model, labels: Sequence[str], say: Say
) -> tuple[Policy, Engine, dict[str, str | None]]:
    """The base model, an engine on it, and the name of each policy's adapter."""
    from grpo_cli.policy.policy import load_policy
    from grpo_cli.policy.state import load_adapter
    from grpo_cli.rollout.choose import make_engine

    try:
        policy = load_policy(model, plan.recipe.device, plan.recipe.learner)
    except GrpoError as problem:
        raise _for_targets(problem, [plan.policies[label] for label in labels]) from problem
    names: dict[str, str | None] = dict.fromkeys(labels)
    lora = plan.recipe.lora.model_copy(update={"rank": 1})
    for label in labels:
        subject = plan.policies[label]
        if subject.adapter is None:
            continue
        name = f"policy{labels.index(label)}"
        policy.add_adapter(name, subject.lora, 0)
        load_adapter(subject.adapter, policy, name)
        names[label] = name
        # vLLM makes room for the largest rank.
        lora = subject.lora if subject.lora.rank > lora.rank else lora
    here = plan.recipe.model_copy(update={"model": model, "lora": lora})
    trained = [name for name in names.values() if name is not None]
    engine = make_engine(policy, here, max(len(trained), 1), say)
    for name in trained:
        engine.sync(name, 1)
    return policy, engine, names


def _for_targets(problem: GrpoError, subjects: Sequence[Subject]) -> GrpoError:
    """The error of a model that is not there, with a hint that `grpo eval` can follow: here the
    target says which model is loaded, and `--set model.id` is refused."""
    adapters = [s for s in subjects if s.kind == "adapter" and s.adapter is not None]
    if problem.exit_code != 2 or not any(
        "--set model.id" in (p.hint or "") for p in problem.problems
    ):
        return problem
    hint = "pass the folder of the model as the target"
    if adapters:
        hint = (
            f"bring the base model there, or mend base_model_name_or_path in {adapters[0].adapter}"
        )
    changed = [replace(p, hint=hint) for p in problem.problems]
    return GrpoError(*changed, exit_code=problem.exit_code)


def _blocks(
    plan: Plan,
    cell: Cell,
    questions: Sequence[Question],
    job: EvalJob,
    engine: Engine,
    pool: VerifierPool,
    num_done: int,
    say: Say,
) -> Iterator[list[Sampled]]:
    """The rows that a cell lacks, block by block."""
    from grpo_cli.evaluate import evaluate

    verdicts: list[Verdict] = []

    def verify(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        # `evaluate` keeps scores only; the answers that were read are wanted here too.
        verdicts[:] = pool(pairs)
        return list(verdicts)

    begin = num_done // plan.k
    begun = last = time.monotonic()
    failure: str | None = None
    num_verdicts = 0
    for start in range(begin, len(questions), plan.block):
        part = questions[start : start + plan.block]
        (found,) = evaluate(engine, verify, part, [job])
        num_verdicts += sum(not v.missing for v in verdicts)
        failure = failure or next((v.detail or v.status for v in verdicts if v.missing), None)
        yield [sampled(row, verdict) for row, verdict in zip(found, verdicts, strict=True)]
        now, done = time.monotonic(), start + len(part)
        if done == len(questions) or now - last >= _TELL_S:
            last = now
            left = (now - begun) / (done - begin) * (len(questions) - done)
            rest = f", about {left:.0f} s left" if done < len(questions) else ""
            say(
                f"{cell.policy}, {cell.template}: {done} of {len(questions)} questions, "
                f"{now - begun:.0f} s{rest}"
            )
    if not num_verdicts:
        raise error(
            "GR304",
            f"the verifier failed on all {(len(questions) - begin) * plan.k} answers, first with: "
            f"{failure}",
            hint="mend the verifier or pass another --verifier, then --restart",
            exit_code=3,
        )
