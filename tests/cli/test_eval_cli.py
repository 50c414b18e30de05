"""What a person can get wrong with `grpo eval`, and what the output holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.measure.ask import Ask, resolve_recipe
from grpo_cli.measure.run import Job, measure
from grpo_cli.measure.target import Subject, find_subject, read_adapter
from grpo_cli.measure.wordings import parse_wordings
from grpo_cli.recipe.schema import ArithmeticTask, Model
from tests.e2e.conftest import grpo

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k_test.jsonl"


def no_run(text: str) -> Path:
    raise AssertionError(text)


def find(text: str, tmp_path: Path) -> Subject:
    return find_subject(text, tmp_path / "runs", no_run)


def fails(code: str, says: str) -> pytest.RaisesExc[GrpoError]:
    def same(problem: GrpoError) -> bool:
        first = problem.problems[0]
        return first.code == code and says in f"{first.message} {first.hint}"

    return pytest.RaisesExc(GrpoError, check=same)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("tinny", "did you mean `tiny`?"),
        ("no such thing", "no hub id"),
        ("tiny@x", "what follows the @"),
        ("{tmp}", "no run.json, adapter_config.json or config.json"),
        ("{tmp}/file", "is a file"),
        ("{tmp}/model@3", "has no steps"),
    ],
)
def test_a_target_that_is_nothing(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    with fails("GR206", says):
        find(text.replace("{tmp}", str(tmp_path)), tmp_path)


def test_a_hub_id_and_a_model_folder_are_base_models(tmp_path: Path) -> None:
    assert find("org/name", tmp_path) == Subject("org/name", "base", Model(id="org/name"))
    (tmp_path / "config.json").write_text("{}")
    assert find(str(tmp_path), tmp_path).model.id == tmp_path.as_posix()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"r": 0}, "rank"),
        ({"target_modules": ".*_proj"}, "targets"),
    ],
)
def test_an_adapter_that_cannot_be_loaded(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "target_modules": ["q_proj"],
              "base_model_name_or_path": "tiny"}  # fmt: skip
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with fails("GR201", "has no adapter_model.safetensors"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert read_adapter(tmp_path)[1].alpha == 8
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | changes))
    with fails("GR201", says):
        read_adapter(tmp_path)


BASE = Subject("org/name", "base", Model(id="org/name"))
TINY = Subject("tiny", "base", Model(id="tiny"))


@pytest.mark.parametrize(
    ("subject", "ask", "code", "says"),
    [
        (BASE, Ask(), "GR209", "say what to ask it"),
        (TINY, Ask(task="gsm9k"), "GR209", "gsm8k"),
        (TINY, Ask(task="jsonl"), "GR209", "jsonl:FILE"),
        (TINY, Ask(task="jsonl:x.jsonl"), "GR209", "--verifier"),
        (TINY, Ask(setup="tinny"), "GR107", "tiny"),
        (TINY, Ask(sets=("model.id=other",)), "GR209", "pass the other model as TARGET"),
        (TINY, Ask(sets=("sampling.min_p=1",)), "GR101", "min_p"),
        (Subject("r@1", "run", Model(id="tiny"), tree={}), Ask(setup="tiny"), "GR209", "is a run"),
    ],
)
def test_options_that_do_not_fit(subject: Subject, ask: Ask, code: str, says: str) -> None:
    with fails(code, says):
        resolve_recipe(subject, ask)


def test_which_verifier_goes_with_a_task() -> None:
    chosen = {
        name: resolve_recipe(BASE, Ask(task=name)).verifier.name
        for name in ("gsm8k", "math500", "arithmetic", "smollm2-arithmetic")
    }
    assert chosen == {
        "gsm8k": "gsm8k", "math500": "math", "arithmetic": "gsm8k", "smollm2-arithmetic": "gsm8k"
    }  # fmt: skip
    assert resolve_recipe(TINY, Ask(task="arithmetic")).verifier.name == "exact_integer"
    assert resolve_recipe(TINY, Ask(task="gsm8k", verifier="math")).verifier.name == "math"


def test_a_limit_of_the_verifier_is_no_choice_of_one() -> None:
    ask = Ask(task="gsm8k", sets=("verifier.sample_limit_s=3",))
    recipe = resolve_recipe(BASE, ask)
    assert (recipe.verifier.name, recipe.verifier.sample_limit_s) == ("gsm8k", 3)
    ask = Ask(task="gsm8k", sets=("verifier.name=math",))
    assert resolve_recipe(BASE, ask).verifier.name == "math"


def test_an_adapter_whose_base_is_gone_says_what_to_mend(tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"],
              "base_model_name_or_path": "./gone/model"}  # fmt: skip
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    ask = ("--task", "arithmetic", "--num-questions", "2", "--k", "1")
    done = grpo("eval", str(tmp_path), *ask, cwd=tmp_path)
    assert done.returncode == 2
    assert "GR201" in done.stderr
    assert "base_model_name_or_path" in done.stderr
    assert "--set model.id" not in done.stderr


def test_templates_by_name_and_by_text() -> None:
    task = ArithmeticTask.model_validate({"answer": "boxed"})
    found = parse_wordings(["plain, own", "Q: {question}\\nA:"], task)
    assert [w.name for w in found] == ["plain", "own", "text1"]
    assert found[0].template == "What is {question}?"
    assert found[2].template == "Q: {question}\nA:"
    with fails("GR209", "did you mean `boxed`?"):
        parse_wordings(["bocsed"], task)
    with fails("GR209", "more than once"):
        parse_wordings(["{question} {question}"], task)
    with fails("GR209", "names none"):
        parse_wordings([" , "], task)


@pytest.mark.skipif(not GSM8K.exists(), reason="the GSM8K file is not here")
def test_the_whole_gsm8k_test_file_loads(tmp_path: Path) -> None:
    from grpo_cli.tasks import load_task

    ask = Ask(task=f"jsonl:{GSM8K}", verifier="gsm8k")
    task = load_task(resolve_recipe(TINY, ask).task, train=False)
    assert len(task.held_out(1319)) == 1319
    with fails("GR209", "1319 test questions, 2000 were asked for"):
        measure(
            Job(TINY, None, Ask(task=ask.task, verifier="gsm8k", num_questions=2000), tmp_path),
            lambda line: None,
        )


def test_a_file_of_ones_own_is_asked_whole_and_shown_safely(tmp_path: Path) -> None:
    lines = [{"problem": f"{i}+1", "solution": f"\\boxed{{{i + 1}}}"} for i in range(5)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    args = ("eval", "tiny", "--task", "jsonl:own.jsonl", "--verifier", "exact_integer", "--k", "2")
    done = grpo(*args, "--vs", "tiny@x", cwd=tmp_path)
    assert done.returncode == 2
    done = grpo(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "jsonl, 5 held-out questions x 2 samples" in done.stdout
    assert "95 % intervals over questions: beta-binomial; Wilson" in done.stdout
    assert "5 of 5 questions" in done.stderr
    rows = [json.loads(row) for row in next(tmp_path.glob("runs/evals/*/rows.jsonl")).open()]
    assert {"question_id", "cluster", "sample", "score", "status", "parsed", "num_tokens",
            "finish", "text"} <= set(rows[0])  # fmt: skip
    train = grpo(*args, "--split", "train", cwd=tmp_path)
    assert train.returncode == 2
    assert "0 train questions" in train.stderr


def test_there_is_no_greedy_mode_and_an_error_under_json_is_json(tmp_path: Path) -> None:
    done = grpo("eval", "tiny", "--temperature", "0", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert not done.stdout
    assert json.loads(done.stderr)["errors"][0]["code"] == "GR209"
