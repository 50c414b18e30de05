"""One suite over every folder of `verifiers/`: what any verifier must do, whatever it verifies.

A new folder is picked up without an edit here.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_cli.types import Status, Verdict
from grpo_cli.verify.load import LoadedVerifier, load_verifier

ROOT = Path(__file__).parents[2]
VERIFIERS = ROOT / "verifiers"
NEEDS = {"reasoning_gym": "reasoning_gym"}
"""Verifier -> the optional package without which it cannot be loaded."""
NAMES = sorted(
    path.parent.name
    for path in VERIFIERS.glob("*/verifier.py")
    if find_spec(NEEDS.get(path.parent.name, "json")) is not None
)
FIELDS = {"text", "reference", "label", "kind", "note"}
OPTIONAL = {"options", "policy", "id"}

# The tail of a question that a text verifier must not pay for; it holds no answer.
PROMPT = (
    "Solve the problem. Put the final answer behind the marker, in the box or in the tags that the "
    "instructions name, and nothing else.\nQuestion: how many are there?\nAnswer:"
)
DEGENERATE = {
    "empty": "",
    "white space": " \n\t  \r\n",
    "prompt echo": PROMPT,
    "numbers in a row": " ".join(map(str, range(101))),
    "numbers with commas": ", ".join(map(str, range(101))),
    "one number a line": "\n".join(map(str, range(101))),
    "every number marked": "\n".join(f"#### {n}" for n in range(101)),
    "every number in a box": " ".join(rf"\boxed{{{n}}}" for n in range(101)),
    "numbers in one box": r"\boxed{" + ", ".join(map(str, range(101))) + "}",
    "every number in a sentence": " ".join(f"The answer is {n}." for n in range(101)),
    "letters in a row": "A B C D E F G H I J",
    "letters joined": "ABCDEFGHIJ",
    "one letter a line": "\n".join("ABCDEFGHIJ"),
    "letters with or": "The answer is A or B or C or D or E.",
    "letters in brackets": "(A) (B) (C) (D) (E)",
    "every letter in a box": " ".join(rf"\boxed{{{letter}}}" for letter in "ABCDE"),
    "shells": "<think></think><answer></answer> \\boxed{} #### ",
    "a refusal": "I cannot answer this question.",
}
HOSTILE = [
    *("1", "9,", "1,111,", "1.", "1 ", "1=", "9^", "$1", "- ", "=", "/", "$", "'", "\uff11"),
    *("(", "((((1", "[", "{", "}", "^{", "<<", "*", "**", "\\", "\\frac{", "\\frac{1}{"),
    *("#", "####", "#### 1\n", "\\boxed{", "<think>", "<answer>", "</answer>", "A:\n"),
    *("the answer is ", "the answer is 1. ", "\nQuestion: ", "B ", "(B) ", "or ", "not "),
    *("\n", " ", "\u3000"),
]
HOSTILE_CHARS = 200_000
HOSTILE_LIMIT_S = 5.0  # a linear scan takes well under one; a quadratic one takes minutes


@cache
def _cases(name: str) -> list[dict]:
    path = VERIFIERS / name / "cases.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


@cache
def _load(name: str, options: str = "{}") -> LoadedVerifier:
    return load_verifier(name, VERIFIERS, json.loads(options))


def _verify(name: str, case: dict) -> Verdict:
    return _load(name, json.dumps(case.get("options", {}), sort_keys=True))(
        case["text"], case["reference"]
    )


def _key(verdict: Verdict) -> tuple[str, str, str | None, str | None]:
    return (repr(verdict.score), verdict.status.value, verdict.parsed, verdict.detail)


def _light(name: str) -> list[dict]:
    """The cases that are run several times over: all, or a sample where each starts a process."""
    cases = _cases(name)
    return cases if _load(name).kind != "code" else cases[:: max(1, len(cases) // 8)]


def _is_text(name: str) -> bool:
    return _load(name).kind != "code"


@pytest.mark.parametrize("name", NAMES)
def test_the_cases_are_well_formed(name: str) -> None:
    cases = _cases(name)
    assert len(cases) >= 40, f"{name} has only {len(cases)} labelled cases"
    for case in cases:
        assert set(case) >= FIELDS, case
        assert set(case) <= FIELDS | OPTIONAL, case
        assert isinstance(case["label"], bool), case
        assert case["kind"], case
        assert case["note"], case
    labels = Counter(case["label"] for case in cases)
    assert min(labels[True], labels[False]) >= 10, f"{name}: {dict(labels)}"
    keys = {(c["text"], c["reference"], json.dumps(c.get("options", {}))) for c in cases}
    assert len(keys) == len(cases), f"{name} has the same case twice"


@pytest.mark.parametrize("name", NAMES)
def test_every_case_gets_its_label(name: str) -> None:
    wrong, policy = [], []
    for case in _cases(name):
        verdict = _verify(name, case)
        assert not verdict.missing, f"{case['note']}: {verdict.status} {verdict.detail}"
        if (verdict.score >= 0.5) != case["label"]:
            (policy if case.get("policy") else wrong).append(
                f"{case['kind']}: {case['note']}: {case['text'][-60:]!r} -> {verdict}"
            )
    if policy:
        sys.stdout.write(f"{name}, policy questions graded the other way: {policy}\n")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_the_stated_reference_is_accepted(name: str) -> None:
    verifier = _load(name)
    assert verifier.answer is not None, f"{name} has no answer(reference)"
    references = sorted({c["reference"] for c in _light(name) if not c.get("options")})
    stated = []
    for reference in references:
        try:
            stated.append((verifier.answer(reference), reference))
        except ValueError:
            # Tests alone do not determine a program; any other reference states its answer.
            assert verifier.kind == "code", f"{name} cannot state its reference {reference!r}"
    assert stated, f"{name} states none of its references"
    for text, reference in stated:
        verdict = verifier(text, reference)
        assert verdict.score == 1.0, f"{name} rejects its own reference {reference!r}: {verdict}"


@pytest.mark.parametrize("name", NAMES)
def test_no_text_has_no_answer(name: str) -> None:
    for reference in sorted({c["reference"] for c in _cases(name)})[:20]:
        for text in ("", "  \n"):
            verdict = _load(name)(text, reference)
            assert verdict.status is Status.UNPARSED, f"{name}: {verdict}"
            assert verdict.score == 0.0


@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("name", [n for n in NAMES if _is_text(n)])
def test_a_policy_that_knows_nothing_is_not_paid(name: str, kind: str) -> None:
    for reference in sorted({c["reference"] for c in _cases(name)}):
        verdict = _load(name)(DEGENERATE[kind], reference)
        assert verdict.score == 0.0, f"{name} pays {kind} for {reference!r}: {verdict}"


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_do_not_depend_on_order_or_threads(name: str) -> None:
    cases = _light(name)
    alone = [_key(_verify(name, case)) for case in cases]
    order = list(range(len(cases)))
    random.Random(7).shuffle(order)
    assert [_key(_verify(name, cases[i])) for i in order] == [alone[i] for i in order]
    with ThreadPoolExecutor(4) as pool:
        verdicts = pool.map(lambda case: _verify(name, case), cases)
        assert [_key(verdict) for verdict in verdicts] == alone


_SUBPROCESS = """
import json, sys
from pathlib import Path
from grpo_cli.verify.load import load_verifier
folder, name = Path(sys.argv[1]), sys.argv[2]
loaded = {}
for case in json.loads(sys.stdin.read()):
    options = case.get("options", {})
    verifier = loaded.setdefault(str(options), None) or load_verifier(name, folder, options)
    loaded[str(options)] = verifier
    v = verifier(case["text"], case["reference"])
    print(json.dumps([repr(v.score), v.status.value, v.parsed, v.detail]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_do_not_depend_on_the_hash_seed(name: str) -> None:
    outputs = []
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", _SUBPROCESS, str(VERIFIERS), name],
            input=json.dumps(_light(name)),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    here = [list(_key(_verify(name, case))) for case in _light(name)]
    assert [json.loads(line) for line in outputs[0].splitlines()] == here


@pytest.mark.parametrize("prefix", ["", "The answer is ", "#### ", "\\boxed{", "<answer>"])
@pytest.mark.parametrize("name", [n for n in NAMES if _is_text(n)])
def test_hostile_text_takes_linear_time(name: str, prefix: str) -> None:
    reference = next(c["reference"] for c in _cases(name) if c["label"])
    for unit in HOSTILE:
        text = prefix + (unit * (HOSTILE_CHARS // len(unit) + 1))[:HOSTILE_CHARS]
        begun = time.process_time()
        _load(name)(text, reference)
        spent_s = time.process_time() - begun
        assert spent_s < HOSTILE_LIMIT_S, f"{name}: {spent_s:.0f} s on {prefix!r} and {unit!r}"


@pytest.mark.parametrize("name", NAMES)
def test_loading_pulls_in_nothing_heavy(name: str) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from grpo_cli.verify.load import load_verifier\n"
        "before = set(sys.modules); begun = time.process_time()\n"
        f"load_verifier({name!r}, Path({str(VERIFIERS)!r}))\n"
        "spent = time.process_time() - begun\n"
        "print(spent); print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    spent, modules = done.stdout.splitlines()
    heavy = {"torch", "transformers", "sympy", "math_verify", "scipy", "vllm", "mlflow"}
    assert not heavy & set(modules.split()), f"{name} imports {heavy & set(modules.split())}"
    assert float(spent) < 2.0, f"{name} takes {spent} s of processor time to load"
