"""What a recipe may say about its task: one class per kind. Must not import torch.

Every kind words its questions through `template` and `system`, so one set of questions can be asked
in several ways; a prompt's id does not depend on the wording.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from grpo_cli.config import Node

PLACE = "{question}"
"""Where a template takes the question; other braces are plain text."""

BOXED = "{question}\n\nThink step by step and put the final answer in \\boxed{}."
"""The default wording of questions for general chat models."""

CONTINUE = (
    "Here is the beginning of a text, between the lines:\n---\n{question}\n---\n\n"
    "Think step by step about how it goes on. Then put the exact characters that come next, spaces "
    "included, in \\boxed{}. One word is enough."
)
"""The default wording of the `next_token` task."""

TAGGED = "{question}\n\nThink step by step and put only the final answer in <answer>...</answer>."
"""The default wording of the `reasoning_gym` task."""

SELF_CHECK = (
    "\n\nAfter the answer, check it. Then end with one line, `Self-check: right` if you believe "
    "that the answer is right, else `Self-check: wrong`."
)
"""What `self_check` adds to the wording of a question."""


class _Worded(Node):
    template: str = PLACE
    """The user's turn, with `{question}` where the question goes."""
    system: str | None = None
    """A system turn before it; null leaves that to the chat template."""
    self_check: bool = False
    """Ask for a verdict on the answer at its end. The verifier then sees only what stands before
    it, and `self/*` says how honest the verdicts are; `self_verify` pays for them."""

    @property
    def self_check_form(self) -> Literal["mark", "line"] | None:
        """How a verdict is written (`grpo_cli.self_verdict`): the models that answer after a marker
        write one too, without being asked in words."""
        if not self.self_check:
            return None
        return "mark" if getattr(self, "answer", None) == "marker" else "line"

    @property
    def asked(self) -> str:
        """The template, with the request for a verdict where one is made."""
        return self.template + (SELF_CHECK if self.self_check_form == "line" else "")

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, template: str) -> str:
        if template.count(PLACE) != 1:
            raise ValueError(f"template must hold `{PLACE}` once")
        return template


