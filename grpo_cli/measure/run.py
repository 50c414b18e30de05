"""Measure policies: the same questions, the same seeds, one folder of rows.

Heavy imports happen inside functions, after everything that can be refused cheaply was checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_cli import __version__
from grpo_cli.difficulty import sample_prompts
from grpo_cli.errors import error
from grpo_cli.measure.ask import Ask, default_out, resolve_recipe
from grpo_cli.measure.figures import Figure, Summary, best, difference, summarise
from grpo_cli.measure.leak import Leak, bare, find_leaks
from grpo_cli.measure.rows import Cell, Rows, Store, digest
from grpo_cli.measure.sample import Plan, Say, sample
from grpo_cli.measure.target import Subject
from grpo_cli.measure.wordings import Wording, own_wording, parse_wordings
from grpo_cli.prepare import open_judge
from grpo_cli.recipe.schema import ArithmeticTask, Recipe
from grpo_cli.recipe.task_schema import AnyTask
from grpo_cli.rollout.choose import engine_kind
from grpo_cli.runlock import claim, release
from grpo_cli.tasks import load_task, task_fingerprint
from grpo_cli.tasks.data import DataSet
from grpo_cli.types import Prompt
from grpo_cli.verify.load import LoadedVerifier


@dataclass(frozen=True, slots=True)
class Job:
    """`grpo eval` after its targets were found."""

    subject: Subject
    other: Subject | None
    ask: Ask
    runs_dir: Path
    out: Path | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """A trained policy against its base, each in its best wording."""

    base: str
    trained: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of one `grpo eval`."""

    subject: Subject
    other: Subject | None
    recipe: Recipe
    ask: Ask
    seed: int
    num_questions: int
    engine: str
    verifier: str
    folder: Path
    summaries: Mapping[Cell, Summary]
    policies: Mapping[str, Subject]
    differences: Mapping[str, Figure]
    """Wording -> subject minus other."""
    gain: Gain | None
    leaks: Sequence[Leak]
    notes: Sequence[str]


def measure(job: Job, say: Say) -> Report:
    """Sample, score, and put the rows into `job.out`; finished rows are used again.

    Raises:
        GrpoError: exit code 2 for what can be refused before sampling, 3 for what fails then.
    """
    ask = job.ask
    recipe = resolve_recipe(job.subject, ask)
    job = _with_settings(job, recipe)
    subject = job.subject
    wordings = parse_wordings(ask.templates, recipe.task) if ask.templates else [
        own_wording(recipe.task)
    ]  # fmt: skip
    judge = open_judge(recipe)
    if judge.note:
        say(judge.note)
    questions = {
        wording.name: _prompts(
            recipe.task.model_copy(update={"template": wording.template}),
            recipe,
            ask,
            judge.verifier,
        )
        for wording in wordings
    }
    first = next(iter(questions.values()))
    seed = subject.seed if ask.seed is None else ask.seed
    plan = Plan(recipe, judge, ask.k, seed, questions, _policies(job))
    asked = _asked(plan, ask, wordings)
    folder = job.out or default_out(job.runs_dir, subject.label, digest(asked))
    lock = claim(folder.parent, folder)
    try:
        store = Store(folder, asked, restart=job.restart)
        rows = sample(plan, store, say)
    finally:
        release(folder, [lock])
    summaries = {cell: summarise(own, ask.k) for cell, own in rows.items()}
    leaks = _leaks(job, recipe, len(first), judge.verifier, say)
    return Report(
        subject=subject,
        other=job.other,
        recipe=recipe,
        ask=ask,
        seed=seed,
        num_questions=len(first),
        engine=engine_kind(recipe),
        verifier=judge.verifier.name,
        folder=folder,
        summaries=summaries,
        policies=plan.policies,
        differences=_differences(job, rows, wordings),
        gain=_gain(job, rows, summaries),
        leaks=leaks,
        notes=_notes(summaries),
    )


def _with_settings(job: Job, recipe: Recipe) -> Job:
    """The job with what `--set model...` or a setup says of the models: revision and thinking.

    A model that is not a run's own is asked as the target is.
    """
    other = job.other
    if other is not None and (other.model == job.subject.model or other.tree is None):
        same = other.model.id == recipe.model.id
        changes = {"thinking": recipe.model.thinking}
        other = replace(
            other, model=recipe.model if same else other.model.model_copy(update=changes)
        )
    return replace(job, subject=replace(job.subject, model=recipe.model), other=other)


def _policies(job: Job) -> dict[str, Subject]:
    """Label -> policy, the subject first; with several wordings a trained one brings its base."""
    found = {job.subject.label: job.subject}
    if job.ask.templates and job.subject.adapter is not None:
        base = job.subject.base()
        found[base.label] = base
    if job.other is not None:
        if job.other.label == job.subject.label:
            raise error("GR209", f"--vs {job.other.label}: that is the target itself")
        found[job.other.label] = job.other
    return found


