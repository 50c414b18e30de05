"""Why an update was what it was: a step's groups, rewards, advantages and weights, from its record.

Everything is read from the run folder; no model is run and nothing on disk is changed. Imports
torch only where the weights are recomputed.

Dims: N sequences of the batch (the rows of kept groups), in the order of the rollout file.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

from grpo_cli.errors import error
from grpo_cli.health.explained import Explained, Group, Sample, Share, Worst
from grpo_cli.health.weighing import FAILED, StoredRecipe, stored_recipe, weighed
from grpo_cli.objective.aggregate import minibatch_of
from grpo_cli.runfiles import damaged, read_info, read_metrics, read_rollouts, step_files
from grpo_cli.types import Finish, Status

Choice = Literal["mismatch", "length", "advantage"]

_SCALARS = (
    "loss/total",
    "optim/grad_norm",
    "optim/lr",
    "optim/updates",
    "optim/without_signal",
    "optim/nonfinite",
    "ratio/clipped_low_frac",
    "ratio/clipped_high_frac",
    "ratio/max",
    "policy/entropy",
    "reward/kl_mean",
    "mismatch/logp_abs_mean",
    "mismatch/logp_abs_max",
    "correction/modified_frac",
    "correction/rejected_frac",
)
"""Of the step's record: what only the update itself could measure."""


def explain_step(run: Path, step: int) -> Explained:
    """Read a step's rollouts and work out what its update was made of.

    Raises:
        GrpoError: GR206 when it is no run folder, GR209 when the step has no rollouts, GR204 when a
            file of the run is damaged.
    """
    read_info(run)
    recipe = stored_recipe(run)
    rows = list(_rows(run, step))
    aggregate, overlong = recipe.aggregate, recipe.overlong
    groups = weighed(_grouped(rows, recipe), recipe)
    batch = [s for group in groups if group.kept for s in group.samples]
    record = next((r for r in read_metrics(run) if r.step == step), None)
    scalars = {} if record is None else record.scalars
    sums = tuple(
        sum(
            s.weight * s.length
            for group in groups
            if group.minibatch == part
            for s in group.samples
        )
        for part in sorted({g.minibatch for g in groups if g.minibatch is not None})
    )
    lengths = [s.length for s in batch if s.weight > 0]
    middle = float(median(lengths)) if lengths else math.nan
    return Explained(
        run=str(run),
        step=step,
        aggregate=f"{aggregate.kind}: {aggregate.formula()}",
        advantage=recipe.advantage,
        overlong=f"{overlong.kind}: {overlong.formula()}",
        minibatches=recipe.minibatches,
        groups=tuple(groups),
        splits=_splits(batch, middle),
        median_length=middle,
        weight_sums=sums,
        scalars={key: scalars[key] for key in _SCALARS if key in scalars},
        worst=_worst(groups),
        notes=tuple(_notes(groups, recipe, scalars, sums, recorded=record is not None)),
    )


def choose_group(explained: Explained, choice: Choice) -> int:
    """The group with the largest mismatch of a token, the longest completion, or the largest
    advantage in size.

    Raises:
        GrpoError: GR209 when the step has nothing of the kind.
    """
    if choice == "mismatch":
        if explained.worst is None:
            raise error(
                "GR209",
                f"--worst mismatch: no completion of step {explained.step} has the learner's "
                "log-probabilities",
                hint="they are recorded for completions that train, since rollouts have "
                "`learner_logp`; use --worst length or advantage",
            )
        return explained.worst.group
    found = [
        (s.length if choice == "length" else abs(s.advantage), -group.number)
        for group in explained.groups
        for s in group.samples
        if choice == "length" or not math.isnan(s.advantage)
    ]
    if not found:
        raise error(
            "GR209",
            f"--worst {choice}: no group of step {explained.step} trained",
            hint="use --worst length",
        )
    return -max(found)[1]


def _rows(run: Path, step: int) -> Iterator[tuple[Mapping[str, Any], Sample]]:
    path = run / "rollouts" / f"step-{step:06d}.jsonl.gz"
    try:
        rows = read_rollouts(run, step)
    except (FileNotFoundError, NotADirectoryError) as problem:
        there = [number for number, _ in step_files(run / "rollouts")]
        raise error(
            "GR209",
            f"--step {step}: {run} has no rollouts of this step",
            hint=f"there are steps {ranges(there)}"
            if there
            else "no step of the run has any: it has not trained",
        ) from problem
    # gzip raises EOFError and zlib.error (an Exception of its own) for a file that is cut or bent.
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise damaged(path, "it cannot be unpacked and read") from problem
    for number, row in enumerate(rows, start=1):
        try:
            yield row, _sample(row)
        except (KeyError, TypeError, ValueError) as problem:
            raise damaged(path, f"line {number} is not the row of a completion") from problem


def _sample(row: Mapping[str, Any]) -> Sample:
    if not isinstance(row, dict):
        raise TypeError("it is not a JSON object")
    learner = row.get("learner_logp")
    sample = Sample(
        sample=int(row["sample"]),
        completion=str(row["completion"]),
        token_ids=tuple(int(t) for t in row["token_ids"]),
        sampler_logp=tuple(float(x) for x in row["sampler_logp"]),
        learner_logp=None if learner is None else tuple(float(x) for x in learner),
        finish=Finish(row["finish"]),
        status=Status(row["status"]),
        score=_number(row["score"]),
        reward=_number(row["reward"]),
        parsed=row["parsed"],
        detail=row["detail"],
        advantage=_number(row["advantage"]),
    )
    sizes = {len(sample.token_ids), len(sample.sampler_logp), len(learner or sample.token_ids)}
    if len(sizes) != 1:
        raise ValueError("tokens and log-probabilities are not of one length")
    str(row["prompt_id"]), str(row["reference"]), bool(row["kept"])
    return sample


