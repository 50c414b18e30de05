"""Held-out evaluation: sample K answers per question, score them, summarise. Dims: Q, K."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_cli.completion_signals import marked_frac
from grpo_cli.rollout.engine import Engine, Request
from grpo_cli.seeds import eval_seed
from grpo_cli.self_metrics import Judged, self_scalars
from grpo_cli.self_verdict import answer_part, self_check_of
from grpo_cli.stats import Interval, mean_interval, pass_at_k
from grpo_cli.types import EvalRow, Finish, Prompt, Status, Verdict


@dataclass(frozen=True, slots=True)
class Question:
    """A held-out prompt with its token ids."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EvalJob:
    """One policy to evaluate on the shared questions. `adapter` None is the base model."""

    adapter: str | None
    run_seed: int
    samples_per_question: int
    max_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int | None = None


def evaluate(
    engine: Engine,
    verify: Callable[[Sequence[tuple[str, str]]], list[Verdict]],
    questions: Sequence[Question],
    jobs: Sequence[EvalJob],
) -> list[tuple[EvalRow, ...]]:
    """The rows of every job, question by question.

    All jobs share one sampling call and one call of the verifier, which gets (answer, reference)
    pairs and gives their verdicts in the same order.
    """
    plan = [
        (job_index, question, k)
        for job_index, job in enumerate(jobs)
        for question in questions
        for k in range(job.samples_per_question)
    ]
    completions = engine.sample(
        [
            Request(
                question.prompt_ids,
                eval_seed(jobs[j].run_seed, question.prompt.id, k),
                jobs[j].adapter,
                jobs[j].max_tokens,
                jobs[j].temperature,
                top_p=jobs[j].top_p,
                top_k=jobs[j].top_k,
            )
            for j, question, k in plan
        ]
    )
    rows: list[list[EvalRow]] = [[] for _ in jobs]
    verdicts = verify(
        [
            (answer_part(completion.text, question.prompt), question.prompt.reference)
            for (_, question, _), completion in zip(plan, completions, strict=True)
        ]
    )
    for (j, question, k), completion, verdict in zip(plan, completions, verdicts, strict=True):
        check = self_check_of(completion, question.prompt)
        rows[j].append(
            EvalRow(
                question_id=question.prompt.id,
                cluster=question.prompt.id,
                sample=k,
                score=verdict.score,
                status=verdict.status,
                num_tokens=len(completion.token_ids),
                finish=completion.finish,
                text=completion.text,
                self_verdict=None if check is None else check.verdict,
                p_right=math.nan if check is None else check.p_right,
            )
        )
    return [tuple(job_rows) for job_rows in rows]


def scores_by_question(rows: Sequence[EvalRow]) -> dict[str, list[float]]:
    """Scores of each question; a missing verdict is left out, so a question may have none."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        kept = scores.setdefault(row.question_id, [])
        if row.status in (Status.OK, Status.UNPARSED):
            kept.append(row.score)
    return scores


def accuracy(rows: Sequence[EvalRow]) -> Interval:
    """avg@K over questions with its 95 % interval; the unit is the question."""
    return mean_interval(list(_question_means(rows).values()))


def paired_difference(before: Sequence[EvalRow], after: Sequence[EvalRow]) -> Interval:
    """Mean per-question difference, after minus before, with its 95 % interval.

    A statement about these two checkpoints, not about the method: that needs several seeds.
    """
    old, new = _question_means(before), _question_means(after)
    return mean_interval([new[q] - old[q] for q in old if q in new])


def summarise(rows: Sequence[EvalRow], markers: Sequence[str] = ()) -> dict[str, float]:
    """The `eval/*` scalars of a step record. `markers` are those of the recipe's `health`."""
    scores = scores_by_question(rows)
    k = 1 + max((row.sample for row in rows), default=0)
    solved = [pass_at_k(len(s), sum(x >= 1 for x in s), k) for s in scores.values()]
    count = max(len(rows), 1)
    judged = [row for row in rows if row.status in (Status.OK, Status.UNPARSED)]
    right = [row for row in judged if row.score >= 1]
    wrong = [row for row in judged if row.score < 1]
    return {
        "eval/accuracy": accuracy(rows).mean,
        f"eval/pass_at_{k}": mean_interval(solved).mean,
        "eval/format_frac": _mean([row.status is Status.OK for row in judged]),
        "eval/mean_length_right": _mean([row.num_tokens for row in right]),
        "eval/mean_length_wrong": _mean([row.num_tokens for row in wrong]),
        "eval/reflection_right_frac": marked_frac([row.text for row in right], markers),
        "eval/reflection_wrong_frac": marked_frac([row.text for row in wrong], markers),
        "eval/mean_length": sum(row.num_tokens for row in rows) / count,
        "eval/truncated_frac": sum(row.finish is Finish.LENGTH for row in rows) / count,
        "eval/unparsed_frac": sum(row.status is Status.UNPARSED for row in rows) / count,
        "eval/verifier_error_frac": sum(
            row.status in (Status.ERROR, Status.TIMEOUT) for row in rows
        )
        / count,
        **self_scalars(
            [Judged(r.score, r.self_verdict, r.p_right) for r in judged if r.self_verdict],
            "eval/self_",
        ),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _question_means(rows: Sequence[EvalRow]) -> dict[str, float]:
    return {
        question: sum(scores) / len(scores) if scores else float("nan")
        for question, scores in scores_by_question(rows).items()
    }
