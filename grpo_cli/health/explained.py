"""What an explained step is made of. Dims: N sequences of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grpo_cli.types import Finish, Status


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion of a group, and what the update made of it. Log-probabilities in nats."""

    sample: int
    completion: str
    token_ids: tuple[int, ...]
    sampler_logp: tuple[float, ...]
    learner_logp: tuple[float, ...] | None
    """None for one that did not train, or in a run that did not record them."""
    finish: Finish
    status: Status
    score: float
    """The verifier's, before shaping; NaN without a verdict."""
    reward: float
    """After shaping; NaN without a verdict."""
    parsed: str | None
    detail: str | None
    advantage: float
    """NaN in a group that was dropped."""
    weight: float = math.nan
    """Of each of its tokens in the loss; 0 when it is out of the loss, NaN in a dropped group."""
    out: str | None = None
    """Why a sequence of a used group is out of the loss."""

    @property
    def length(self) -> int:
        """Tokens, with the one that ended it."""
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it."""
        return self.finish is Finish.LENGTH

    @property
    def right(self) -> bool:
        """Whether the verifier gave it the full score."""
        return self.score == 1

    @property
    def penalty(self) -> float:
        """What shaping added to the score; never above 0."""
        return self.reward - self.score

    @property
    def pull(self) -> float:
        """weight x |advantage| x tokens: the size of its gradient's factor where the ratio is 1."""
        return 0.0 if math.isnan(self.weight) else self.weight * abs(self.advantage) * self.length

    @property
    def gap(self) -> tuple[int, float] | None:
        """Position and value of the learner - sampler difference that is largest in size."""
        if not self.learner_logp:
            return None
        gaps = [a - b for a, b in zip(self.learner_logp, self.sampler_logp, strict=True)]
        place = max(range(len(gaps)), key=lambda t: abs(gaps[t]))
        return place, gaps[place]


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one prompt. `number` counts from 0, used groups first."""

    number: int
    prompt_id: str
    prompt: str
    reference: str
    kept: bool
    why: str
    """Why it was used, had no effect, or was dropped."""
    minibatch: int | None
    """Which of the step's minibatches it trained in, from 0; None when it was dropped."""
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the batch: its share of the pull, of the trained tokens and of the sequences."""

    name: str
    pull: float
    tokens: float
    sequences: int


@dataclass(frozen=True, slots=True)
class Worst:
    """The token where learner and sampler differ most. Log-probabilities in nats."""

    group: int
    sample: int
    position: int
    token_id: int
    learner_logp: float
    sampler_logp: float
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """Why the update of one step was what it was."""

    run: str
    step: int
    aggregate: str
    advantage: str
    overlong: str
    minibatches: int
    groups: tuple[Group, ...]
    splits: Mapping[str, tuple[Share, ...]]
    median_length: float
    weight_sums: tuple[float, ...]
    """Sum of weight x tokens of each minibatch."""
    scalars: Mapping[str, float]
    worst: Worst | None
    notes: tuple[str, ...]

    @property
    def used(self) -> tuple[Group, ...]:
        """The groups that trained."""
        return tuple(group for group in self.groups if group.kept)
