"""Advice: what is recommended for which answers, and that everything recommended exists."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from grpo_cli.ablate.plan import Request, make_plan
from grpo_cli.advise.answers import QUESTIONS, Answers
from grpo_cli.advise.evidence import EVIDENCE, GRADES, Grade
from grpo_cli.advise.misread import MISREADINGS
from grpo_cli.advise.missing import MISSING
from grpo_cli.advise.rules import ABLATIONS, ADDITIONS, RECIPES, advise
from grpo_cli.advise.text import CAVEAT, READING, document, render
from grpo_cli.cli.app import app
from grpo_cli.recipe import locate
from grpo_cli.recipe.explain import warnings
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe

EVERY = [
    Answers(*values)  # type: ignore[arg-type]
    for values in itertools.product(*(question.values for question in QUESTIONS))
]
ADVICE = [advise(answers) for answers in EVERY]

ABLATED, ONE_RUN = "paper, controlled ablation", "paper, one run"
PRACTICE, ALGEBRA = "practice", "algebra"
HEAD = {"learner.fp32_head": "true", "engine.fp32_head": "true"}
HEAD_WHY = {"fp32-head": ABLATED, "fp32-head-m1": ONE_RUN}

# Answers, recipe, changes, reasons with grades, ids against it, misreadings, missing.
CASES = [
    (
        Answers(arch="moe", response="long"),
        "gspo",
        HEAD,
        {"gspo-routing-drift": ONE_RUN, "gspo-bounds": PRACTICE, **HEAD_WHY},
        {"r3-table", "gspo-diverges", "gspo-length", "r3-tis", "fp16"},
        {"gspo-product", "gspo-qwen3"},
        {"r3", "moe-setup", "fp16-learner"},
    ),
    (
        Answers(precision="float32"),
        "dr_grpo",
        {},
        {"length-bias": ALGEBRA, "difficulty-bias": ALGEBRA, "no-std": PRACTICE},
        {"dr-grpo-equal", "std-equal"},
        {"dr-grpo-number", "dr-grpo-std", "dr-grpo-qwen"},
        set(),
    ),
    (
        Answers(),
        "dr_grpo",
        {**HEAD, "correction.kind": "tis_token"},
        {
            "length-bias": ALGEBRA,
            "difficulty-bias": ALGEBRA,
            "no-std": PRACTICE,
            **HEAD_WHY,
            "tis": PRACTICE,
        },
        {"dr-grpo-equal", "std-equal", "fp16", "tis-variance"},
        {"dr-grpo-number", "dr-grpo-std", "dr-grpo-qwen"},
        {"fp16-learner"},
    ),
    (
        Answers(response="long", precision="float32"),
        "dapo",
        {},
        {"dapo-ablation": ABLATED, "dapo-verl": ONE_RUN},
        {"dapo-order", "dapo-cost", "scalerl-dapo"},
        {"dapo-half", "dapo-soft", "clip-product"},
        set(),
    ),
    (
        Answers(task="code", response="long"),
        "dapo_tis",
        HEAD,
        {
            "dapo-ablation": ABLATED,
            "dapo-verl": ONE_RUN,
            "tis": PRACTICE,
            **HEAD_WHY,
            "seq-weights": ALGEBRA,
        },
        {"dapo-order", "dapo-cost", "scalerl-dapo", "tis-variance", "fp16"},
        {"dapo-half", "dapo-soft", "clip-product", "gspo-code"},
        {"fp16-learner"},
    ),
    (
        Answers(task="chat", precision="float32"),
        "deepseek_v32",
        {"kl.beta": "0.001"},
        {"kl-domain": PRACTICE, "kl-weighted": ALGEBRA, "no-std": PRACTICE, "opsm": PRACTICE},
        {"v32-unpublished", "k1-reward", "kl-off", "length-bias"},
        {"v32-dr-grpo", "v32-kl"},
        {"gdpo"},
    ),
    (
        Answers(task="chat", arch="moe", precision="float32"),
        "gspo",
        {"kl.kind": "k3_weighted", "kl.beta": "0.001"},
        {
            "gspo-routing-drift": ONE_RUN,
            "gspo-bounds": PRACTICE,
            "kl-domain": PRACTICE,
            "kl-weighted": ALGEBRA,
        },
        {"r3-table", "gspo-diverges", "gspo-length", "kl-off"},
        {"gspo-product", "gspo-qwen3"},
        {"r3", "moe-setup", "gdpo"},
    ),
    (
        Answers(stability="unstable"),
        "scalerl",
        HEAD,
        {"scalerl-loss": ABLATED, "cispo-async": PRACTICE, **HEAD_WHY},
        {"dppo-sanity", "scalerl-efficiency", "fp16"},
        {"cispo-reversed", "cispo-speed"},
        {"async", "fp16-learner"},
    ),
    (
        Answers(arch="moe", precision="float32", stability="unstable"),
        "gspo",
        {},
        {"gspo-routing-drift": ONE_RUN, "gspo-bounds": PRACTICE, "minirl-onpolicy": ABLATED},
        {"r3-table", "gspo-diverges", "gspo-length", "dppo-moe"},
        {"gspo-product", "gspo-qwen3"},
        {"r3", "moe-setup"},
    ),
    (
        Answers(task="tools", precision="fp8", response="long"),
        "dapo_tis",
        HEAD,
        {
            "dapo-ablation": ABLATED,
            "dapo-verl": ONE_RUN,
            "tis": PRACTICE,
            **HEAD_WHY,
            "seq-weights": ALGEBRA,
        },
        {"dapo-order", "dapo-cost", "scalerl-dapo", "tis-variance", "fp16"},
        {"dapo-half", "dapo-soft", "clip-product"},
        {"multi-turn", "fp16-learner"},
    ),
    (
        Answers(reward="token", precision="float32"),
        "vapo",
        {},
        {"critic-per-token": ALGEBRA, "vapo-table": ONE_RUN, "vapo-ablation": ABLATED},
        {"ppo-5"},
        {"vapo-71", "vapo-moved"},
        {"token-rewards"},
    ),
    (
        Answers(task="pretraining", precision="float32"),
        "rpt",
        {},
        {"rpt-setup": PRACTICE, "rpt-gain": ONE_RUN},
        {"rpt-narrow", "length-bias"},
        {"rpt-loss", "rpt-scale"},
        set(),
    ),
]


@pytest.mark.parametrize(
    ("answers", "recipe", "changes", "reasons", "against", "misread", "missing"),
    CASES,
    ids=[f"{case[1]}-{number}" for number, case in enumerate(CASES)],
)
def test_advice(answers, recipe, changes, reasons, against, misread, missing) -> None:
    found = advise(answers)
    assert found.recipe == recipe
    assert {change.key: change.value for change in found.changes} == changes
    assert {row.id: row.grade for row in found.reasons} == reasons
    assert {row.id for row in found.against} == against
    assert {row.id for row in found.misread} == misread
    assert {row.id for row in found.missing} == missing


def test_a_long_moe_gets_gspo_with_its_bounds_and_the_routing_replay_table() -> None:
    found = advise(Answers(task="math", arch="moe", response="long"))
    sets = [f"{change.key}={change.value}" for change in found.changes]
    recipe = load(found.recipe, sets=sets).recipe
    assert (recipe.objective.kind, recipe.objective.low, recipe.objective.high) == (
        "gspo",
        3e-4,
        4e-4,
    )
    assert recipe.optim.minibatches == 4
    table = next(row for row in found.against if row.id == "r3-table")
    for number in ("48.84", "66.76", "68.05", "69.00"):
        assert number in table.claim
    assert table.secondary
    first, second = (shlex.split(proposal.command) for proposal in found.ablations)
    assert first[:5] == ["grpo", "ablate", "gspo", "--axis", "ratio"]
    assert second[4] == "aggregate.kind=seq_mean,seq_sum"


def test_every_recommended_recipe_loads_without_a_warning() -> None:
    commands = {advice.command for advice in ADVICE}
    assert len({advice.recipe for advice in ADVICE}) == len(RECIPES)
    train = typer.main.get_command(app).commands["train"]
    for command in commands:
        words = shlex.split(command)
        assert words[:2] == ["grpo", "train"]
        given = train.make_context("train", words[2:]).params
        assert given["recipe"] in locate.recipe_names()
        assert warnings(load(given["recipe"], sets=given["sets"] or ()).recipe) == []


def test_every_proposed_ablation_plans(tmp_path: Path) -> None:
    """All of them through the parser and the planner, one of each kind as the command itself."""
    commands = sorted({proposal.command for advice in ADVICE for proposal in advice.ablations})
    ablate = typer.main.get_command(app).commands["ablate"]
    seen = set()
    for command in commands:
        words = shlex.split(command)[1:]
        given = ablate.make_context("ablate", words[1:]).params
        if (given["recipe"], *given["axes"]) in seen:
            sets = tuple(given["sets"] or ())
            plan = make_plan(Request(given["recipe"], tuple(given["axes"]), sets=sets), tmp_path)
            arms, why = len(plan.arms), plan.control_why
        else:
            seen.add((given["recipe"], *given["axes"]))
            words += ["--dry-run", "--json", "--runs-dir", str(tmp_path)]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, (command, done.exception)
            shown = json.loads(done.stdout)
            arms, why = len(shown["arms"]), shown["control_why"]
        assert arms >= 2, command
        assert why == "the recipe itself", command
    for ablation in ABLATIONS:
        for recipe in ablation.when["recipe"]:
            assert (recipe, ablation.axis) in seen, (recipe, ablation.axis)
    assert list(tmp_path.iterdir()) == []


def test_the_two_ablations_of_an_answer_have_two_folders() -> None:
    for advice in ADVICE:
        names = set()
        for proposal in advice.ablations:
            words = shlex.split(proposal.command)
            axis = words[words.index("--axis") + 1]
            if "=" not in axis:
                assert axis in locate.axis_names()
            default = axis.split("=")[0].split(".")[-1]
            names.add(words[words.index("--name") + 1] if "--name" in words else default)
        assert len(names) == 2, advice.answers


def test_a_change_names_evidence_that_is_shown() -> None:
    for advice in ADVICE:
        shown = {row.id for row in advice.reasons}
        assert {change.because for change in advice.changes} <= shown, advice.answers


def test_every_row_of_the_tables_is_reached() -> None:
    reached = {row.id for a in ADVICE for row in (*a.reasons, *a.against)}
    assert reached == set(EVIDENCE)
    assert {row.id for a in ADVICE for row in a.misread} == set(MISREADINGS)
    assert {row.id for a in ADVICE for row in a.missing} == set(MISSING)
    recipes = {rule.recipe for rule in RECIPES}
    for rule in (*RECIPES, *ADDITIONS, *ABLATIONS):
        for name, values in rule.when.items():
            known = {q.name: set(q.values) for q in QUESTIONS} | {"recipe": recipes}
            assert set(values) <= known[name]


def test_every_claim_has_a_source_and_a_known_grade() -> None:
    assert set(GRADES) == set(get_args(Grade))
    for row in EVIDENCE.values():
        assert row.grade in GRADES
        assert len(row.source) > 8
        if row.grade.startswith("paper"):
            assert re.search(r"arXiv:\d{4}\.\d{5}|verl", row.source), row.id
    for row in MISREADINGS.values():
        assert row.source


def test_what_is_called_missing_is_missing() -> None:
    for row in MISSING.values():
        assert row.recipe is None or row.recipe not in locate.recipe_names(), row.id
        assert row.key is None or row.key not in Recipe.model_fields, row.id


def test_no_source_is_claimed_for_an_objective_on_code() -> None:
    for advice in ADVICE:
        if advice.answers.task == "code":
            other = advise(
                Answers("math", *(advice.answers.value(q.name) for q in QUESTIONS[1:]))  # type: ignore[arg-type]
            )
            assert (advice.recipe, advice.changes) == (other.recipe, other.changes)
            assert any("singles out" in note for note in advice.notes)
            assert "gspo-code" in {row.id for row in advice.misread}


def test_only_what_independent_papers_found_is_called_several_groups() -> None:
    several = {row.id for row in EVIDENCE.values() if row.grade == "several groups report it"}
    assert several == {"gspo-diverges"}


@pytest.mark.parametrize("advice", [ADVICE[0], ADVICE[100], ADVICE[-1]])
def test_text_and_document_end_with_the_caveat(advice) -> None:
    text = render(advice, "summary", ["task"], 80)
    assert text.endswith(CAVEAT)
    assert " ".join(READING.split()) in " ".join(text.split())
    for line in text.splitlines():
        assert len(line) <= 80 or "grpo train" in line or "grpo ablate" in line, line
    for row in (*advice.reasons, *advice.against):
        assert f"[{row.id}]" in text
    json_text = json.dumps(document(advice, "summary", ["task"]), allow_nan=False)
    assert json.loads(json_text)["caveat"] == CAVEAT


def test_the_page_has_the_grades_and_every_recipe() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "advise.md").read_text()
    for grade, meaning in GRADES.items():
        assert f"| `{grade}` | {meaning}" in page
    rows = re.findall(r"\| \[(\w+)\]\(algorithms/\w+\.md\) \| (.*) ?\|", page)
    first = [(rule.recipe, [f"`{c.key}={c.value}`" for c in rule.changes]) for rule in RECIPES]
    assert [(name, re.findall("`[^`]+`", changes)) for name, changes in rows] == first
