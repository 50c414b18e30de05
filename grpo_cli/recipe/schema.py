"""What a recipe may say. Frozen, strict and closed; must not import torch.

A recipe is one tree made from two kinds of file: an algorithm file (`ALGORITHM_KEYS`) and a setup
file (`SETUP_KEYS`); `optim` may stand in both. So any algorithm runs with any setup.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, model_validator

from grpo_cli.config import Node
from grpo_cli.objective.advantage import Advantage
from grpo_cli.objective.aggregate import Aggregate, SeqMean
from grpo_cli.objective.base import Objective
from grpo_cli.objective.correction import CorrectionSettings, NoCorrection
from grpo_cli.objective.entropy import Entropy, NoEntropy
from grpo_cli.objective.gae import Critic, NoCritic
from grpo_cli.objective.kinds import objective_kinds
from grpo_cli.objective.kl import Kl
from grpo_cli.objective.positive_nll import PositiveNll
from grpo_cli.objective.self_verify import NoSelfVerify, SelfVerify
from grpo_cli.objective.shaping import NoOverlong, Overlong
from grpo_cli.recipe.agree import disagreement
from grpo_cli.recipe.control import Control, NoControl
from grpo_cli.recipe.moe import Moe
from grpo_cli.recipe.task_schema import ArithmeticTask as ArithmeticTask
from grpo_cli.recipe.task_schema import Task

if TYPE_CHECKING:
    AnyObjective = Objective
else:
    _kinds = objective_kinds()
    AnyObjective = (
        _kinds[0] if len(_kinds) == 1 else Annotated[Union[_kinds], Field(discriminator="kind")]  # noqa: UP007 a runtime union
    )


class _Filter(Node):
    pass_rate_ceiling: float | None = Field(None, gt=0, le=1)
    """Leave out prompts whose group passed at this rate or above when they were last sampled
    (ScaleRL's no-positive-resampling: 0.9)."""

    def _with_ceiling(self, rule: str) -> str:
        ceiling = self.pass_rate_ceiling
        return rule if ceiling is None else f"{rule}; prompts passed at {ceiling:g} or above rest"


class NoFilter(_Filter):
    """Every group trains, also those without contrast (their advantage is 0)."""

    kind: Literal["none"] = "none"
    source: ClassVar[str] = ""

    def formula(self) -> str:
        """The rule."""
        return self._with_ceiling("every group")


class ZeroVariance(_Filter):
    """Drop groups without contrast and train on the rest, without refill (ScaleRL)."""

    kind: Literal["zero_variance"] = "zero_variance"
    source: ClassVar[str] = "ScaleRL arXiv:2510.13786"

    def formula(self) -> str:
        """The rule."""
        return self._with_ceiling("groups with 0 < #right < G, no refill")


class DynamicSampling(_Filter):
    """Keep only groups with contrast and sample more prompts until the batch is full. DAPO 3.2."""

    kind: Literal["dynamic_sampling"] = "dynamic_sampling"
    max_rounds: int = Field(10, ge=1)
    """Most sampling rounds per step; after that the step trains on the groups it has."""
    source: ClassVar[str] = "DAPO arXiv:2503.14476 Eq. 11"

    def formula(self) -> str:
        """The rule with its numbers."""
        return self._with_ceiling(
            f"groups with 0 < #right < G, refilled in up to {self.max_rounds} rounds"
        )


Filter = Annotated[NoFilter | ZeroVariance | DynamicSampling, Field(discriminator="kind")]


class Model(Node):
    """The base model. Its weights are frozen; only LoRA adapters train."""

    id: str
    """`tiny` or `tiny-judge` (shipped), a local folder, or a hub id."""
    revision: str | None = None
    """A hub revision, best a commit hash."""
    thinking: bool | None = None
    """Passed to the chat template as `enable_thinking`, which Qwen3's and some others know; null
    passes nothing."""


class Lora(Node):
    """LoRA (arXiv:2106.09685) on linear layers, scaled by alpha / rank, without dropout."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """`all-linear`, or the names of the layers, such as `[q_proj, v_proj]`."""


class VerifierChoice(Node):
    """Which verifier scores completions. It runs in worker processes that can be killed."""

    name: str
    """A folder of `verifiers/`, the path of a folder with a `verifier.py`, a function
    `PATH.py:FUNC`, or another library's: `trl:TARGET:FUNC`, `verl:TARGET:FUNC`, where TARGET is a
    `.py` file or a dotted module."""
    options: dict[str, str] = Field(default_factory=dict)
    """Options that the verifier declares, such as `{percent: strict}`."""
    workers: int = Field(2, ge=1)
    """Worker processes. Their number changes no verdict."""
    sample_limit_s: float | None = Field(None, gt=0)
    """Wall seconds for one completion; then its verdict is missing (status `timeout`). Null: what
    the verifier declares as SAMPLE_LIMIT_S (`code`: 30), else 5."""
    batch_limit_s: float | None = Field(None, gt=0)
    """Wall seconds for all completions of a round; what is unfinished then is missing."""
    memory_gib: float = Field(4.0, gt=0)
    """Address space of a worker. A library such as PyTorch needs more."""
    sandbox: Literal["required", "none"] = "required"
    """For a verifier that runs programs of the model: `none` runs them with limits only, where no
    sandbox works. The level in force is in the run's env.json."""


class Sampling(Node):
    """How completions are drawn, in training and in evaluation."""

    prompts_per_step: int = Field(ge=1)
    group_size: int = Field(ge=2)
    """Completions per prompt. A group of 1 has no contrast and cannot train."""
    max_tokens: int = Field(ge=1)
    """Length limit of a completion, in tokens, the end-of-sequence token included."""
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    """Draw from the smallest set of tokens whose probability reaches this (after `temperature` and
    `top_k`); 1 is off. Needs `keep_sampling_mask`."""
    top_k: int | None = Field(None, ge=2)
    """Draw from so many of the likeliest tokens; null is off. Needs `keep_sampling_mask`."""
    keep_sampling_mask: bool = False
    """The learner's passes renormalise over the tokens that top_p and top_k kept at each position
    (DeepSeek-V3.2 arXiv:2512.02556, Section 3.1). Transformers engine only."""

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.top_p < 1 or self.top_k is not None

    def truncation(self) -> str:
        """What is on of top-k and top-p, in words; empty without either."""
        cuts = [f"top-k {self.top_k}"] if self.top_k is not None else []
        return ", ".join([*cuts, f"top-p {self.top_p:g}"] if self.top_p < 1 else cuts)

    def drawn(self) -> str:
        """Temperature and truncation, in words."""
        return ", ".join(filter(None, (f"temperature {self.temperature:g}", self.truncation())))


class Engine(Node):
    """What samples completions."""

    kind: Literal["auto", "transformers", "vllm"] = "auto"
    """`auto` is vLLM when it is installed and the model is not a shipped one, else transformers."""
    batch_rows: int = Field(128, ge=1)
    """Most completions decoded at once (transformers)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of vLLM's copy of the weights; `auto` is the learner's."""
    quantization: str | None = None
    """How vLLM quantises its copy of the weights, such as `fp8`; what there is depends on its
    version and on the device."""
    fp32_head: bool = False
    """Run vLLM's vocabulary projection in float32 (ScaleRL arXiv:2510.13786)."""
    max_prompt_tokens: int = Field(1024, ge=1)
    """Longest prompt that vLLM makes room for."""
    gpu_memory: float = Field(0.35, gt=0, lt=1)
    """vLLM's share of the GPU: its weights and its key-value cache."""
    cpu_cache_gib: float = Field(1.0, gt=0)
    """vLLM's key-value cache on a CPU, in GiB."""
    sleep: bool = False
    """Free vLLM's GPU memory while the learner works (its weights wait in host memory)."""


class Learner(Node):
    """Precision of the learner, and how an update is cut to fit memory."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the frozen base weights. Adapters and their optimizer state are always float32."""
    fp32_head: bool = False
    """Run the vocabulary projection in float32 whatever `dtype` is (ScaleRL arXiv:2510.13786)."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Most tokens (prompt and padding included) in one forward pass; one sequence always fits.
    Changes results by rounding only, so a run that ran out of memory may go on with fewer."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class Optim(Node):
    """AdamW on the adapter, constant learning rate after a linear warm-up."""

    lr: float = Field(gt=0)
    steps: int = Field(ge=1)
    """Number of rollout batches."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps per pass over a rollout batch. With 1 (and one epoch) the policy ratio is
    always 1 and clipping does nothing."""
    epochs_per_batch: int = Field(1, ge=1)
    """Passes over a rollout batch."""
    warmup_steps: int = Field(0, ge=0)
    """Rollout batches over which the learning rate rises to `lr`."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient is scaled down to this L2 norm."""
    max_nonfinite: int = Field(3, ge=1)
    """So many steps in a row with a loss or gradient that is not finite end the run."""


class Eval(Node):
    """Held-out evaluation before the first step, every `every` steps and after the last."""

    every: int = Field(20, ge=0)
    """0 evaluates only before and after."""
    num_questions: int = Field(ge=1)
    samples_per_question: int = Field(ge=1)
    """Completions per question, drawn as in training: same temperature, top_p and top_k."""


class Checkpoint(Node):
    """When the adapter, the optimizer and the cursor are saved."""

    every: int = Field(10, ge=1)
    keep: int = Field(2, ge=1)
    """How many checkpoints stay on disk."""


class Health(Node):
    """What the metrics look for in a completion. It changes no result."""

    reflection_markers: tuple[Annotated[str, Field(min_length=1)], ...] = (
        "wait",
        "let me check",
        "alternatively",
        "double-check",
        "verify",
        "on second thought",
        "hmm",
    )
    """Phrases that show a completion looking back. One that holds any of them, whatever the case of
    its letters, counts in `completion/reflection_*_frac` and `eval/reflection_*_frac`."""


WITHOUT_EFFECT = (
    "summary",
    "setup",
    "checkpoint",
    "learner.micro_batch_tokens",
    "verifier.workers",
    "audit",
    "health",
)
"""Keys that do not make another experiment, so a run may go on after they change."""


def has_effect(key: str) -> bool:
    """Whether the recipe leaf `key` (dotted) makes another experiment."""
    return not any(key == skip or key.startswith(f"{skip}.") for skip in WITHOUT_EFFECT)


def _without(tree: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    for name in path:
        tree = tree[name]
    del tree[last]


class Recipe(Node):
    """Everything that decides what a run does, except its seed."""

    summary: str = ""
    setup: str
    """Name or path of the setup file that the setup keys come from."""

    objective: AnyObjective
    advantage: Advantage = Advantage()
    aggregate: Aggregate = SeqMean()
    kl: Kl = Kl()
    correction: CorrectionSettings = NoCorrection()
    entropy: Entropy = NoEntropy()
    self_verify: SelfVerify = NoSelfVerify()
    overlong: Overlong = NoOverlong()
    filter: Filter = NoFilter()
    control: Control = NoControl()
    moe: Moe = Moe()

    optim: Optim
    critic: Critic = NoCritic()
    positive_nll: PositiveNll = PositiveNll()

    model: Model
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: Lora = Lora()
    task: Task
    verifier: VerifierChoice
    audit: Literal["require", "warn", "off"] = "warn"
    """Whether training asks for the verifier's `audit.json`: `require` refuses without a matching
    one, `warn` says what it found."""
    sampling: Sampling
    engine: Engine = Engine()
    learner: Learner = Learner()
    eval: Eval
    checkpoint: Checkpoint = Checkpoint()
    health: Health = Health()

    @model_validator(mode="after")
    def _keys_agree(self) -> Recipe:
        if problem := disagreement(self):
            raise ValueError(problem)
        return self

    def tree(self) -> dict[str, Any]:
        """The resolved recipe as plain JSON values; nulls are kept."""
        tree: dict[str, Any] = self.model_dump(mode="json", serialize_as_any=True)
        return tree

    @property
    def hash(self) -> str:
        """SHA-256 of everything that can change a result by more than rounding (hex)."""
        tree = self.tree()
        for key in WITHOUT_EFFECT:
            _without(tree, key)
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


ALGORITHM_KEYS = frozenset(
    {
        "summary",
        "setup",
        "objective",
        "advantage",
        "critic",
        "aggregate",
        "kl",
        "correction",
        "entropy",
        "positive_nll",
        "self_verify",
        "overlong",
        "filter",
        "control",
        "moe",
        "optim",
    }
)
SETUP_KEYS = frozenset(Recipe.model_fields) - ALGORITHM_KEYS | {"summary", "optim"}


def use_objectives() -> None:
    """Let recipes name the objectives that were defined since this module was imported."""
    objective_kinds.cache_clear()
    field = Recipe.model_fields["objective"]
    field.annotation = Union[objective_kinds()]  # type: ignore[assignment]  # noqa: UP007
    field.discriminator = "kind"
    Recipe.model_rebuild(force=True)
