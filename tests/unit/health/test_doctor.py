"""Every rule of `grpo doctor`: a run with the fault is named for it first, a sound one is not."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_cli.errors import GrpoError
from grpo_cli.health.doctor import RULES, Diagnosis, diagnose
from grpo_cli.health.series import RunSeries, Series
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Recipe
from tests.doctor_runs import SOUND, Samples, Story, write_story

FLAT = {"reward/accuracy": 0.36, "reward/mean": 0.36}
CUT = Samples(right=3, tokens_wrong=48, cut=4)

SICK: dict[str, Story] = {
    "D-VERIFIER-FAILS": Story(
        {"verifier/error_frac": 0.1, "verifier/timeout_frac": 0.03},
        early=Samples(failed=1),
        late=Samples(failed=1),
    ),
    "D-VERIFIER-PAYS": Story(
        {"reward/accuracy": (0.5, 0.95), "group/all_right_frac": (0.1, 0.85)},
        early=Samples(paid_wrong=1),
        late=Samples(right=6, paid_wrong=3),
        held_out=(0.5, 0.8, 0.95),
    ),
    "D-OFF-POLICY": Story(
        {
            "mismatch/k3": 0.015,
            "mismatch/logp_abs_mean": 0.06,
            "mismatch/rho_beyond_2_frac": 0.02,
            "reward/accuracy": (0.4, 0.2),
            "ratio/p99": 1.6,
        },
        held_out=(0.4, 0.3, 0.2),
    ),
    "D-STEP-SIZE": Story(
        {
            "canary/moved": lambda step: 2.0 + 0.1 * step,
            "ratio/p99": (4.0, 1.3),
            "reward/accuracy": lambda step: 0.3 if step == 1 else 0.0,
            "reward/mean": 0.0,
            "group/effective": lambda step: 7.0 if step < 3 else 0.0,
            "group/mixed_frac": lambda step: 0.9 if step < 3 else 0.0,
            "group/all_wrong_frac": lambda step: 0.1 if step < 3 else 1.0,
        },
        late=Samples(right=0),
        held_out=(0.38, 0.0, 0.0),
    ),
    "D-EXPLORATION": Story(
        {
            "policy/entropy": (0.1, 0.01),
            "group/mixed_frac": (0.5, 0.1),
            "group/all_wrong_frac": (0.3, 0.5),
            "group/all_right_frac": (0.2, 0.4),
            **FLAT,
        },
        early=Samples(repeats=True),
        late=Samples(repeats=True),
        sets=("sampling.temperature=0.2",),
        held_out=(0.4, 0.4, 0.41),
    ),
    "D-LENGTH": Story(
        {"completion/mean_length_wrong": (15.0, 45.0), "completion/mean_length_right": 20.0},
        early=Samples(tokens_right=20, tokens_wrong=15),
        late=Samples(right=5, tokens_right=21, tokens_wrong=44),
        recipe="grpo",
    ),
    "D-TRUNCATION": Story(
        {"completion/truncated_frac": 0.5, "completion/mean_length_wrong": 45.0},
        early=CUT,
        late=CUT,
        recipe="grpo",
    ),
    "D-NO-SIGNAL": Story(
        {
            "reward/accuracy": 0.0,
            "reward/mean": 0.0,
            "group/effective": 0.0,
            "group/mixed_frac": 0.0,
            "group/all_wrong_frac": 1.0,
        },
        early=Samples(right=0),
        late=Samples(right=0),
        held_out=(0.0, 0.0),
    ),
    "D-CONTRAST": Story(
        {
            "reward/accuracy": 0.97,
            "reward/mean": 0.97,
            "group/all_right_frac": 0.9,
            "group/all_wrong_frac": 0.0,
            "group/mixed_frac": 0.1,
            "group/effective": lambda step: float(step % 2),
        },
        early=Samples(right=8),
        late=Samples(right=8),
        held_out=(0.95, 0.97),
        recipe="grpo",
        sets=("task.max_level=1",),
    ),
    "D-FORMAT": Story(
        {
            "verifier/unparsed_frac": (0.4, 0.02),
            "reward/mean": (0.2, 0.3),
            "reward/accuracy": (0.3, 0.36),
        },
        late=Samples(),
        held_out=(0.36, 0.37, 0.36),
    ),
    "D-HELD-OUT-GAP": Story({}, held_out=(0.5, 0.5, 0.48)),
    "D-FALLING": Story({"reward/accuracy": (0.6, 0.45)}, held_out=(0.6, 0.55, 0.4)),
    "D-ZERO-GRADIENT": Story(
        {
            "group/mixed_frac": (0.9, 0.3),
            "group/all_right_frac": (0.1, 0.2),
            "group/all_wrong_frac": (0.0, 0.5),
        },
        recipe="grpo",
    ),
    "D-NOISE": Story(FLAT, held_out=(0.36, 0.37, 0.36)),
}


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Diagnosis]:
    root = tmp_path_factory.mktemp("sick")
    return {name: diagnose(write_story(root, story, name)) for name, story in SICK.items()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_story(tmp_path_factory.mktemp("sound"), SOUND)


def test_every_rule_has_a_story() -> None:
    assert set(SICK) == {rule.id for rule in RULES}


@pytest.mark.parametrize("name", SICK)
def test_the_first_finding_names_the_fault(name: str, diagnoses: dict[str, Diagnosis]) -> None:
    found = [finding.id for finding in diagnoses[name].findings]
    assert found[:1] == [name], diagnoses[name]


@pytest.mark.parametrize("name", SICK)
def test_a_finding_says_what_it_rests_on(name: str, diagnoses: dict[str, Diagnosis]) -> None:
    first = diagnoses[name].findings[0]
    assert first.cause
    assert first.look_at
    assert first.steps[0] <= first.steps[1] <= 24
    assert any(any(c.isdigit() for c in value) for _, value in first.evidence)


def test_a_sound_run_is_healthy_on_stated_grounds(sound: Path) -> None:
    found = diagnose(sound)
    assert found.findings == ()
    assert found.unjudged == ()
    assert found.headline.startswith("healthy (14 checks): held-out accuracy +35.0 points")
    assert dict(found.evidence)["training accuracy"].endswith("%")


def test_an_older_run_without_the_newer_metrics_is_judged_all_the_same(
    sound: Path, diagnoses: dict[str, Diagnosis]
) -> None:
    names = {name for record in RunSeries.open(sound).records for name in record.scalars}
    assert not names & {"policy/kl_base", "group/similarity", "reward/format_frac"}
    assert diagnoses["D-FORMAT"].findings[0].evidence[0][1].startswith("64.1 % → 93.9 %")


@pytest.mark.parametrize("name", SICK)
def test_the_command_plans_arms_of_the_runs_own_recipe(
    name: str, diagnoses: dict[str, Diagnosis], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from grpo_cli.cli.app import app

    monkeypatch.setenv("GRPO_RUNS_DIR", str(tmp_path))
    for finding in diagnoses[name].findings:
        assert finding.command is not None, finding
        words = shlex.split(finding.command)
        assert words[:2] == ["grpo", "ablate"]
        done = CliRunner().invoke(app, [*words[1:], "--dry-run", "--seeds", "2"])
        assert done.exit_code == 0, (finding.command, done.output, done.exception)
        assert "optim.steps=24" in finding.command


def test_the_command_gives_back_settings_of_every_kind(tmp_path: Path) -> None:
    sets = (
        "objective.kind=gspo",
        "objective.low=3e-4",
        "objective.high=4e-4",
        "overlong.kind=none",
        "optim.betas=[0.9, 0.99]",
        "verifier.options.style=think",
        "verifier.name=format",
        "task.template='Q: {question}'",
        "lora.targets=[q_proj, v_proj]",
    )
    story = replace(SICK["D-OFF-POLICY"], sets=sets)
    run = write_story(tmp_path, story)
    command = next(f.command for f in diagnose(run).findings if f.id == "D-OFF-POLICY")
    assert command is not None
    words = shlex.split(command)
    again = load(words[2], sets=[words[i + 1] for i, w in enumerate(words) if w == "--set"])
    own = Recipe.model_validate_json((run / "recipe.json").read_text())
    assert again.recipe.hash == own.hash


def test_a_cell_of_an_ablation_is_tested_with_the_recipe_of_the_ablation(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs", replace(SICK["D-NOISE"], recipe="dapo"))
    info = json.loads((run / "run.json").read_bytes())
    (run / "run.json").write_text(json.dumps({**info, "recipe": "four-axes"}))
    assert diagnose(run).findings[0].command is None
    (run.parent.parent / "plan.json").write_text(json.dumps({"recipe": "dapo"}))
    command = diagnose(run).findings[0].command
    assert command is not None
    assert command.startswith("grpo ablate dapo --axis")


def test_a_recipe_that_is_gone_leaves_no_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: dapo\nsetup: tiny\nobjective: {kind: clip}\n")
    run = write_story(tmp_path / "runs", replace(SICK["D-NOISE"], recipe=str(file)))
    command = diagnose(run).findings[0].command
    assert command is not None
    assert str(file) in shlex.split(command)
    file.unlink()
    assert diagnose(run).findings[0].command is None


def test_a_short_run_says_what_cannot_be_judged(tmp_path: Path) -> None:
    found = diagnose(write_story(tmp_path, replace(SOUND, steps=3, held_out=(0.4, 0.5))))
    assert found.findings == ()
    assert ("trend against noise", "needs 16 steps, has 3") in found.unjudged
    assert found.headline.startswith("nothing found so far")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("[GR306] sampler and learner are not the same policy: x", "D-OFF-POLICY"),
        ("[GR301] step 2: loss or gradient was not finite 3 times", "D-STEP-SIZE"),
        ("[GR304] the verifier failed on all 8 held-out answers", "D-VERIFIER-FAILS"),
    ],
)
def test_how_a_run_ended_counts_at_any_length(tmp_path: Path, reason: str, expected: str) -> None:
    found = diagnose(write_story(tmp_path, replace(SOUND, steps=1, reason=reason)))
    assert [(f.id, f.severity) for f in found.findings] == [(expected, "red")]


def test_a_cause_is_as_severe_as_what_it_explains(diagnoses: dict[str, Diagnosis]) -> None:
    found = {f.id: f.severity for f in diagnoses["D-STEP-SIZE"].findings}
    assert found["D-STEP-SIZE"] == found["D-FALLING"] == "red"


def test_an_amber_cause_of_a_red_fall_comes_first(tmp_path: Path) -> None:
    story = replace(SICK["D-FALLING"], metrics={"mismatch/k3": 3e-3})
    alone = replace(SOUND, metrics={"mismatch/k3": 3e-3})
    first = diagnose(write_story(tmp_path, story, "falls")).findings[0]
    assert (first.id, first.severity) == ("D-OFF-POLICY", "red")
    first = diagnose(write_story(tmp_path, alone, "alone")).findings[0]
    assert (first.id, first.severity) == ("D-OFF-POLICY", "amber")


def test_a_correction_in_force_makes_a_gap_amber(tmp_path: Path) -> None:
    metrics = {"mismatch/k3": 0.015, "mismatch/rho_beyond_2_frac": 0.02}
    story = Story(metrics, sets=("correction.kind=tis_token", "correction.cap=2.0"))
    assert diagnose(write_story(tmp_path, story)).findings[0].severity == "amber"


def test_a_control_arm_is_not_ill_for_doing_nothing(tmp_path: Path) -> None:
    story = replace(SICK["D-NOISE"], sets=("control.kind=random_reward",))
    found = diagnose(write_story(tmp_path, story))
    assert found.findings == ()
    assert ("control arm", "random_reward") in found.evidence


def test_wrong_answers_that_catch_up_with_the_right_ones_are_no_inflation(tmp_path: Path) -> None:
    """Such a policy stops guessing, and what it still gets wrong are the long questions."""
    story = Story(
        {"completion/mean_length_wrong": (15.0, 45.0), "completion/mean_length_right": 26.0},
        late=Samples(right=5, tokens_right=46, tokens_wrong=45),
    )
    assert diagnose(write_story(tmp_path, story)).findings == ()


def test_prompts_that_get_solved_while_held_out_accuracy_rises_are_success(tmp_path: Path) -> None:
    solved = {
        "reward/accuracy": (0.4, 0.9),
        "group/mixed_frac": (0.95, 0.35),
        "group/all_right_frac": (0.05, 0.65),
        "group/all_wrong_frac": 0.0,
    }
    rises = diagnose(write_story(tmp_path, Story(solved, held_out=(0.4, 0.8, 0.93)), "rises"))
    flat = diagnose(write_story(tmp_path, Story(solved, held_out=(0.9, 0.9, 0.9)), "flat"))
    assert rises.findings == ()
    assert [f.id for f in flat.findings] == ["D-HELD-OUT-GAP", "D-ZERO-GRADIENT"]


def test_a_solved_run_may_have_low_entropy(tmp_path: Path) -> None:
    story = Story(
        {
            "policy/entropy": (0.26, 0.01),
            "reward/accuracy": (0.4, 0.99),
            "group/mixed_frac": (0.9, 0.5),
            "group/all_right_frac": (0.1, 0.5),
        },
        late=Samples(right=7, tokens_right=26, tokens_wrong=24),
        held_out=(0.4, 0.8, 0.97),
    )
    found = diagnose(write_story(tmp_path, story))
    assert "D-EXPLORATION" not in {f.id for f in found.findings}


def test_a_spelled_out_gold_counts_as_held(tmp_path: Path) -> None:
    run = write_story(tmp_path, SOUND)
    assert RunSeries.open(run).all_rows.paid_without_gold == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_recipe_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    run = write_story(tmp_path, SOUND)
    (run / "recipe.json").write_bytes(content)
    with pytest.raises(GrpoError, match=r"GR204.*recipe\.json"):
        diagnose(run)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_damaged_rollouts_are_one_clear_error(tmp_path: Path, part: float) -> None:
    run = write_story(tmp_path, replace(SOUND, steps=8))
    file = run / "rollouts" / "step-000001.jsonl.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(part * len(whole))] if part else b"not gzip")
    with pytest.raises(GrpoError, match=r"GR204.*step-000001"):
        diagnose(run)


def test_a_run_without_rollouts_is_judged_by_its_metrics(tmp_path: Path) -> None:
    run = write_story(tmp_path, SICK["D-TRUNCATION"])
    for file in (run / "rollouts").iterdir():
        file.unlink()
    assert diagnose(run).findings[0].id == "D-TRUNCATION"


def series(*values: float) -> Series:
    return Series(tuple(range(1, len(values) + 1)), values)


def test_a_trend_is_measured_against_the_noise_of_steps_and_not_against_itself() -> None:
    steep = series(*(0.1 * i + (0.01 if i % 2 else -0.01) for i in range(12))).trend()
    flat = series(*(0.5 + (0.1 if i % 2 else -0.1) for i in range(12))).trend()
    assert steep is not None
    assert flat is not None
    assert steep.z > 50
    assert steep.noise < 0.05
    assert abs(flat.z) < 1


@pytest.mark.parametrize(
    ("values", "z"), [((1.0, 1.0, 1.0, 1.0), 0.0), ((0.0, 1.0, 2.0, 3.0), math.inf)]
)
def test_a_series_without_noise_has_no_division_by_zero(values: Any, z: float) -> None:
    trend = series(*values).trend()
    assert trend is not None
    assert trend.z == z
