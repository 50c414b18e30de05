r"""What a data set of `reasoning-gym` says of an answer, by its own `score_answer`.

The reference is JSON, as the task `reasoning_gym` writes it: `{"data_set": name, "options": its
configuration, "entry": question, answer and metadata}`. In `entry`, `{"$tuple": [...]}` is a tuple,
`{"$fraction": [3, 4]}` a fraction and `{"$dict": [[key, value], ...]}` a mapping whose keys are not
all text.

The answer is the content of the last `<answer>...</answer>`, without spaces around it; else of the
last complete `\boxed{}` with balanced braces; else what stands after the last `####`. Only what
follows the last `</think>` counts.

UNPARSED with score 0: no such answer or an empty one, and an answer on which the data set's scorer
fails though it can score its own gold.

Many of the package's scorers give a little for a wrong answer, and the plain one gives
len(gold)/len(answer) to an answer that holds the gold: 0.75 for 1350 where 350 is right. So a score
below 1 is a 0 here; `partial=on` keeps the package's.

The scorers of `EVALUATED` and `PARSED` run an answer as Python. Here such an answer must be made of
numbers, text, lists, names, operators and (PARSED) calls of elementary functions; another is
UNPARSED, whatever it would have scored.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from grpo_cli.types import Status, Verdict

if importlib.util.find_spec("reasoning_gym") is None:  # importing it takes a second
    raise ImportError(
        "the package reasoning-gym is not installed: pip install 'grpo-cli[reasoning-gym]'"
    )

KIND = "format"  # answers are of any form: the audit must make no other spellings of a gold
OPTIONS = {"partial": ("off", "on")}

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Data sets that call `eval` on an answer."""
PARSED = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Data sets that call sympy's `parse_expr` on it, which ends in `eval`."""

_HASHES, _BOX, _CLOSED = "####", "\\boxed{", "</think>"
_BRACE = re.compile(r"\\boxed\{|\\[{}\\]|[{}]")
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name,
    ast.Load, ast.List, ast.Tuple,
)  # fmt: skip
_CALLED = frozenset(
    (
        "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "exp", "log", "ln", "sqrt", "abs", "Abs",
    )
)  # fmt: skip


def verify(text: str, reference: str, *, partial: str = "off") -> Verdict:
    """1.0 when the data set's scorer gives the answer in `text` all; `partial="on"`: its own score.

    Raises ValueError when `reference` is not the task's JSON or the option has an unknown value.
    """
    if partial not in OPTIONS["partial"]:
        raise ValueError(f"no option partial={partial!r}")
    import reasoning_gym  # noqa: F401  # first, so that a worker's trial call pays for it

    data_set, options, entry = _read(reference)
    answer = _extract(text)
    if not answer:
        return Verdict(score=0.0, status=Status.UNPARSED, detail="no answer")
    if (problem := _refusal(data_set, answer)) is not None:
        return Verdict(score=0.0, status=Status.UNPARSED, detail=problem)
    scorer = _scorer(data_set, json.dumps(options, sort_keys=True))
    try:
        score = float(scorer.score_answer(answer, entry))
    except Exception as failure:
        entry = _read(reference)[2]
        if isinstance(entry["answer"], str):
            scorer.score_answer(entry["answer"], entry)  # fails too when the entry is at fault
        detail = f"the scorer cannot read it: {type(failure).__name__}: {failure}"[:200]
        return Verdict(score=0.0, status=Status.UNPARSED, detail=detail)
    if partial == "off" and score < 1:
        score = 0.0
    return Verdict(score=score, status=Status.OK, parsed=answer[:200])


def answer(reference: str) -> str:
    """The gold between answer tags; raises ValueError when the data set states none."""
    gold = _read(reference)[2]["answer"]
    if not isinstance(gold, str):
        raise ValueError("the data set states no gold, it only scores answers")
    return f"<answer>{gold}</answer>"


def _read(reference: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Data set, options and entry."""
    try:
        fields = json.loads(reference, object_hook=_restored)
    except (TypeError, RecursionError) as problem:
        raise ValueError(f"the reference is not JSON: {problem}") from None
    if not isinstance(fields, dict) or not {"data_set", "options", "entry"} <= fields.keys():
        raise ValueError("the reference is not {'data_set': ..., 'options': ..., 'entry': ...}")
    entry = fields["entry"]
    if not isinstance(entry, dict) or not {"question", "answer", "metadata"} <= entry.keys():
        raise ValueError("the reference's entry needs question, answer and metadata")
    return fields["data_set"], fields["options"], entry


def _restored(value: dict[str, Any]) -> Any:
    if value.keys() == {"$tuple"}:
        return tuple(value["$tuple"])
    if value.keys() == {"$fraction"}:
        return Fraction(*value["$fraction"])
    if value.keys() == {"$dict"}:
        return dict(value["$dict"])
    return value


@lru_cache(maxsize=64)
def _scorer(data_set: str, options: str) -> Any:
    """The data set, for its scorer: seed and size make no difference to that."""
    import reasoning_gym

    return reasoning_gym.create_dataset(data_set, seed=0, size=1, **json.loads(options))


def _extract(text: str) -> str | None:
    text = text.rpartition(_CLOSED)[2]
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if start >= 0:
        return text[start + len("<answer>") : end].strip()
    if (content := _last_box(text)) is not None:
        return content.strip()
    _, found, rest = text.rpartition(_HASHES)
    return rest.strip() if found else None


def _last_box(text: str) -> str | None:
    """The content of the last box that is closed; one scan, whatever the nesting."""
    opened: list[tuple[int, bool]] = []  # where the content of each open brace begins; is it a box?
    content = None
    for brace in _BRACE.finditer(text):
        if brace[0] == _BOX or (brace[0] == "{" and opened):
            opened.append((brace.end(), brace[0] == _BOX))
        elif brace[0] == "}" and opened:
            begin, is_box = opened.pop()
            if is_box:
                content = text[begin : brace.start()]
    return content


def _refusal(data_set: str, answer: str) -> str | None:
    """Why the data set's scorer must not see `answer`, or None."""
    if data_set not in EVALUATED | PARSED:
        return None
    try:
        tree = ast.parse(answer, mode="eval")
        nodes = list(ast.walk(tree))
    except SyntaxError:
        # `eval` fails on it likewise. `parse_expr` has a syntax of its own on top of Python's.
        return None if data_set in EVALUATED else "not an expression"
    except (ValueError, RecursionError, MemoryError) as problem:
        return f"not an expression: {problem}"[:200]
    for node in nodes:
        called = (
            isinstance(node, ast.Call)
            and data_set in PARSED
            and isinstance(node.func, ast.Name)
            and node.func.id in _CALLED
            and not node.keywords
        )
        text_to_parse = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        if not (called or isinstance(node, _NODES)) or (text_to_parse and data_set in PARSED):
            return f"no plain expression: it holds a {type(node).__name__}"
    return None
