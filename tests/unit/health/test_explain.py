"""What `grpo explain` reads out of a step's rollouts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.health.explain import choose_group, explain_step, ranges
from grpo_cli.health.explain_text import as_json, as_text
from grpo_cli.health.explained import Explained
from grpo_cli.health.tokens import decoder
from tests.health_runs import HOSTILE, explained_run, row, two_groups, write_rollouts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explained_run(tmp_path_factory.mktemp("explain"), two_groups())


@pytest.fixture(scope="module")
def explained(run: Path) -> Explained:
    return explain_step(run, 8)


def weights_of(explained: Explained) -> list[float]:
    return [s.weight for group in explained.used for s in group.samples]


def test_every_group_says_why_it_was_used_or_dropped(explained: Explained) -> None:
    assert [g.kept for g in explained.groups] == [True, True, False, False, False]
    assert [g.minibatch for g in explained.groups] == [0, 1, None, None, None]
    assert [g.why for g in explained.groups] == [
        "1 of 2 right",
        "1 of 2 right",
        "all right: no contrast, dropped",
        "all wrong: no contrast, dropped",
        "1 of 2 right: dropped, the batch was full",
    ]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ({"kind": "seq_mean"}, [1 / 2, 1 / 6, 1 / 4, 1 / 4]),
        ({"kind": "token_mean"}, [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ({"kind": "constant"}, [1 / 16, 1 / 16, 1 / 16, 1 / 16]),
        ({"kind": "seq_sum"}, [1 / 2, 1 / 2, 1 / 2, 1 / 2]),
        ({"kind": "prompt_mean"}, [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
    ],
)
def test_weights_are_those_of_each_minibatch(
    tmp_path: Path, aggregate: dict[str, Any], expected: list[float]
) -> None:
    found = explain_step(explained_run(tmp_path, two_groups(), aggregate=aggregate), 8)
    assert weights_of(found) == pytest.approx(expected)


def test_shares_of_the_pull_by_hand(explained: Explained) -> None:
    # seq_mean: weight x |advantage| x tokens is 1/2, 1/2 in the first group, 1/4, 1/4 in the other.
    shares = {s.name: s for part in explained.splits.values() for s in part}
    assert shares["right"].pull == pytest.approx(0.5)
    assert shares["positive"].pull == pytest.approx(0.5)
    assert explained.median_length == 2
    assert shares["long"].pull == pytest.approx(1 / 3)
    assert shares["long"].tokens == pytest.approx(3 / 8)
    assert shares["truncated"].pull == pytest.approx(1 / 3)
    assert shares["zero"].sequences == 0
    for part in explained.splits.values():
        assert sum(s.pull for s in part) == pytest.approx(1)
        assert sum(s.tokens for s in part) == pytest.approx(1)


def test_the_penalty_is_what_shaping_added(explained: Explained) -> None:
    assert [s.penalty for s in explained.groups[0].samples] == [0, -0.5]


@pytest.mark.parametrize("in_denominator", [False, True])
def test_masked_and_failed_sequences_have_no_weight(tmp_path: Path, in_denominator: bool) -> None:
    rows = [
        row("a", 0, 1.0, 2, 1.0),
        row("a", 1, 0.0, 6, -1.0, finish="length", learner_logp=None),
        row("b", 0, 1.0, 2, 0.0),
        row("b", 1, None, 2, 0.0, learner_logp=None),
    ]
    found = explain_step(
        explained_run(
            tmp_path,
            rows,
            overlong={"kind": "mask"},
            aggregate={"kind": "token_mean", "masked_in_denominator": in_denominator},
        ),
        8,
    )
    assert [s.out for g in found.used for s in g.samples] == [
        None,
        "truncated, masked",
        None,
        "no verdict",
    ]
    assert weights_of(found) == pytest.approx([1 / 8 if in_denominator else 1 / 2, 0, 1 / 2, 0])


def test_a_sequence_that_geo_rs_rejected_is_out(tmp_path: Path) -> None:
    found = explain_step(explained_run(tmp_path, two_groups(), correction={"kind": "geo_rs"}), 8)
    assert [s.out for s in found.groups[1].samples] == [None, "rejected by geo_rs"]
    assert weights_of(found)[2:] == pytest.approx([1 / 2, 0])


def test_the_worst_token_in_its_context(run: Path, explained: Explained) -> None:
    worst = explained.worst
    assert worst is not None
    assert (worst.group, worst.sample, worst.position, worst.token_id) == (1, 1, 1, 7)
    assert worst.learner_logp - worst.sampler_logp == pytest.approx(-0.4)
    decode = decoder(run)
    assert decode is not None
    assert f"{decode(6)}«{decode(7)}»" in as_text(explained, decode)
    assert "... 6 [7]  ..." in as_text(explained, None)


def test_what_picks_a_group(explained: Explained) -> None:
    assert choose_group(explained, "mismatch") == 1
    assert choose_group(explained, "length") == 3  # in a dropped group
    assert choose_group(explained, "advantage") == 0


def test_rollouts_without_learner_logp_are_explained_and_have_no_mismatch(tmp_path: Path) -> None:
    rows = [{k: v for k, v in line.items() if k != "learner_logp"} for line in two_groups()]
    found = explain_step(explained_run(tmp_path, rows), 8)
    assert found.worst is None
    assert weights_of(found) == pytest.approx([1 / 2, 1 / 6, 1 / 4, 1 / 4])
    assert "no learner_logp" in as_text(found, None)
    with pytest.raises(GrpoError, match=r"--worst mismatch"):
        choose_group(found, "mismatch")


def test_a_step_that_trained_nothing(tmp_path: Path) -> None:
    dropped = two_groups()[4:]
    found = explain_step(explained_run(tmp_path, dropped), 8)
    assert not found.used
    assert "nothing was updated" in as_text(found, None)
    json.loads(as_json(found, None))
    with pytest.raises(GrpoError, match="no group of step 8 trained"):
        choose_group(found, "advantage")


def test_weights_that_disagree_with_the_record_are_not_shown_as_true(tmp_path: Path) -> None:
    run = explained_run(tmp_path, two_groups())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    for told, note in ((1.0, False), (0.7, True)):
        last["scalars"]["loss/weight_sum"] = told
        (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
        shown = explain_step(run, 8).notes
        assert any("do not trust the weights" in line for line in shown) is note


def test_no_such_step_says_which_there_are(run: Path) -> None:
    write_rollouts(run, 6, two_groups())
    write_rollouts(run, 7, two_groups())
    with pytest.raises(GrpoError) as caught:
        explain_step(run, 99)
    (problem,) = caught.value.problems
    assert problem.code == "GR209"
    assert problem.hint == "there are steps 6-8"


def test_a_run_without_rollouts_is_told_apart_from_a_missing_step(tmp_path: Path) -> None:
    run = explained_run(tmp_path, two_groups())
    (run / "rollouts" / "step-000008.jsonl.gz").unlink()
    with pytest.raises(GrpoError) as caught:
        explain_step(run, 8)
    assert "it has not trained" in str(caught.value.problems[0].hint)


@pytest.mark.parametrize(
    "damage", ["cut", "noise", "bent", "row", "type", "lengths", "number", "recipe"]
)
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    rows = two_groups()
    run = explained_run(tmp_path, rows)
    path = run / "rollouts" / "step-000008.jsonl.gz"
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "noise":
        path.write_bytes(b"not gzip")
    elif damage == "bent":
        path.write_bytes(data[:40] + bytes(8) + data[48:])
    elif damage == "recipe":
        (run / "recipe.json").write_text("[]")
    else:
        if damage == "row":
            del rows[2]["prompt_id"]
        elif damage == "number":
            rows[2] = 5  # type: ignore[call-overload]
        elif damage == "type":
            rows[2]["advantage"] = "much"
        else:
            rows[2]["sampler_logp"] = [0.0]
        write_rollouts(run, 8, rows)
    with pytest.raises(GrpoError) as caught:
        explain_step(run, 8)
    (problem,) = caught.value.problems
    assert problem.code == "GR204"
    assert ("recipe.json" if damage == "recipe" else "step-000008") in problem.message
    assert ("line 3" in problem.message) is (damage in ("row", "type", "lengths", "number"))


def test_hostile_completions_cannot_reach_the_terminal(tmp_path: Path) -> None:
    rows = [
        row("a", n, float(n), 2, n - 0.5, completion=HOSTILE, parsed=HOSTILE, detail=HOSTILE)
        | {"prompt_id": HOSTILE, "reference": HOSTILE, "prompt": [{"content": HOSTILE}]}
        for n in range(2)
    ]
    found = explain_step(explained_run(tmp_path, rows), 8)
    for group in (None, 0):
        text = as_text(found, lambda token: HOSTILE, group)
        text.encode()
        assert not set(text) & set("\x1b\x00\u202e\ud800")
    assert "[bold red]" in text
    tree = json.loads(as_json(found, lambda token: HOSTILE))
    assert tree["groups"][0]["samples"][0]["completion"] == HOSTILE


def test_json_has_every_number_and_no_nan(explained: Explained) -> None:
    tree = json.loads(as_json(explained, None), parse_constant=pytest.fail)
    assert tree["schema_version"] == 1
    assert len(tree["groups"]) == 5
    assert tree["groups"][2]["samples"][0]["advantage"] is None
    assert math.isclose(tree["worst"]["log_rho"], -0.4)
    (only,) = json.loads(as_json(explained, None, 1))["groups"]
    assert only["number"] == 1


def test_ranges() -> None:
    assert ranges([8, 1, 2, 3, 10, 11]) == "1-3, 8, 10-11"