def _prompts(
    settings: AnyTask, recipe: Recipe, ask: Ask, verifier: LoadedVerifier
) -> tuple[Prompt, ...]:
    """The questions of the split, as many as were asked for.

    Raises:
        GrpoError: GR209 when there are not so many, GR205 when the data cannot be had.
    """
    task = load_task(settings, verifier, train=ask.split == "train")
    there = task.size if ask.split == "train" else None
    if isinstance(task, DataSet) and ask.split == "test":
        there = len(task.held_out_rows)
    wanted = ask.num_questions
    if wanted is None:
        # A setup's budget is meant for its own task; another one is asked whole.
        own = ask.task is None or isinstance(settings, ArithmeticTask) or ask.split == "train"
        wanted = recipe.eval.num_questions if own or there is None else there
        wanted = wanted if there is None else min(wanted, there)
    if not wanted or (there is not None and wanted > there):
        raise error(
            "GR209",
            f"the {settings.kind} task has {there} {ask.split} questions"
            + (f", {wanted} were asked for" if wanted else ""),
            hint="lower --num-questions" if there else "use the other --split",
        )
    if ask.split == "test":
        return task.held_out(wanted)
    prompts = tuple(sample_prompts(task, wanted))
    if len(prompts) < wanted:
        raise error(
            "GR209",
            f"the {settings.kind} task has only {len(prompts)} distinct training questions, "
            f"{wanted} were asked for",
            hint="lower --num-questions",
        )
    return prompts


def _asked(plan: Plan, ask: Ask, wordings: Sequence[Wording]) -> dict[str, Any]:
    """Everything that decides a row."""
    recipe = plan.recipe
    source = plan.judge.verifier.source
    task = recipe.task.model_dump(mode="json", exclude={"template"})
    ids = [prompt.id for prompt in plan.questions[wordings[0].name]]
    return {
        "version": __version__,
        "k": plan.k,
        "seed": plan.seed,
        "split": ask.split,
        "temperature": recipe.sampling.temperature,
        "max_tokens": recipe.sampling.max_tokens,
        # Left out when off, so that the folders of earlier measurements are found again.
        **recipe.sampling.model_dump(include={"top_p", "top_k"}, exclude_defaults=True),
        "task": task,
        "data": task_fingerprint(recipe.task),
        "questions": digest({"ids": ids}),
        "wordings": {w.name: w.template for w in wordings},
        "verifier": {"name": source.name, "sha256": source.sha256, "options": dict(source.options)},
        "verifier limits": recipe.verifier.model_dump(
            mode="json", include={"sample_limit_s", "batch_limit_s", "memory_gib", "sandbox"}
        ),
        "engine": {"kind": engine_kind(recipe), **recipe.engine.model_dump(exclude={"kind"})},
        "learner": recipe.learner.model_dump(
            mode="json", include={"dtype", "fp32_head"}
        ),
        "device": recipe.device,
        "policies": {label: policy.fingerprint() for label, policy in plan.policies.items()},
    }  # fmt: skip


def _differences(job: Job, rows: Rows, wordings: Sequence[Wording]) -> dict[str, Figure]:
    if job.other is None:
        return {}
    return {
        wording.name: difference(
            rows[Cell(job.subject.label, wording.name)], rows[Cell(job.other.label, wording.name)]
        )
        for wording in wordings
    }


def _gain(job: Job, rows: Rows, summaries: Mapping[Cell, Summary]) -> Gain | None:
    """The trained policy's best wording against the base's best wording."""
    if not job.ask.templates or job.subject.adapter is None:
        return None
    base, trained = job.subject.base().label, job.subject.label
    names = [
        best({c.template: s for c, s in summaries.items() if c.policy == label})
        for label in (base, trained)
    ]
    figure = difference(rows[Cell(trained, names[1])], rows[Cell(base, names[0])])
    return Gain(names[0], names[1], figure)


def _leaks(
    job: Job, recipe: Recipe, num_questions: int, verifier: LoadedVerifier, say: Say
) -> list[Leak]:
    """What the run trained on of the held-out questions; nothing to look at without a run."""
    subject = job.subject
    if subject.run is None or subject.adapter is None or job.ask.split == "train":
        return []
    say("looking for held-out questions among the training prompts")
    as_trained = resolve_recipe(subject, Ask())
    ask = Ask(task=job.ask.task, num_questions=num_questions)
    return find_leaks(_prompts(bare(recipe.task), recipe, ask, verifier), subject.run, as_trained)


def _notes(summaries: Mapping[Cell, Summary]) -> list[str]:
    """What a reader should know before the numbers are quoted."""
    notes = []
    for cell, summary in summaries.items():
        where = f"{cell.policy}, {cell.template}"
        if summary.truncated_frac > 0.1:
            notes.append(
                f"{where}: {100 * summary.truncated_frac:.0f} % of the answers were cut off at the "
                "token limit; raise --max-tokens before comparing"
            )
        if summary.verifier_failed_frac:
            notes.append(
                f"{where}: the verifier failed on {100 * summary.verifier_failed_frac:.1f} % of "
                f"the answers, which are in no figure ({summary.without_verdict} questions have "
                "no verdict at all)"
            )
    return notes
