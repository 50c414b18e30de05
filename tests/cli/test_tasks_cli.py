"""`grpo tasks` as a real process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_cli.cli.tasks import _show_profile
from grpo_cli.difficulty import PromptRate, expected_zero_variance
from grpo_cli.recipe.load import load
from tests.e2e.conftest import grpo


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """GSM8K-shaped files with one duplicate, one leak and one hostile question."""
    questions = ["1 + 1?", "1 + 1?", "2 + 2?", "in both?", "\x1b[31mred?"]
    golds = ["2", "2", "4", "7", "5"]
    lines = [
        json.dumps({"question": q, "answer": f"work\n#### {a}"})
        for q, a in zip(questions, golds, strict=True)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "test.jsonl").write_text(lines[3])
    return tmp_path


def sets(rows: Path) -> list[str]:
    return ["--set", f"task={{kind: gsm8k, path: {rows}}}"]


def test_ls(tmp_path: Path) -> None:
    done = grpo("tasks", "ls", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\ngsm8k " in done.stdout
    assert "tiny                    arithmetic  exact_integer  tiny" in done.stdout
    found = json.loads(grpo("tasks", "ls", "--json", cwd=tmp_path).stdout)
    kinds = ["arithmetic", "gsm8k", "math", "jsonl", "next_token", "reasoning_gym"]
    assert [kind["kind"] for kind in found["kinds"]][: len(kinds)] == kinds
    assert {"smollm2-arithmetic", "tiny"} <= {s["setup"] for s in found["setups"]}


def test_show_renders_what_the_model_reads(tmp_path: Path) -> None:
    done = grpo("tasks", "show", "tiny", "--prompts", "1", "--held-out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "golds refused            0 of 10000 checked" in done.stdout
    assert "<|user|>49+10<|assistant|>" in done.stdout


def test_show_counts_what_was_dropped_and_what_filters_find(rows: Path) -> None:
    done = grpo("tasks", "show", "tiny", *sets(rows), "--prompts", "5", "--json", cwd=rows)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["training rows read"] == 5
    assert found["training prompts"] == len(found["prompts"]) == 3
    assert found["held out, in training"] == 1
    assert found["dropped"] == {"duplicates": 1, "in the held-out set": 1}
    assert found["filters find in training"]["unparsable"] == "0 of 3 checked"
    assert {p["reference"] for p in found["prompts"]} == {"2", "4", "5"}


def test_a_hostile_question_is_shown_safely(rows: Path) -> None:
    done = grpo("tasks", "show", "tiny", *sets(rows), "--prompts", "5", cwd=rows)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred?" in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["show", "tinny"], "tiny"),
        (["show", "tiny", "--set", "task={kind: gsm8k}"], "task.path=FILE"),
        (["show", "tiny", "--set", "task={kind: jsonl, path: none.jsonl}"], "none.jsonl"),
        (["profile", "tiny", "--k", "0"], "--k"),
    ],
)
def test_what_a_person_got_wrong(tmp_path: Path, args: list[str], says: str) -> None:
    done = grpo("tasks", *args, cwd=tmp_path, HF_HOME=str(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_profile_of_the_tiny_world(tmp_path: Path) -> None:
    args = ["profile", "tiny", "--k", "4", "--n", "10", "--set", "sampling.group_size=4"]
    done = grpo("tasks", *args, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(row["prompts"] for row in found["histogram"]) == len(found["prompts"]) == 10
    rates = [prompt["rate"] for prompt in found["prompts"]]
    assert found["pass_rate"]["mean"] == pytest.approx(sum(rates) / 10)
    # With K = G the estimate is the share of prompts whose samples all agree.
    same = sum(rate in (0, 1) for rate in rates) / 10
    assert found["zero_variance"]["mean"] == pytest.approx(same)
    assert found["zero_variance"]["unbiased"]
    assert "10 of 10 prompts" in done.stderr


def test_a_profile_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load("grpo", sets=["sampling.group_size=4"])
    rates = [
        PromptRate("a", 1, (1.0, 1.0), 0, 0, 10.0),
        PromptRate("b", 2, (0.0, 1.0), 1, 0, 20.0),
    ]
    _show_profile(loaded, 2, rates, expected_zero_variance(rates, 4))
    shown = capsys.readouterr().out
    assert "pass rate     75.0 %" in shown
    assert "truncated     25.0 %   no answer 0.0 %   mean length 15 tokens" in shown
    assert "  100 %            1  ####################\n" in shown
    assert "  level 1     1 prompts   pass rate 100.0 %" in shown
    assert "--k 4 or more gives an unbiased estimate" in shown
