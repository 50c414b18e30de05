"""The reasoning_gym task: the same questions everywhere, splits apart, golds that can travel."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.load import load
from grpo_cli.recipe.task_schema import ReasoningGymTask
from grpo_cli.tasks import load_task, task_fingerprint
from grpo_cli.tasks.wording import content_key

PRINT_IDS = """
from grpo_cli.recipe.task_schema import ReasoningGymTask
from grpo_cli.tasks import load_task
for name in ("leg_counting", "spell_backward", "countdown"):
    task = load_task(ReasoningGymTask(name=name, held_out_size=5))
    print([(p.id, p.reference) for p in (task.train(1999), task.train(0), *task.held_out(5))])
"""


def settings(name: str, **fields: object) -> ReasoningGymTask:
    return ReasoningGymTask.model_validate({"name": name, **fields})


def refused(chosen: ReasoningGymTask) -> str:
    """The message and the hint of GR205."""
    with pytest.raises(GrpoError) as caught:
        load_task(chosen)
    (problem,) = caught.value.problems
    assert problem.code == "GR205"
    return f"{problem.message} {problem.hint}"


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # importing it raises ImportError
    assert "pip install 'grpo-cli[reasoning-gym]'" in refused(settings("leg_counting"))
    with pytest.raises(GrpoError, match="GR205"):
        task_fingerprint(settings("leg_counting"))


def test_seed_and_size_do_not_belong_into_options() -> None:
    for key in ("seed", "size"):
        text = f"task={{kind: reasoning_gym, name: leg_counting, options: {{{key}: 3}}}}"
        with pytest.raises(GrpoError, match=f"write `{key}` beside"):
            load("grpo", sets=[text])


def test_options_are_typed_and_can_be_set_one_by_one() -> None:
    sets = [
        "task={kind: reasoning_gym, name: leg_counting}",
        "task.options.max_animals=4",
        "task.options.a=0.5",
        "task.options.b=true",
        "task.options.c=word",
    ]
    task = load("grpo", sets=sets).recipe.task
    assert isinstance(task, ReasoningGymTask)
    assert task.options == {"max_animals": 4, "a": 0.5, "b": True, "c": "word"}
    assert task.options["b"] is True
    with pytest.raises(GrpoError, match=r"task\.options"):
        load("grpo", sets=[*sets, "task.options.d=[1, 2]"])


@pytest.mark.usefixtures("package")
class TestWithThePackage:
    @pytest.fixture(scope="class")
    def package(self) -> None:
        pytest.importorskip("reasoning_gym")

    def test_every_process_makes_the_same_questions(self) -> None:
        ran = [
            subprocess.run(
                [sys.executable, "-c", PRINT_IDS],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        ]
        assert ran[0] == ran[1]
        assert ran[0].count("\n") == 3

    def test_no_training_question_is_held_out_and_no_held_out_one_comes_twice(self) -> None:
        # One animal, at most nine of it: so few questions that the splits would meet.
        options = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 9}
        task = load_task(settings("leg_counting", options=options, size=400, held_out_size=100))
        held_out = {content_key(p.messages[-1].content) for p in task.held_out(100)}
        training = [content_key(task.train(i).messages[-1].content) for i in range(400)]
        assert len(held_out) == 100
        assert not held_out & set(training)
        assert len(set(training)) < 400, "the test needs a data set that repeats itself"
        assert task.held_out(3) == task.held_out(100)[:3]
        with pytest.raises(IndexError):
            task.train(400)

    def test_another_seed_makes_other_questions_and_another_wording_the_same_ids(self) -> None:
        first = load_task(settings("chain_sum", held_out_size=20))
        again = load_task(settings("chain_sum", held_out_size=20, template="Q: {question}"))
        other = load_task(settings("chain_sum", held_out_size=20, seed=1))
        ids = [[p.id for p in task.held_out(20)] for task in (first, again, other)]
        assert ids[0] == ids[1]
        assert not set(ids[0]) & set(ids[2])
        assert again.train(0).messages[-1].content.startswith("Q: ")

    @pytest.mark.parametrize(
        ("chosen", "says"),
        [
            ({"name": "leg_count"}, "did you mean `leg_counting`?"),
            ({"name": "leg_counting", "options": {"max_animal": 3}}, "`max_animals`?"),
            ({"name": "leg_counting", "options": {"max_animals": 1}}, "max_animals must be >="),
            ({"name": "leg_counting", "options": {"max_animals": "x"}}, "refuses task.options"),
            ({"name": "composite"}, "mixture"),
            ({"name": "codeio"}, "repeated"),
        ],
    )
    def test_what_a_person_got_wrong(self, chosen: dict[str, object], says: str) -> None:
        assert says in refused(ReasoningGymTask.model_validate(chosen))

    def test_too_few_questions_are_an_error_for_either_split(self) -> None:
        one = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 2}
        with pytest.raises(GrpoError, match="too few distinct questions"):
            load_task(settings("leg_counting", options=one)).held_out(200)
        with pytest.raises(GrpoError, match="holds 5 questions out, 6 were asked for"):
            load_task(settings("leg_counting", held_out_size=5)).held_out(6)

    def test_a_data_set_that_follows_the_hash_seed_needs_a_fixed_one(self) -> None:
        code = (
            "from grpo_cli.recipe.task_schema import ReasoningGymTask as T; "
            "from grpo_cli.tasks import load_task; load_task(T(name='ransom_note'))"
        )
        done = {
            seed: subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=False,
            )
            for seed in ("0", "1")
        }
        assert done["0"].returncode == 0, done["0"].stderr
        assert "change with Python's hash seed" in done["1"].stderr

    def test_the_verifier_knows_every_scorer_that_evaluates_an_answer(self) -> None:
        from reasoning_gym.factory import DATASETS

        from grpo_cli.recipe.locate import verifiers_dir
        from grpo_cli.verify.load import load_verifier

        module = getattr(load_verifier("reasoning_gym", verifiers_dir()).answer, "__globals__", {})
        guarded = module["EVALUATED"] | module["PARSED"]
        found = set()
        for name, (cls, _) in DATASETS.items():
            source = sys.modules[cls.__module__].__file__
            tree = ast.parse(Path(str(source)).read_text())
            scorers = [
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef) and node.name == "score_answer"
            ]
            calls = [c.func for s in scorers for c in ast.walk(s) if isinstance(c, ast.Call)]
            names = {getattr(f, "id", getattr(f, "attr", "")) for f in calls}
            # `number_sorting` evaluates its own gold; the parser of logic is its own.
            if names & {"eval", "exec", "parse_expr", "sympify"}:
                found.add(name)
        assert found - {"number_sorting", "propositional_logic"} == guarded

    def test_golds_of_tuples_and_fractions_come_back_as_they_were(self) -> None:
        import reasoning_gym

        from grpo_cli.recipe.locate import verifiers_dir
        from grpo_cli.verify.load import load_verifier

        answer = load_verifier("reasoning_gym", verifiers_dir()).answer
        read = getattr(answer, "__globals__", {})["_read"]
        for name in ("rearc", "gsm_symbolic", "rotten_oranges"):
            task = load_task(settings(name, held_out_size=2))
            for index in range(10):
                entry = read(task.train(index).reference)[2]
                place = entry["metadata"]["source_index"]
                assert place == index
                # The scorer gives the gold full marks only when tuples are tuples again.
                data_set = reasoning_gym.create_dataset(name, seed=0, size=1)
                assert data_set.score_answer(entry["answer"], entry) == 1, name

    def test_the_fingerprint_names_the_version(self) -> None:
        assert task_fingerprint(settings("leg_counting")).startswith("reasoning-gym 0.")
        reference = json.loads(load_task(settings("leg_counting")).train(0).reference)
        assert reference.keys() == {"data_set", "options", "entry"}