class ArithmeticTask(_Worded):
    """Chains of additions, subtractions and products, made from a seed; embedded, no download."""

    kind: Literal["arithmetic"] = "arithmetic"
    min_level: int = Field(1, ge=1, le=5)
    """Easiest difficulty level."""
    max_level: int = Field(5, ge=1, le=5)
    """Hardest difficulty level."""
    max_total: int = Field(99, ge=10, le=99)
    """Largest number, product and running total."""
    answer: Literal["marker", "boxed"] = "marker"
    """`marker` asks `34+7*6-25`, which the tiny model answers after a `#`; `boxed` asks
    `34 + 7 * 6 - 25` in plain English, for the answer in a `\\boxed{}`."""

    @model_validator(mode="before")
    @classmethod
    def _boxed_asks_in_english(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and tree.get("answer") == "boxed":
            words = f"What is {PLACE}? Think step by step and put the final answer in \\boxed{{}}."
            return {"template": words, **tree}
        return tree

    @model_validator(mode="after")
    def _levels_in_order(self) -> ArithmeticTask:
        _in_order(self.min_level, self.max_level)
        return self


class Filters(Node):
    """Training questions to leave out. Held-out questions stay, so that scores compare with other
    people's; `grpo tasks show` counts what every filter finds in both."""

    unparsable: bool = False
    """Golds that the recipe's own verifier does not accept as an answer to themselves."""
    ambiguous: bool = False
    """Questions that stand in the data with different golds."""
    contains_gold: bool = False
    """Questions whose text holds their gold, as a word or number of its own."""
    max_guess_rate: float | None = Field(None, ge=0, le=1)
    """Multiple choice (and yes/no) questions that a blind guess answers more often than this; 0
    leaves out every such question."""


class _Data(_Worded):
    path: str | None = None
    """A JSON lines file of training rows, or a folder with one file per split."""
    eval_path: str | None = None
    """A JSON lines file of held-out rows."""
    filters: Filters = Filters()


class Gsm8kTask(_Data):
    """GSM8K (arXiv:2110.14168): 7,473 training and 1,319 test word problems, gold after `####`.

    `path` is a file with the columns question and answer, or a folder with `train.jsonl` and
    `test.jsonl`; without it the rows come from the hub.
    """

    kind: Literal["gsm8k"] = "gsm8k"
    id: str = "openai/gsm8k"
    """Data set on the hub."""
    revision: str | None = "740312add88f781978c0658806c59bc2815b9866"
    template: str = BOXED


class MathTask(_Data):
    """MATH (arXiv:2103.03874): 7,500 competition problems, evaluated on MATH-500.

    MATH-500 (arXiv:2305.20050) is a part of MATH's test split, so the two are apart. `path` is a
    file with the columns problem and solution or answer, or a folder with `train.jsonl` and
    `test.jsonl`; without it the rows come from the hub.
    """

    kind: Literal["math"] = "math"
    id: str = "DigitalLearningGmbH/MATH-lighteval"
    """Training data set on the hub."""
    revision: str | None = "0530c78699ea5e8eb5530600900e1f328b48acad"
    eval_id: str = "HuggingFaceH4/MATH-500"
    """Held-out data set on the hub."""
    eval_revision: str | None = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
    min_level: int = Field(1, ge=1, le=5)
    """Easiest level to train on. MATH-500 keeps all five."""
    max_level: int = Field(5, ge=1, le=5)
    """Hardest level to train on."""
    template: str = BOXED

    @model_validator(mode="after")
    def _levels_in_order(self) -> MathTask:
        _in_order(self.min_level, self.max_level)
        return self


class JsonlTask(_Data):
    """Questions and golds of your own, one JSON object a line.

    The question is in the column `question`, `prompt` or `problem` (text, or a list of chat turns),
    the gold in `answer`, `ground_truth`, `gold` or `solution`. Of a gold that is a worked answer
    the part after its last `####` counts; of a `solution` the content of its last `\\boxed{}`.
    Other columns that are read: `level`, `subject`, and `options` (a list, for multiple choice).
    """

    kind: Literal["jsonl"] = "jsonl"
    path: str
    question: str | None = None
    """The question's column, when it has another name."""
    gold: str | None = None
    """The gold's column, when it has another name."""
    held_out_frac: float = Field(0.1, gt=0, le=1)
    """Share of the rows to hold out when there is no `eval_path`; 1 holds out everything."""
    split_seed: int = 0
    """Which rows those are: decided by each question's text, whatever the order of the file."""


class TextModel(Node):
    """A model that reads the text of a `next_token` task."""

    id: str
    """`tiny` (shipped), a local folder, or a hub id."""
    revision: str | None = None


class NextTokenTask(_Worded):
    """Reinforcement pre-training (RPT, arXiv:2506.08007): reason, then say how a text goes on.

    `{question}` in the template is the text so far. A position of the text is asked about when a
    proxy model is unsure what comes next: the entropy over its `top_k` likeliest next tokens, in
    nats, is above the threshold of the split.
    """

    kind: Literal["next_token"] = "next_token"
    path: str
    """A text file, a JSON lines file with the text in a column, a folder of such files, or `tiny`
    (the shipped text)."""
    eval_path: str | None = None
    """The same for held-out text; null holds out documents of `path`, or the end of its only
    one."""
    column: str = "text"
    """Of a JSON lines file; one document a row."""
    separator: str | None = Field(None, min_length=1)
    """What stands between two documents of a text file; null makes a file one document."""
    context_tokens: int = Field(1024, ge=2)
    """Longest context of a position; longer documents are cut into pieces of this length."""
    min_context_tokens: int = Field(1, ge=1)
    """Shortest context of a position."""
    continuation_tokens: int = Field(16, ge=1)
    """Tokens of the gold continuation. A prediction may be any whole number of them."""
    split: Literal["easy", "medium", "hard"] = "easy"
    """Least entropy of a position: 0.5, 1.0 or 1.5."""
    min_entropy: float | None = Field(None, ge=0)
    """Another threshold than the split's."""
    top_k: int = Field(16, ge=2)
    held_out_frac: float = Field(0.1, gt=0, lt=1)
    """Share of the documents to hold out when there is no `eval_path`."""
    split_seed: int = 0
    """Which documents those are: decided by each one's text."""
    proxy: TextModel | None = None
    """The model whose entropy is measured; null is the recipe's model."""
    tokenizer: TextModel | None = None
    """Whose tokens the continuation is cut into; null is the recipe's model."""
    answer: Literal["boxed", "marker"] = "boxed"
    """Where the verifier finds the prediction: in the last `\\boxed{}`, or after the tiny model's
    marker `#`."""
    template: str = CONTINUE

    @property
    def threshold(self) -> float:
        """Entropy that a position must exceed, in nats."""
        if self.min_entropy is not None:
            return self.min_entropy
        return {"easy": 0.5, "medium": 1.0, "hard": 1.5}[self.split]

    @model_validator(mode="after")
    def _contexts_in_order(self) -> NextTokenTask:
        if self.min_context_tokens > self.context_tokens:
            raise ValueError(
                f"min_context_tokens {self.min_context_tokens} is above context_tokens "
                f"{self.context_tokens}"
            )
        return self


class ReasoningGymTask(_Worded):
    """Procedural puzzles of the package reasoning-gym (arXiv:2505.24760), made from a seed.

    Needs `pip install 'grpo-cli[reasoning-gym]'`, and the verifier `reasoning_gym`.
    """

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    name: str
    """The data set, such as `leg_counting`."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Fields of its configuration, such as `max_animals`; the others keep their defaults."""
    size: int = Field(2000, ge=1)
    """Training questions."""
    held_out_size: int = Field(200, ge=1)
    """Held-out questions, distinct by text; no training question has the text of one."""
    seed: int = 0
    """Another seed makes other questions, held-out ones too."""
    template: str = TAGGED

    @field_validator("options")
    @classmethod
    def _own_options(
        cls, options: dict[str, bool | int | float | str]
    ) -> dict[str, bool | int | float | str]:
        for key in ("seed", "size"):
            if key in options:
                raise ValueError(f"write `{key}` beside `options`, not in it")
        return options


def read_by_the_model(tree: Any) -> Any:
    """A recipe's tree with the model that a `next_token` task leaves open: the recipe's own."""
    if not isinstance(tree, dict):
        return tree
    task, model = tree.get("task"), tree.get("model")
    if not isinstance(task, dict) or task.get("kind") != "next_token":
        return tree
    if not isinstance(model, dict) or not isinstance(model.get("id"), str):
        return tree
    own = {key: model[key] for key in ("id", "revision") if key in model}
    open_keys = [key for key in ("proxy", "tokenizer") if task.get(key) is None]
    return {**tree, "task": {**task, **dict.fromkeys(open_keys, own)}}


def asked_to_judge(tree: Any) -> Any:
    """A recipe's tree with `task.self_check` on where `self_verify` pays for the verdicts."""
    if not isinstance(tree, dict):
        return tree
    task, method = tree.get("task"), tree.get("self_verify")
    if not isinstance(task, dict) or not isinstance(method, dict):
        return tree
    if method.get("kind") != "judged" or "self_check" in task:
        return tree
    return {**tree, "task": {**task, "self_check": True}}


def _in_order(low: int, high: int) -> None:
    if low > high:
        raise ValueError(f"min_level {low} is above max_level {high}")


def _arithmetic_by_default(tree: Any) -> Any:
    if isinstance(tree, dict) and "kind" not in tree:
        return {"kind": "arithmetic", **tree}
    return tree


Task = Annotated[
    Annotated[
        ArithmeticTask | Gsm8kTask | MathTask | JsonlTask | NextTokenTask | ReasoningGymTask,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_arithmetic_by_default),
]
AnyTask = ArithmeticTask | Gsm8kTask | MathTask | JsonlTask | NextTokenTask | ReasoningGymTask
DataTask = Gsm8kTask | MathTask | JsonlTask
