"""From answers to advice: which recipe, which changes, and which rows of the tables.

The first rule of `RECIPES` that fits decides the recipe. Of `ADDITIONS` all that fit add something,
in order. Of `ABLATIONS` the first two that fit are proposed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_cli.advise.answers import Answers
from grpo_cli.advise.evidence import EVIDENCE, Evidence
from grpo_cli.advise.misread import MISREADINGS, Misreading
from grpo_cli.advise.missing import MISSING, Missing

When = Mapping[str, tuple[str, ...]]
"""Question (or `recipe`) -> the answers for which a rule holds; a question left out may be any."""

_ROUNDED = ("bfloat16", "fp8")
_PER_TOKEN = ("dapo_tis", "dr_grpo", "vapo", "rpt")


@dataclass(frozen=True, slots=True)
class Change:
    """One `--set`, and the evidence that asks for it."""

    key: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds `when` the answers fit. Ids point into the tables."""

    when: When
    recipe: str = ""
    changes: tuple[Change, ...] = ()
    reasons: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    misread: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ablation:
    """A comparison worth running first: its axis and what it decides."""

    when: When
    axis: str
    decides: str
    name: str = ""
    """Given where two axes of one recipe would take the same folder."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ablation as a command."""

    command: str
    decides: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What `grpo advise` answers."""

    answers: Answers
    recipe: str
    changes: tuple[Change, ...]
    command: str
    reasons: tuple[Evidence, ...]
    against: tuple[Evidence, ...]
    misread: tuple[Misreading, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    ablations: tuple[Proposal, Proposal]


RECIPES = (
    Rule(
        {"arch": ("moe",)},
        "gspo",
        reasons=("gspo-routing-drift", "gspo-bounds"),
        against=("r3-table", "gspo-diverges", "gspo-length"),
        misread=("gspo-product", "gspo-qwen3"),
        missing=("r3", "moe-setup"),
        notes=(
            "With your model add `--set moe.replay=learner` when a batch has several updates and "
            "moe/update_drift is not near 0 (docs/moe.md); the tiny world is dense and refuses it.",
        ),
    ),
    Rule(
        {"task": ("pretraining",)},
        "rpt",
        reasons=("rpt-setup", "rpt-gain"),
        against=("rpt-narrow", "length-bias"),
        misread=("rpt-loss", "rpt-scale"),
    ),
    Rule(
        {"reward": ("token",)},
        "vapo",
        reasons=("critic-per-token", "vapo-table", "vapo-ablation"),
        against=("ppo-5",),
        misread=("vapo-71", "vapo-moved"),
    ),
    Rule(
        {"task": ("chat",)},
        "deepseek_v32",
        (Change("kl.beta", "0.001", "kl-domain"),),
        reasons=("kl-domain", "kl-weighted", "no-std", "opsm"),
        against=("v32-unpublished", "k1-reward", "kl-off", "length-bias"),
        misread=("v32-dr-grpo", "v32-kl"),
    ),
    Rule(
        {"stability": ("unstable",)},
        "scalerl",
        reasons=("scalerl-loss", "cispo-async"),
        against=("dppo-sanity", "scalerl-efficiency"),
        misread=("cispo-reversed", "cispo-speed"),
        missing=("async",),
    ),
    Rule(
        {"response": ("long",), "precision": ("float32",)},
        "dapo",
        reasons=("dapo-ablation", "dapo-verl"),
        against=("dapo-order", "dapo-cost", "scalerl-dapo"),
        misread=("dapo-half", "dapo-soft", "clip-product"),
    ),
    Rule(
        {"response": ("long",)},
        "dapo_tis",
        reasons=("dapo-ablation", "dapo-verl", "tis"),
        against=("dapo-order", "dapo-cost", "scalerl-dapo", "tis-variance"),
        misread=("dapo-half", "dapo-soft", "clip-product"),
    ),
    Rule(
        {},
        "dr_grpo",
        reasons=("length-bias", "difficulty-bias", "no-std"),
        against=("dr-grpo-equal", "std-equal"),
        misread=("dr-grpo-number", "dr-grpo-std", "dr-grpo-qwen"),
        notes=("The constant follows sampling.max_tokens; fix aggregate.length across budgets.",),
    ),
)

ADDITIONS = (
    Rule(
        {"precision": _ROUNDED},
        changes=(
            Change("learner.fp32_head", "true", "fp32-head"),
            Change("engine.fp32_head", "true", "fp32-head"),
        ),
        reasons=("fp32-head", "fp32-head-m1"),
        against=("fp16",),
        missing=("fp16-learner",),
        notes=(
            "Precision belongs to the setup: on `tiny`, which is float32, a head changes nothing.",
        ),
    ),
    Rule(
        {"precision": _ROUNDED, "recipe": ("dr_grpo", "vapo", "rpt")},
        changes=(Change("correction.kind", "tis_token", "tis"),),
        reasons=("tis",),
        against=("tis-variance",),
    ),
    Rule(
        {"precision": _ROUNDED, "response": ("long",), "recipe": _PER_TOKEN},
        reasons=("seq-weights",),
    ),
    Rule({"precision": _ROUNDED, "recipe": ("gspo",)}, against=("r3-tis",)),
    Rule(
        {"precision": ("fp8",)},
        notes=(
            "No source here is about fp8: it is treated as a larger gap of the same kind. Read "
            "mismatch/* and correction/ess_token of the first steps.",
        ),
    ),
    Rule(
        {"task": ("chat",), "recipe": ("gspo", "vapo")},
        changes=(
            Change("kl.kind", "k3_weighted", "kl-weighted"),
            Change("kl.beta", "0.001", "kl-domain"),
        ),
        reasons=("kl-domain", "kl-weighted"),
        against=("kl-off",),
        notes=("No paper combines this objective with that KL.",),
    ),
    Rule(
        {"stability": ("unstable",), "arch": ("moe",)},
        reasons=("minirl-onpolicy",),
        against=("dppo-moe",),
    ),
    Rule(
        {"stability": ("unstable",), "recipe": ("rpt", "vapo", "deepseek_v32")},
        reasons=("minirl-onpolicy",),
    ),
    Rule({"reward": ("token",)}, missing=("token-rewards",)),
    Rule(
        {"task": ("tools",)},
        missing=("multi-turn",),
        notes=("No source here singles out an objective for tools; the other answers decided.",),
    ),
    Rule({"task": ("chat",)}, missing=("gdpo",)),
    Rule(
        {"task": ("code",)},
        misread=("gspo-code",),
        notes=("No source here singles out an objective for code; the other answers decided.",),
    ),
    Rule(
        {"task": ("math",)},
        notes=(
            "Some base models also gain from random rewards: give one ablation "
            "`--arms random_reward`, and try a second model family.",
        ),
    ),
    Rule(
        {"response": ("long",)},
        notes=(
            "More than 10 to 15 % of answers cut off was unstable in ScaleRL (arXiv:2510.13786).",
        ),
    ),
)

_MINIBATCHES = "How many updates a batch bears; MiniRL found one the most stable."
_WEIGHT = "Whether a sampler weight is worth its variance; needs an engine other than the learner."
_STD = "What dividing by the deviation does; ScaleRL saw no difference, Dr. GRPO a bias."
_KL = "How much KL a mixed domain needs; nobody publishes a value for yours."

ABLATIONS = (
    Ablation(
        {"recipe": ("gspo",), "stability": ("unstable",)},
        "objective.kind=gspo,dppo",
        "Which trust region holds: several groups saw GSPO diverge, DPPO claims more.",
        "gspo-or-dppo",
    ),
    Ablation(
        {"recipe": ("gspo",), "stability": ("unstable",)}, "optim.minibatches=1,4", _MINIBATCHES
    ),
    Ablation(
        {"recipe": ("gspo",)},
        "ratio",
        "Whether the sequence ratio is what helps: token, sequence, geometric mean, capped weight.",
    ),
    Ablation({"recipe": ("gspo",), "task": ("chat",)}, "kl.beta=0,0.001,0.01", _KL),
    Ablation(
        {"recipe": ("gspo",), "response": ("long",)},
        "aggregate.kind=seq_mean,seq_sum",
        "Whether 1/|o_i| holds long answers back; seq_sum is LUSPO's weight, which also has wider "
        "bounds (2e-3 and 2.5e-3).",
        "gspo-or-luspo",
    ),
    Ablation(
        {"recipe": ("gspo",), "precision": _ROUNDED},
        "correction.kind=none,tis_token,icepop",
        _WEIGHT,
        "gspo-correction",
    ),
    Ablation({"recipe": ("gspo",)}, "std_norm", _STD),
    Ablation(
        {"recipe": ("rpt",)},
        "filter",
        "Whether prompts without contrast cost; RPT refills from step 500. Compare by tokens too.",
    ),
    Ablation(
        {"recipe": ("vapo",)},
        "vapo",
        "Which of its parts matter here: in the paper without value pre-training 11 of 60.",
    ),
    Ablation(
        {"recipe": ("deepseek_v32",)},
        "kl.beta=0,0.001,0.01",
        _KL,
    ),
    Ablation(
        {"recipe": ("deepseek_v32",), "stability": ("unstable",)},
        "correction.kind=none,opsm",
        "Whether the mask on wrong answers steadies the run.",
        "deepseek_v32-opsm",
    ),
    Ablation(
        {"recipe": ("scalerl",)},
        "objective.kind=cispo,dppo",
        "A capped weight or a trust region: ScaleRL and DPPO contradict each other.",
        "cispo-or-dppo",
    ),
    Ablation({"recipe": ("scalerl",)}, "optim.minibatches=1,2", _MINIBATCHES),
    Ablation(
        {"recipe": ("dapo_tis", "dr_grpo"), "precision": ("fp8",)},
        "correction.kind=none,tis_token",
        _WEIGHT,
        "tis-or-none",
    ),
    Ablation(
        {"recipe": ("dapo", "dapo_tis")},
        "filter",
        "Dynamic sampling: 8 points in the paper, 2 in verl's run. Compare by tokens too.",
    ),
    Ablation(
        {"recipe": ("dapo_tis",)},
        "correction.kind=none,tis_token",
        _WEIGHT,
        "tis-or-none",
    ),
    Ablation(
        {"recipe": ("dapo",)},
        "overlong",
        "What to do with cut answers: 6 and 3 points in DAPO's ablation.",
    ),
    Ablation({"recipe": ("dr_grpo", "deepseek_v32")}, "std_norm", _STD),
    Ablation(
        {"recipe": ("vapo",)},
        "loss_norm",
        "How tokens are averaged: 7 of VAPO's 60 points in its ablation, 1 of 50 in DAPO's.",
    ),
    Ablation(
        {"recipe": ("dr_grpo", "rpt")},
        "loss_norm",
        "How tokens are averaged; DAPO credits it with length and stability, so read both.",
    ),
)


def advise(answers: Answers) -> Advice:
    """The advice for these answers. Total: every combination has one."""
    base = next(rule for rule in RECIPES if _fits(rule.when, answers, ""))
    rules = [base, *(r for r in ADDITIONS if _fits(r.when, answers, base.recipe))]
    changes = {change.key: change for rule in rules for change in rule.changes}
    sets = [word for c in changes.values() for word in ("--set", f"{c.key}={c.value}")]
    fitting = [a for a in ABLATIONS if _fits(a.when, answers, base.recipe)]
    first, second = (_proposal(base.recipe, ablation, sets) for ablation in fitting[:2])
    return Advice(
        answers=answers,
        recipe=base.recipe,
        changes=tuple(changes.values()),
        command=shlex.join(["grpo", "train", base.recipe, *sets]),
        reasons=tuple(EVIDENCE[i] for i in _once(r.reasons for r in rules)),
        against=tuple(EVIDENCE[i] for i in _once(r.against for r in rules)),
        misread=tuple(MISREADINGS[i] for i in _once(r.misread for r in rules)),
        missing=tuple(MISSING[i] for i in _once(r.missing for r in rules)),
        notes=tuple(_once(r.notes for r in rules)),
        ablations=(first, second),
    )


def _proposal(recipe: str, ablation: Ablation, sets: list[str]) -> Proposal:
    name = ["--name", ablation.name] if ablation.name else []
    words = ["grpo", "ablate", recipe, "--axis", ablation.axis, *sets, *name]
    return Proposal(shlex.join(words), ablation.decides)


def _fits(when: When, answers: Answers, recipe: str) -> bool:
    given = {"recipe": recipe}
    return all(
        (given[name] if name in given else answers.value(name)) in values
        for name, values in when.items()
    )


def _once(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(item for group in groups for item in group))
