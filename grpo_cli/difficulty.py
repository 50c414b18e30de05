"""How hard a task's prompts are for the base model, and how many groups will have no contrast.

Dims: P prompts, K samples per prompt, G group size of the recipe.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from grpo_cli.evaluate import EvalJob, Question, evaluate
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.engine import Engine
from grpo_cli.seeds import data_index
from grpo_cli.stats import Interval, mean_interval
from grpo_cli.tasks import Task
from grpo_cli.types import EvalRow, Finish, Prompt, Status, Verdict

BINS = ((0.0, 0.0), (0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0), (1.0, 1.0))
"""Of the histogram: exactly 0, then between (low <= rate < high, without 0), then exactly 1."""


@dataclass(frozen=True, slots=True)
class PromptRate:
    """What K samples of one prompt showed. `scores` leaves out missing verdicts.

    Example:
        PromptRate("3f1c", level=2, scores=(1.0, 0.0, 1.0, 1.0), num_truncated=0, num_unparsed=1,
                   mean_tokens=41.5)
    """

    prompt_id: str
    level: int | None
    scores: tuple[float, ...]
    num_truncated: int
    num_unparsed: int
    mean_tokens: float

    @property
    def rate(self) -> float:
        """Share of right answers (score 1), NaN without a verdict."""
        return sum(s >= 1 for s in self.scores) / len(self.scores) if self.scores else math.nan


@dataclass(frozen=True, slots=True)
class ZeroVariance:
    """Expected share of groups of G whose scores are all the same, and what it is made of.

    `unbiased` is False when K < G: K samples cannot say without a model what G would do, and the
    figure comes from a beta-binomial fit (no interval then).
    """

    share: Interval
    all_right: float
    all_wrong: float
    unbiased: bool


def sample_prompts(task: Task, n: int) -> list[Prompt]:
    """`n` training prompts (all, if there are fewer), distinct, the same on every call."""
    found: dict[str, Prompt] = {}
    for position in range(task.size):
        if len(found) == n:
            break
        prompt = task.train(data_index(0, "profile", position, task.size))
        found.setdefault(prompt.id, prompt)
    return list(found.values())


def measure(
    engine: Engine,
    verify: Callable[[Sequence[tuple[str, str]]], list[Verdict]],
    questions: Sequence[Question],
    recipe: Recipe,
    k: int,
    progress: Callable[[int, int], None],
) -> list[PromptRate]:
    """Sample every question `k` times from the base model, as the recipe samples.

    `progress(done, total)` counts questions; it is called after each block of at least two engine
    batches.
    """
    sampling = recipe.sampling
    job = EvalJob(
        None, 0, k, sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k
    )
    block = max(1, 2 * recipe.engine.batch_rows // k)
    rates: list[PromptRate] = []
    for start in range(0, len(questions), block):
        part = questions[start : start + block]
        (rows,) = evaluate(engine, verify, part, [job])
        for i, question in enumerate(part):
            rates.append(_rate(question.prompt, rows[i * k : (i + 1) * k]))
        progress(start + len(part), len(questions))
    return rates


def _rate(prompt: Prompt, rows: Sequence[EvalRow]) -> PromptRate:
    level = prompt.meta.get("level")
    return PromptRate(
        prompt_id=prompt.id,
        level=level if isinstance(level, int) else None,
        scores=tuple(r.score for r in rows if r.status in (Status.OK, Status.UNPARSED)),
        num_truncated=sum(r.finish is Finish.LENGTH for r in rows),
        num_unparsed=sum(r.status is Status.UNPARSED for r in rows),
        mean_tokens=sum(r.num_tokens for r in rows) / len(rows),
    )


def same_score(scores: Sequence[float], group_size: int) -> float:
    """Unbiased estimate of the chance that `group_size` samples all score the same.

    The share of subsets of that size without contrast, sum over values v of C(n_v, G) / C(K, G):
    as for pass@k (arXiv:2107.03374 Eq. 1), each term is unbiased for P(score = v)^G. NaN when there
    are fewer than `group_size` scores.
    """
    if len(scores) < group_size:
        return math.nan
    return sum(_subsets(n, len(scores), group_size) for n in Counter(scores).values())


def expected_zero_variance(rates: Iterable[PromptRate], group_size: int) -> ZeroVariance:
    """The share of groups without contrast to expect; the unit of the interval is the prompt.

    A prompt that lost verdicts and has fewer than `group_size` left does not count.
    """
    scored = [rate for rate in rates if rate.scores]
    enough = [rate for rate in scored if len(rate.scores) >= group_size]
    if scored and not enough:
        counts = [(sum(s >= 1 for s in r.scores), len(r.scores)) for r in scored]
        right, wrong = beta_binomial(counts, group_size)
        share = Interval(right + wrong, math.nan, math.nan, len(scored))
        return ZeroVariance(share, right, wrong, unbiased=False)
    right_P = [_subsets(sum(s >= 1 for s in r.scores), len(r.scores), group_size) for r in enough]
    wrong_P = [_subsets(sum(s <= 0 for s in r.scores), len(r.scores), group_size) for r in enough]
    share_P = [same_score(r.scores, group_size) for r in enough]
    return ZeroVariance(
        mean_interval(share_P),
        mean_interval(right_P).mean,
        mean_interval(wrong_P).mean,
        unbiased=True,
    )


def beta_binomial(counts: Sequence[tuple[int, int]], group_size: int) -> tuple[float, float]:
    """Mean chance of all right and of all wrong in a group, from (right, samples) per prompt.

    Pass rates are taken as draws from a beta distribution with the unbiased first two moments of
    the counts. Where they fit none (spread below chance, or all rates 0 or 1) the rates are taken
    as all equal, or as only 0 and 1.
    """
    usable = [(right, k) for right, k in counts if k >= 2]
    if not usable:
        return math.nan, math.nan
    mean = sum(right / k for right, k in usable) / len(usable)
    square = sum(right * (right - 1) / (k * (k - 1)) for right, k in usable) / len(usable)
    spread = square - mean**2
    if spread <= 0 or not 0 < mean < 1:
        return mean**group_size, (1 - mean) ** group_size
    size = (mean - square) / spread
    if size <= 0:
        return mean, 1 - mean
    return (
        _rising(mean * size, size, group_size),
        _rising((1 - mean) * size, size, group_size),
    )


def _rising(a: float, total: float, count: int) -> float:
    """E[p^count] under a beta distribution with parameters a and total - a."""
    value = 1.0
    for i in range(count):
        value *= (a + i) / (total + i)
    return value


def _subsets(count: int, total: int, size: int) -> float:
    return math.comb(count, size) / math.comb(total, size)


def histogram(rates: Iterable[PromptRate]) -> list[int]:
    """Number of prompts in each of `BINS`."""
    counts = [0] * len(BINS)
    for rate in rates:
        value = rate.rate
        if math.isnan(value):
            continue
        counts[_bin(value)] += 1
    return counts


def _bin(rate: float) -> int:
    if rate <= 0:
        return 0
    return min(1 + int(rate * 4), 4) if rate < 1 else 5


def by_level(rates: Iterable[PromptRate]) -> dict[int, list[PromptRate]]:
    """The prompts of every level, sorted; empty when prompts have none."""
    found: dict[int, list[PromptRate]] = {}
    for rate in rates:
        if rate.level is not None:
            found.setdefault(rate.level, []).append(rate)
    return dict(sorted(found.items()))


class Every:
    """Calls a function at most once in `seconds`, and always at the end."""

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._begun = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Tell how far it is and, from that, how long it will take."""
        now = time.monotonic()
        if done < total and now - self._last < self._seconds:
            return
        self._last = now
        spent = now - self._begun
        left = f", about {spent / done * (total - done):.0f} s left" if done < total else ""
        self._tell(f"{done} of {total} prompts, {spent:.0f} s{left}")