def _number(value: object) -> float:
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return math.nan if value is None else float(value)


def _grouped(rows: Sequence[tuple[Mapping[str, Any], Sample]], recipe: StoredRecipe) -> list[Group]:
    """Groups as they lie in the file: `sample` counts up within one."""
    cut: list[list[tuple[Mapping[str, Any], Sample]]] = []
    for row, sample in rows:
        new = not cut or sample.sample == 0 or cut[-1][0][0]["prompt_id"] != row["prompt_id"]
        if new:
            cut.append([])
        cut[-1].append((row, sample))
    kept = [bool(rows_of[0][0]["kept"]) for rows_of in cut]
    parts = minibatch_of(sum(kept), recipe.minibatches)
    groups = []
    for number, (rows_of, used) in enumerate(zip(cut, kept, strict=True)):
        first = rows_of[0][0]
        samples = tuple(sample for _, sample in rows_of)
        groups.append(
            Group(
                number=number,
                prompt_id=str(first["prompt_id"]),
                prompt="\n".join(str(turn["content"]) for turn in first["prompt"]),
                reference=str(first["reference"]),
                kept=used,
                why=_why(samples, used),
                minibatch=parts[number] if used else None,
                samples=samples,
            )
        )
    return groups


def _why(samples: Sequence[Sample], kept: bool) -> str:
    scores = [s.score for s in samples if s.status not in FAILED]
    if not scores:
        told = "no verdict: the verifier failed on every completion"
    elif len(set(scores)) > 1:
        right = sum(score == 1 for score in scores)
        told = f"{right} of {len(scores)} right"
        if not kept:
            return f"{told}: dropped, the batch was full"
    else:
        words = {1.0: "all right", 0.0: "all wrong"}
        told = f"{words.get(scores[0], f'all score {scores[0]:g}')}: no contrast"
    if not kept:
        return f"{told}, dropped"
    if all(s.advantage == 0 for s in samples):
        return f"{told}, every advantage is 0"
    if len(set(scores)) == 1 and len({s.reward for s in samples if s.score == s.score}) > 1:
        return f"{told} in the scores; the length penalty alone sets the advantages"
    return told


def _splits(batch: Sequence[Sample], middle: float) -> dict[str, tuple[Share, ...]]:
    """Shares of the batch by pairs of parts that cover it."""
    return {
        "verdict": (
            _share("right", [s for s in batch if s.right], batch),
            _share("wrong", [s for s in batch if not s.right], batch),
        ),
        "advantage": (
            _share("positive", [s for s in batch if s.advantage > 0], batch),
            _share("negative", [s for s in batch if s.advantage < 0], batch),
            _share("zero", [s for s in batch if not s.advantage], batch),
        ),
        "length": (
            _share("short", [s for s in batch if s.length <= middle], batch),
            _share("long", [s for s in batch if s.length > middle], batch),
        ),
        "end": (
            _share("finished", [s for s in batch if not s.truncated], batch),
            _share("truncated", [s for s in batch if s.truncated], batch),
        ),
    }


def _share(name: str, part: Sequence[Sample], whole: Sequence[Sample]) -> Share:
    trained = [s for s in part if s.weight > 0]
    pull, tokens = sum(s.pull for s in whole), sum(s.length for s in whole if s.weight > 0)
    return Share(
        name,
        sum(s.pull for s in trained) / pull if pull else math.nan,
        sum(s.length for s in trained) / tokens if tokens else math.nan,
        len(trained),
    )


def _worst(groups: Sequence[Group], around: int = 8) -> Worst | None:
    found = [(g, s, s.gap) for g in groups for s in g.samples]
    with_gap = [(g, s, gap) for g, s, gap in found if gap is not None]
    if not with_gap:
        return None
    group, sample, (place, _) = max(with_gap, key=lambda item: abs(item[2][1]))
    assert sample.learner_logp is not None
    return Worst(
        group=group.number,
        sample=sample.sample,
        position=place,
        token_id=sample.token_ids[place],
        learner_logp=sample.learner_logp[place],
        sampler_logp=sample.sampler_logp[place],
        before=sample.token_ids[max(0, place - around) : place],
        after=sample.token_ids[place + 1 : place + 1 + around],
    )


def _notes(
    groups: Sequence[Group],
    recipe: StoredRecipe,
    scalars: Mapping[str, float],
    sums: Sequence[float],
    recorded: bool,
) -> Iterator[str]:
    used = [s for g in groups if g.kept for s in g.samples]
    if not recorded:
        yield "the step has no line in metrics.jsonl: it was cut off, or is being written"
    if not used:
        yield "no group was used, so nothing was updated"
    elif all(s.learner_logp is None for s in used):
        yield (
            "no learner_logp in these rollouts: an older version wrote them, or nothing trained; "
            "mismatch cannot be shown"
        )
        if recipe.geo_rs is not None:
            yield "what geo_rs rejected is unknown without learner_logp; its weights are left in"
    if recipe.kl_in_reward:
        yield (
            "k1_reward takes the KL off the rewards after shaping: the advantages hold it, the "
            "rewards shown do not"
        )
    told = scalars.get("loss/weight_sum", math.nan)
    if sums and not math.isnan(told):
        mean = sum(sums) / len(sums)
        if not math.isclose(mean, told, rel_tol=1e-6, abs_tol=1e-9):
            yield (
                f"the recomputed weights sum to {mean:.6g} per minibatch, the update recorded "
                f"{told:.6g}: do not trust the weights shown"
            )


def ranges(numbers: Sequence[int]) -> str:
    """`1-6, 8, 10-12`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)
