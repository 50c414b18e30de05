"""From rows to numbers: avg@k, pass@k and maj@k with intervals, shares, differences.

Dims: Q questions, K samples per question. The unit of every interval is the question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grpo_cli.measure.rows import Sampled
from grpo_cli.stats import Interval, maj_at_k, mean_interval, pass_at_k, wilson
from grpo_cli.stats.binomial import BetaBinomial, clustered_interval
from grpo_cli.types import Finish, Status

SMALL = 300
"""Below this many questions a normal interval is too narrow (arXiv:2503.01747)."""
FEW = 30
"""Up to so many questions no winner is called."""

CLUSTERED = "clustered standard error, t"
WILSON = "Wilson"
BETA_BINOMIAL = "beta-binomial"
STUDENT = "t over questions"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its interval and how that was made."""

    name: str
    interval: Interval
    method: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one policy in one wording.

    `without_verdict` counts questions that no sample has a verdict for: they are in no figure.
    """

    figures: tuple[Figure, ...]
    num_questions: int
    without_verdict: int
    mean_length: float
    truncated_frac: float
    unparsed_frac: float
    verifier_failed_frac: float

    @property
    def accuracy(self) -> Figure:
        """avg@k."""
        return self.figures[0]

    def figure(self, name: str) -> Figure | None:
        """The figure of a name such as `pass@4`."""
        return next((f for f in self.figures if f.name == name), None)


@dataclass(frozen=True, slots=True)
class _Question:
    cluster: str
    scores: tuple[float, ...]
    answers: tuple[str | None, ...]

    @property
    def mean(self) -> float:
        # In the order of the samples, as the run's own accuracy is summed.
        return sum(self.scores) / len(self.scores)

    @property
    def num_right(self) -> int:
        return sum(score >= 1 for score in self.scores)


def summarise(rows: Sequence[Sampled], k: int) -> Summary:
    """The numbers of `rows`: k samples each of some questions, question by question."""
    questions = _questions(rows)
    known = [q for q in questions.values() if q.scores]
    figures = [_average(known, k)]
    figures += [_pass(known, size) for size in _sizes(k)]
    if k > 1 and any(answer is not None for q in known for answer in q.answers):
        figures.append(_majority(known, k))
    count = max(len(rows), 1)
    return Summary(
        figures=tuple(figures),
        num_questions=len(questions),
        without_verdict=len(questions) - len(known),
        mean_length=sum(row.num_tokens for row in rows) / count,
        truncated_frac=sum(row.finish is Finish.LENGTH for row in rows) / count,
        unparsed_frac=sum(row.status is Status.UNPARSED for row in rows) / count,
        verifier_failed_frac=sum(row.missing for row in rows) / count,
    )


def difference(rows: Sequence[Sampled], others: Sequence[Sampled]) -> Figure:
    """Mean over questions of `rows` minus `others`, paired, with its interval.

    A question that either has no verdict for is left out.
    """
    ours, theirs = _questions(rows), _questions(others)
    both = [q for q in ours if q in theirs and ours[q].scores and theirs[q].scores]
    return _interval(
        "difference",
        [ours[q].mean - theirs[q].mean for q in both],
        [ours[q].cluster for q in both],
    )


def _questions(rows: Sequence[Sampled]) -> dict[str, _Question]:
    found: dict[str, list[Sampled]] = {}
    for row in rows:
        found.setdefault(row.question_id, []).append(row)
    return {
        name: _Question(
            cluster=own[0].cluster,
            scores=tuple(row.score for row in own if not row.missing),
            answers=tuple(row.parsed for row in own if not row.missing),
        )
        for name, own in found.items()
    }


def _sizes(k: int) -> list[int]:
    """1, 2, 4, ... and k itself."""
    return sorted({*(2**i for i in range(k.bit_length())), k})


def _average(known: Sequence[_Question], k: int) -> Figure:
    values = [q.mean for q in known]
    binary = all(score in (0, 1) for q in known for score in q.scores)
    if not known or not binary:
        return _interval(f"avg@{k}", values, [q.cluster for q in known])
    if _large(known):
        return _clustered_share(f"avg@{k}", values, known)
    return _counted(f"avg@{k}", known)


def _pass(known: Sequence[_Question], size: int) -> Figure:
    """pass@size; a question that lost verdicts and has fewer samples is left out."""
    enough = [q for q in known if len(q.scores) >= size]
    if size == 1 and enough and not _large(enough):
        return _counted("pass@1", enough)
    values = [pass_at_k(len(q.scores), q.num_right, size) for q in enough]
    return _share(f"pass@{size}", values, enough)


def _majority(known: Sequence[_Question], k: int) -> Figure:
    """The majority answer of all samples with a verdict."""
    values = [maj_at_k(q.answers, q.scores, len(q.scores)) for q in known]
    return _share(f"maj@{k}", values, known)


def _share(name: str, values: Sequence[float], known: Sequence[_Question]) -> Figure:
    """The mean of values within 0..1, one a question.

    Of few questions Wilson's interval, as if every value were a yes or no: values in between vary
    less, so it errs on the wide side.
    """
    if _large(known):
        return _clustered_share(name, values, known)
    total = min(max(sum(values), 0.0), len(values))
    return Figure(name, wilson(total, len(values)), WILSON)


def _clustered_share(name: str, values: Sequence[float], known: Sequence[_Question]) -> Figure:
    """A clustered interval, or Wilson's over the clusters where that one leaves 0..1 or is a point:
    near 0 and 1 it is not normal, and a set that is all right does not prove that every question
    would be."""
    found = _interval(name, values, [q.cluster for q in known])
    i = found.interval
    clusters = len({q.cluster for q in known})
    if clusters < 2 or (i.low >= 0 and i.high <= 1):
        return found
    bounds = wilson(min(max(i.mean, 0.0), 1.0) * clusters, clusters)
    return Figure(name, replace(bounds, mean=i.mean, n=i.n), WILSON)


def _large(known: Sequence[_Question]) -> bool:
    """Whether a clustered normal interval is right: many questions, or questions that belong
    together, which the other intervals know nothing of."""
    return len(known) >= SMALL or len({q.cluster for q in known}) < len(known)


def _counted(name: str, known: Sequence[_Question]) -> Figure:
    """The share of right answers to few questions, from their counts."""
    counts = [(q.num_right, len(q.scores)) for q in known]
    mean = mean_interval([right / total for right, total in counts]).mean
    if all(total == 1 for _, total in counts):
        found, method = wilson(sum(right for right, _ in counts), len(counts)), WILSON
    else:
        low, high = BetaBinomial(counts).bounds()
        # The bounds are of the population and lean inwards: at 0 and 1 the mean may be outside.
        found = Interval(mean, min(low, mean), max(high, mean), len(counts))
        method = BETA_BINOMIAL
    return Figure(name, replace(found, mean=mean), method)


def _interval(name: str, values: Sequence[float], clusters: Sequence[str]) -> Figure:
    """A t interval over questions, clustered where questions belong together.

    Values that are all the same say nothing of how much they vary: then there is no interval (NaN
    bounds), not one of width 0.
    """
    alone = len(set(clusters)) == len(clusters)
    found, method = mean_interval(list(values)), STUDENT
    if not alone or len(values) >= SMALL:
        # The same mean as everywhere else, bit for bit.
        found = replace(clustered_interval(list(values), list(clusters)), mean=found.mean)
        method = CLUSTERED
    if found.low == found.high:
        found = replace(found, low=math.nan, high=math.nan)
    return Figure(name, found, method)


def best(summaries: Mapping[str, Summary]) -> str:
    """The name of the highest accuracy; the first of equals."""

    def accuracy(name: str) -> float:
        mean = summaries[name].accuracy.interval.mean
        return -math.inf if math.isnan(mean) else mean

    return max(summaries, key=accuracy)
