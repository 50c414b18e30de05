"""Functions written for other libraries: how they are called, and what their answers mean."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.types import Status
from grpo_cli.verify.load import LoadedVerifier, load_verifier
from grpo_cli.verify.pool import VerifierPool

NOWHERE = Path("nowhere")


def load(
    folder: Path, code: str, how: str = "trl", function: str = "fn", **options: str
) -> LoadedVerifier:
    """The function `fn` in a file with this code."""
    file = folder / "reward.py"
    file.write_text(code)
    prefix = f"{how}:" if how else ""
    return load_verifier(f"{prefix}{file}:{function}", NOWHERE, options)


def score(verifier: LoadedVerifier, text: str, reference: str) -> float | str | None:
    """The score, or the detail of a missing verdict."""
    verdict = verifier(text, reference)
    assert math.isnan(verdict.score) == verdict.missing
    return verdict.detail if verdict.missing else verdict.score


TEXT = (
    "def fn(completions, solution, **kw):\n"
    "    return [float(c == s) for c, s in zip(completions, solution)]\n"
)
CHAT = (
    "def fn(completions, answer, **kw):\n"
    "    return [float(c[0]['content'] == a) for c, a in zip(completions, answer)]\n"
)


@pytest.mark.parametrize(("code", "style"), [(TEXT, "strings"), (CHAT, "chat lists")])
def test_trl_convention_is_guessed_and_said(tmp_path: Path, code: str, style: str) -> None:
    verifier = load(tmp_path, code)
    assert (score(verifier, "16", "16"), score(verifier, "17", "16")) == (1.0, 0.0)
    assert f"completions as {style}" in verifier.convention
    # Decided once: a worker does not guess again.
    assert verifier.source.options["completions"] == ("chat" if "chat" in style else "text")
    with VerifierPool(verifier.source, workers=1) as pool:
        assert [v.score for v in pool([("16", "16"), ("17", "16")])] == [1.0, 0.0]


def test_a_function_that_takes_both_gets_strings(tmp_path: Path) -> None:
    # `in` works on a list too, and would silently say no to every chat list.
    verifier = load(
        tmp_path, "def fn(completions, **kw): return [float('16' in c) for c in completions]"
    )
    assert score(verifier, "so 16", "16") == 1.0
    chat = load(tmp_path, CHAT, completions="chat")
    assert "as the option says" in chat.convention
    assert score(chat, "16", "16") == 1.0


def test_trl_gets_every_argument_of_the_library(tmp_path: Path) -> None:
    code = (
        "def fn(prompts, completions, completion_ids, trainer_state, log_metric, log_extra,\n"
        "       solution, answer, ground_truth, reference, target, label):\n"
        "    log_metric('x', 1.0)\n"
        "    gold = {solution[0], answer[0], ground_truth[0], reference[0], target[0], label[0]}\n"
        "    one = len(prompts) == len(completion_ids) == 1\n"
        "    return [float(gold == {completions[0]} and one)]\n"
    )
    assert score(load(tmp_path, code), "16", "16") == 1.0
    async_code = "async def fn(completions, answer): return [float(completions == answer)]"
    assert score(load(tmp_path, async_code), "16", "16") == 1.0


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("return [None]", "returned None"),
        ("return [1.0, 1.0]", "reward:fn returned 2 scores for 1 completion"),
        ("return []", "reward:fn returned 0 scores for 1 completion"),
        ("return 1.0", "returned float, not a list"),
        ("return '1'", "returned str, not a list"),
        ("return [2.0]", "score 2, outside 0..1"),
        ("return [-1.0]", "score -1, outside 0..1 (option range: -1..1 maps it)"),
        ("return [float('nan')]", "outside 0..1"),
        ("return ['right']", "returned str, not a number"),
        ("raise RuntimeError('service down')", "service down"),
    ],
)
def test_what_is_no_score_is_missing_and_never_a_zero(
    tmp_path: Path, body: str, detail: str
) -> None:
    verifier = load(tmp_path, f"def fn(completions, **columns):\n    {body}\n")
    assert detail in str(score(verifier, "16", "16"))


def test_numbers_of_other_types(tmp_path: Path) -> None:
    for value, wanted in (
        ("True", 1.0),
        ("0", 0.0),
        ("__import__('fractions').Fraction(1, 2)", 0.5),
    ):
        verifier = load(tmp_path, f"def fn(completions, **kw): return [{value}]")
        assert score(verifier, "", "") == wanted
    array = "import numpy\ndef fn(completions, **kw): return numpy.ones(1, numpy.float32)"
    assert score(load(tmp_path, array), "", "") == 1.0


@pytest.mark.parametrize("how", ["trl", "verl"])
def test_the_range_minus_one_to_one_is_mapped_when_asked(tmp_path: Path, how: str) -> None:
    code = "def fn(**kw): return [-1.0]" if how == "trl" else "def fn(**kw): return -1.0"
    assert "outside" in str(score(load(tmp_path, code, how), "", ""))
    mapped = load(tmp_path, code, how, range="-1..1")
    assert score(mapped, "", "") == 0.0


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("1.0", 1.0),
        ("True", 1.0),
        ("{'score': 0.5, 'acc': True}", 0.5),
        ("(1.0, 'why')", 1.0),
        ("{'acc': 1}", "ValueError: reward:fn returned a dict without 'score'"),
        ("None", "ValueError: reward:fn returned None: it has no score for this completion"),
    ],
)
def test_verl(tmp_path: Path, value: str, wanted: float | str) -> None:
    code = (
        "def fn(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert (data_source, solution_str, ground_truth) == ('gsm8k', 'a', 'b')\n"
        f"    return {value}\n"
    )
    verifier = load(tmp_path, code, "verl", data_source="gsm8k")
    assert score(verifier, "a", "b") == wanted
    assert (
        verifier.convention
        == "verl: reward:fn(data_source, solution_str, ground_truth, extra_info)"
    )


def test_verl_module_functions_have_fewer_arguments(tmp_path: Path) -> None:
    code = (
        "def fn(solution_str, ground_truth, method='strict'): return solution_str == ground_truth"
    )
    assert score(load(tmp_path, code, "verl"), "a", "a") == 1.0


@pytest.mark.parametrize("how", ["trl", "verl"])
def test_an_argument_that_nobody_can_give_is_refused_at_once(tmp_path: Path, how: str) -> None:
    with pytest.raises(GrpoError, match=r"GR205.*requires .*`unit_tests`") as caught:
        load(tmp_path, "def fn(completions, unit_tests): return [1.0]", how)
    assert "wrap it" in (caught.value.problems[0].hint or "")


def test_own_function_from_a_file(tmp_path: Path) -> None:
    verdicts = "from grpo_cli.types import *\ndef verify(t, r): return Verdict(1.0, Status.OK)\n"
    (tmp_path / "mine.py").write_text(verdicts)
    verifier = load_verifier(str(tmp_path / "mine.py"), NOWHERE)
    assert verifier.name == "mine:verify"
    assert score(verifier, "", "") == 1.0
    number = load(tmp_path, "def check(text, reference): return text == reference", "", "check")
    assert (score(number, "a", "a"), score(number, "a", "b")) == (1.0, 0.0)
    other = load(tmp_path, "def check(text, reference): return None", "", "check")
    assert score(other, "a", "a") == "TypeError: returned NoneType, neither a Verdict nor a number"
    outside = load(tmp_path, "def check(text, reference): return 7", "", "check")
    assert "outside 0..1" in str(score(outside, "a", "a"))


def test_dotted_module_and_neighbours_are_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rewards_pkg").mkdir()
    (tmp_path / "rewards_pkg" / "__init__.py").write_text("")
    (tmp_path / "rewards_pkg" / "maths.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    dotted = load_verifier("trl:rewards_pkg.maths:fn", NOWHERE)
    assert score(dotted, "16", "16") == 1.0
    with VerifierPool(dotted.source, workers=1) as pool:
        assert pool([("16", "16")])[0].score == 1.0
    (tmp_path / "beside_reward.py").write_text("WANTED = '16'\n")
    code = "from beside_reward import WANTED\ndef check(text, reference): return text == WANTED"
    verifier = load(tmp_path, code, "", "check")
    with VerifierPool(verifier.source, workers=1) as pool:
        assert pool([("16", "")])[0].score == 1.0


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("trl:reward.py", "no function in 'reward.py'"),
        ("trl:nofile.py:fn", "no file 'nofile.py'"),
        ("verl:no_such_module_x:fn", "cannot be imported: ModuleNotFoundError"),
        ("nofile.py", "no file 'nofile.py'"),
        ("nofile.py:check", "no file 'nofile.py'"),
    ],
)
def test_what_cannot_be_found_is_one_clear_error(typed: str, message: str) -> None:
    with pytest.raises(GrpoError, match="GR205") as caught:
        load_verifier(typed, NOWHERE)
    assert message in str(caught.value)


def test_a_misspelt_function_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(GrpoError, match=r"GR205.*no function 'acuracy'") as caught:
        load(tmp_path, "def accuracy(completions): return [1.0]", "trl", "acuracy")
    assert caught.value.problems[0].hint == "did you mean 'accuracy'?"


def test_status_is_ok_for_every_score(tmp_path: Path) -> None:
    assert load(tmp_path, TEXT)("no answer at all", "16").status is Status.OK
