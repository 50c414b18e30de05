"""The frozen values that flow through a run, from a prompt to a step record.

Dims: P prompts, G samples per prompt, N = P*G sequences, T completion tokens of a batch laid end to
end. Prompt and padding tokens never appear in a `_T` array, so no loss mask exists to get wrong.
This module must not import torch at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_cli.support import Support


class Finish(StrEnum):
    """Why a completion ended. Truncation is `LENGTH`, never a comparison of tokens."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Status(StrEnum):
    """What a verifier can say about its own work. Only `OK` and `UNPARSED` carry a score."""

    OK = "ok"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with its reference answer. `id` is a hash of the content.

    Example:
        Prompt(id="3f1c...", messages=(Message("user", "12+7-3"),), reference="16",
               task="arithmetic", meta={"level": 2})
    """

    id: str
    messages: tuple[Message, ...]
    reference: str
    task: str
    meta: Mapping[str, str | int | float] = field(default_factory=dict)
    self_check: str | None = None
    """The form of the verdict on its own answer that a completion must end with, `mark` or `line`
    (`grpo_cli.self_verdict`); None asks for none."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the sampler produced: its own token ids and log-probabilities (nats, after temperature).

    `token_ids` includes the end-of-sequence token when `finish` is STOP, and `logp` has one entry
    per token. `adapter_version` is the optimizer step whose weights sampled it.
    """

    token_ids: tuple[int, ...]
    text: str
    logp: tuple[float, ...]
    finish: Finish
    adapter_version: int
    routing: Tensor | None = field(default=None, compare=False, repr=False)
    """With a mixture of experts: the experts of every position of prompt and completion but the
    last, (positions, layers, experts per token) int16."""
    support: Support | None = field(default=None, compare=False, repr=False)
    """With `sampling.keep_sampling_mask`: the tokens that top-k and top-p kept. `logp` is then of
    the distribution renormalised over them."""


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The G completions of one prompt, sampled by one policy."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer. `score` is NaN when `status` is TIMEOUT or ERROR.

    Example:
        Verdict(score=1.0, status=Status.OK, parsed="16", detail=None, elapsed_s=1e-5)
    """

    score: float
    status: Status
    parsed: str | None = None
    detail: str | None = None
    elapsed_s: float = 0.0

    @property
    def missing(self) -> bool:
        """True when the verifier could not do its work: the sample must not train the policy."""
        return self.status in (Status.TIMEOUT, Status.ERROR)


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its verdicts; `rewards` are after shaping, NaN where the verdict is missing."""

    group: RolloutGroup
    verdicts: tuple[Verdict, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """The kept groups of one step, ready to train on.

    `length_N` counts the tokens that may train: 0 for a sequence that is masked or has no verdict.
    `full_length_N` is the same before masking, for losses whose denominator keeps masked sequences.
    `prompt_N` is the index of the sequence's group. `adv_N` is exactly 0 for a group without
    contrast.
    """

    prompt_ids_N: tuple[tuple[int, ...], ...]
    completion_ids_N: tuple[tuple[int, ...], ...]
    sampler_logp_N: tuple[tuple[float, ...], ...]
    adv_N: Tensor
    length_N: Tensor
    full_length_N: Tensor
    prompt_N: Tensor
    kl_N: Tensor | None = None
    """Sum of k1 over each sequence's tokens, where it was taken off the rewards."""
    token_adv_N: Mapping[int, Tensor] | None = None
    """With a critic: trained sequence -> the advantage of each token; `adv_N` is their mean."""
    value_N: Mapping[int, Tensor] | None = None
    """With a critic: trained sequence -> the value before each token, before the update."""
    return_N: Mapping[int, Tensor] | None = None
    """With a critic: trained sequence -> the critic's target at each token."""
    right_N: Tensor | None = None
    """Whether the verifier gave the full score."""
    routing_N: tuple[Tensor, ...] | None = None
    """`Completion.routing` of each sequence, where the sampler recorded it."""
    support_N: tuple[Support, ...] | None = None
    """`Completion.support` of each sequence; every pass of the learner renormalises over it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an objective sees: whole sequences of a micro-batch. Only `logp_T` carries gradient."""

    logp_T: Tensor
    old_logp_T: Tensor
    adv_N: Tensor
    seq_T: Tensor
    length_N: Tensor
    token_adv_T: Tensor | None = None
    """Advantages that differ within a sequence, from a critic."""

    @property
    def adv_T(self) -> Tensor:
        """Each token's advantage."""
        return self.adv_N[self.seq_T] if self.token_adv_T is None else self.token_adv_T


@dataclass(frozen=True, slots=True)
class Metric:
    """A (total, count) pair, so that merging micro-batches is exact. Never a mean of means.

    With `is_max` the total is a maximum, and merging takes the larger.
    """

    total: float
    count: float
    is_max: bool = False

    def __add__(self, other: Metric) -> Metric:
        if self.is_max or other.is_max:
            return Metric(max(self.total, other.total), 1, is_max=True)
        return Metric(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean, or NaN when nothing was counted."""
        return self.total / self.count if self.count else float("nan")


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """An objective's per-token loss (to be minimised, before weighting) and its metrics."""

    ell_T: Tensor
    metrics: dict[str, Metric]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of `metrics.jsonl`. Names are legal in MLflow; timing fields start with `time/`.

    Example:
        StepRecord(step=3, unix_ms=1764432000000, scalars={"reward/mean": 0.41})
    """

    step: int
    unix_ms: int
    scalars: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One sampled answer to one held-out question. `cluster` groups related questions."""

    question_id: str
    cluster: str
    sample: int
    score: float
    status: Status
    num_tokens: int
    finish: Finish
    text: str
    self_verdict: str | None = None
    """What the policy said of its own answer: right, wrong or unreadable; None: not asked."""
    p_right: float = float("nan")
    """How sure it was that it is right (`SelfCheck.p_right`)."""


class RunStatus(StrEnum):
    """What a run folder says about itself."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    DONE = "done"
