"""The reasoning_gym verifier gives the package's own scores, and runs no model text as code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.recipe.task_schema import ReasoningGymTask
from grpo_cli.tasks.reasoning_gym import ReasoningGym
from grpo_cli.types import Status
from grpo_cli.verify.load import load_verifier
from grpo_cli.verify.pool import VerifierPool


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", _spec_but_not("reasoning_gym"))
    with pytest.raises(GrpoError, match=r"GR205.*pip install 'grpo-cli\[reasoning-gym\]'"):
        load_verifier("reasoning_gym", verifiers_dir())


def _spec_but_not(missing: str):  # type: ignore[no-untyped-def]
    from importlib.util import find_spec

    return lambda name, package=None: None if name == missing else find_spec(name, package)


@pytest.fixture(scope="module")
def pool():  # type: ignore[no-untyped-def]
    pytest.importorskip("reasoning_gym")
    source = load_verifier("reasoning_gym", verifiers_dir(), {"partial": "on"}).source
    with VerifierPool(source) as workers:
        yield workers


def reference(name: str, index: int = 0, **options: int) -> str:
    pytest.importorskip("reasoning_gym")
    chosen = ReasoningGymTask(name=name, options=dict(options), held_out_size=1)
    return ReasoningGym(chosen).train(index).reference


@pytest.mark.parametrize("name", ["leg_counting", "countdown", "rearc", "game_of_life"])
def test_scores_in_a_worker_are_those_of_the_package(pool: VerifierPool, name: str) -> None:
    import reasoning_gym

    from grpo_cli.seeds import seed63

    data_set = reasoning_gym.create_dataset(
        name, seed=seed63("reasoning_gym", 0, "train", 0) % 2**31, size=2000
    )
    pairs, want = [], []
    for index in range(5):
        entry = data_set[index]
        gold, next_gold = entry["answer"], data_set[index + 1]["answer"]
        for answer in (gold, next_gold, f"{gold} {gold}", f"({gold})", "12", "1 + 2"):
            try:
                want.append(data_set.score_answer(answer, entry))
            except (KeyError, TypeError, ValueError):
                want.append(0.0)
            pairs.append((f"So <answer>\n{answer}</answer>", reference(name, index)))
    verdicts = pool(pairs)
    assert [v.status for v in verdicts if v.missing] == []
    # A syntax error is 0.01 to countdown; here it is no answer.
    read = [(v.score, w) for v, w in zip(verdicts, want, strict=True) if v.status is Status.OK]
    assert all(ours == theirs for ours, theirs in read)
    assert len(read) >= 20
    assert sum(score == 1 for score, _ in read) >= 5


def test_partial_scores_are_0_unless_they_are_asked_for(pool: VerifierPool) -> None:
    ref = reference("leg_counting")
    gold = json.loads(ref)["entry"]["answer"]
    whole = load_verifier("reasoning_gym", verifiers_dir())
    longer = f"<answer>1{gold}</answer>"
    assert 0 < pool([(longer, ref)])[0].score < 1
    assert whole(longer, ref).score == 0
    assert whole(f"<answer>{gold}</answer>", ref).score == 1


def test_model_text_is_not_run(pool: VerifierPool, tmp_path: Path) -> None:
    attacks = (
        "__import__('pathlib').Path({0!r}).touch()",
        "[__import__('pathlib').Path({0!r}).touch()]",
        "[x for x in [__import__('pathlib').Path({0!r}).touch()]]",
        "__import__('pathlib').Path({0!r}).touch()!",
        "f\"{{open({0!r}, 'w')}}\"",
        "[open][0]({0!r}, 'w')",
        "(lambda: open({0!r}, 'w'))()",
        "sqrt(open({0!r}, 'w'))",
        "sqrt(*[open({0!r}, 'w')])",
    )
    module = getattr(load_verifier("reasoning_gym", verifiers_dir()).answer, "__globals__", {})
    names = sorted(module["EVALUATED"] | module["PARSED"])
    names.remove("polynomial_multiplication")  # its questions follow the hash seed
    mark = tmp_path / "ran"
    pairs = [
        (f"<answer>{attack.format(str(mark))}</answer>", reference(name))
        for name in names
        for attack in attacks
    ]
    verdicts = pool(pairs)
    assert not mark.exists()
    assert all(v.score < 0.1 for v in verdicts)
    # The attacks are real: the package runs the first one.
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    import reasoning_gym

    data_set = reasoning_gym.create_dataset("spiral_matrix", seed=0, size=1)
    data_set.score_answer(code, data_set[0])
    assert mark.exists()


def test_a_broken_reference_is_an_error_and_no_wrong_answer(pool: VerifierPool) -> None:
    good = json.loads(reference("leg_counting"))
    broken = [
        "12",
        "{}",
        json.dumps({**good, "entry": {"question": "?"}}),
        json.dumps({**good, "data_set": "no_such_set"}),
    ]
    verdicts = pool([("<answer>1</answer>", ref) for ref in broken])
    assert {v.status for v in verdicts} == {Status.ERROR}


def test_the_scorer_is_loaded_in_the_workers_only_when_it_is_needed() -> None:
    pytest.importorskip("reasoning_gym")
    import subprocess

    code = (
        "import sys; from grpo_cli.recipe.locate import verifiers_dir; "
        "from grpo_cli.verify.load import load_verifier; "
        "load_verifier('reasoning_gym', verifiers_dir()); print('reasoning_gym' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
