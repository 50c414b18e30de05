"""Other libraries' reward functions as verifiers. Must not import torch.

TRL: `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, everything by
keyword (huggingface/trl, "Using a custom reward function"). It is called with one completion at a
time, so that a failure costs one sample; a function that compares the completions of a batch with
each other cannot be used so. The reference stands in the columns of GOLD_COLUMNS. The prompt is not
known to a verifier: `prompts` holds an empty one.

verl: `compute_score(data_source, solution_str, ground_truth, extra_info)`, by keyword; it returns a
number, a dict with `score`, or a sequence whose first entry is the score (verl-project/verl, reward
managers).

A score must lie in 0..1. One outside is an error and is never clipped: a clipped score would hide
that a function pays for something else than being right. The option `range: -1..1` maps a function
that pays from -1 to 1 to (score + 1) / 2.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_cli.errors import error
from grpo_cli.types import Status, Verdict

GOLD_COLUMNS = ("solution", "answer", "ground_truth", "reference", "target", "label")
"""Columns of a TRL function that all hold the reference."""
TRL_OPTIONS = {"completions": ("auto", "text", "chat"), "range": ("0..1", "-1..1")}
"""`completions`: plain strings, or chat lists `[{"role": "assistant", "content": ...}]`."""
VERL_OPTIONS: dict[str, tuple[str, ...]] = {"data_source": (), "range": ("0..1", "-1..1")}
"""`data_source` is passed on as it is; any text."""

_TRL_NAMES = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra",
              "log_metric", *GOLD_COLUMNS)  # fmt: skip
_VERL_NAMES = ("data_source", "solution_str", "ground_truth", "extra_info")
_SHAPE_ERRORS = (TypeError, IndexError, KeyError, AttributeError)
"""What code raises that gets a string for a list of messages, or the other way round."""

Verify = Callable[[str, str], Verdict]


def from_number(function: Callable[[str, str], object]) -> Verify:
    """A function that returns a Verdict, or a plain number that is taken as its score."""

    def verify(text: str, reference: str) -> Verdict:
        found = function(text, reference)
        if isinstance(found, Verdict):
            return found
        if isinstance(found, bool | int | float):
            return Verdict(float(found), Status.OK)
        raise TypeError(f"returned {type(found).__name__}, neither a Verdict nor a number")

    return verify


def from_trl(
    function: Callable[..., Any], name: str, options: Mapping[str, str]
) -> tuple[Verify, dict[str, str], str]:
    """A TRL reward function as a verifier, its options with `auto` decided, and how it is called.

    `auto` calls it once with a string. A function written for chat lists fails on that, and is then
    called with a chat list; the other way round it might answer, wrongly and in silence.

    Raises:
        GrpoError: GR205 when it requires an argument that a verifier does not have.
    """
    names = _accepted(function, name, _TRL_NAMES)

    def call(text: str, reference: str, style: str) -> object:
        chat = style == "chat"
        values: dict[str, object] = {
            "prompts": [[{"role": "user", "content": ""}] if chat else ""],
            "completions": [[{"role": "assistant", "content": text}] if chat else text],
            "completion_ids": [[]],
            "trainer_state": None,
            "log_extra": lambda *args, **kwargs: None,
            "log_metric": lambda *args, **kwargs: None,
            **{column: [reference] for column in GOLD_COLUMNS},
        }
        found = function(**{key: values[key] for key in names})
        if inspect.iscoroutine(found):
            import asyncio  # only here: it would double the start of a worker

            return asyncio.run(found)
        return found

    style, how = options["completions"], "as the option says"
    if style == "auto":
        style, how = _guess(call)

    def verify(text: str, reference: str) -> Verdict:
        scores = call(text, reference, style)
        if isinstance(scores, str) or not hasattr(scores, "__len__"):
            raise TypeError(f"{name} returned {type(scores).__name__}, not a list of scores")
        assert isinstance(scores, Sequence) or hasattr(scores, "__getitem__")
        if len(scores) != 1:
            raise ValueError(f"{name} returned {len(scores)} scores for 1 completion")
        if scores[0] is None:
            raise ValueError(f"{name} returned None: it has no score for this completion")
        return _scored(scores[0], name, options)

    shown = "chat lists" if style == "chat" else "strings"
    arguments = ", ".join(names)
    return (
        verify,
        {**options, "completions": style},
        f"TRL: {name}({arguments}), completions as {shown} ({how})",
    )


def from_verl(
    function: Callable[..., Any], name: str, options: Mapping[str, str]
) -> tuple[Verify, str]:
    """A verl `compute_score` as a verifier, and how it is called.

    Raises:
        GrpoError: GR205 when it requires an argument that a verifier does not have.
    """
    names = _accepted(function, name, _VERL_NAMES)

    def verify(text: str, reference: str) -> Verdict:
        values: dict[str, object] = {
            "data_source": options["data_source"],
            "solution_str": text,
            "ground_truth": reference,
            "extra_info": {},
        }
        found = function(**{key: values[key] for key in names})
        if isinstance(found, Mapping):
            if "score" not in found:
                raise ValueError(f"{name} returned a dict without 'score'")
            found = found["score"]
        elif isinstance(found, tuple | list):
            found = found[0]
        if found is None:
            raise ValueError(f"{name} returned None: it has no score for this completion")
        return _scored(found, name, options)

    return verify, f"verl: {name}({', '.join(names)})"


def _guess(call: Callable[[str, str, str], object]) -> tuple[str, str]:
    """Whether a TRL function wants strings or chat lists, and how sure that is."""
    try:
        call("1", "1", "text")
    except _SHAPE_ERRORS as problem:
        first = problem
    except Exception as problem:
        # Not about the shape: each sample will report it.
        return "text", f"a guess: it raised {type(problem).__name__} on strings"
    else:
        return "text", "it accepts them"
    try:
        call("1", "1", "chat")
    except Exception as problem:
        kinds = f"{type(first).__name__} on strings and {type(problem).__name__} on chat lists"
        return "text", f"a guess: it raised {kinds}"
    return "chat", f"it raised {type(first).__name__} on strings"


def _accepted(function: Callable[..., Any], name: str, offered: Sequence[str]) -> list[str]:
    """The offered arguments that a function takes.

    Raises:
        GrpoError: GR205.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables have no signature
        return list(offered)
    P = inspect.Parameter
    named = [p for p in parameters if p.kind in (P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY)]
    missing = [p.name for p in named if p.default is P.empty and p.name not in offered]
    missing += [p.name for p in parameters if p.kind is P.POSITIONAL_ONLY and p.default is P.empty]
    if missing:
        raise error(
            "GR205",
            f"{name} requires {', '.join(f'`{m}`' for m in missing)}, which a verifier cannot give",
            hint=f"it may ask for {', '.join(offered)}; wrap it in a function of your own",
        )
    if any(p.kind is P.VAR_KEYWORD for p in parameters):
        return list(offered)
    return [p.name for p in named if p.name in offered]


def _scored(value: Any, name: str, options: Mapping[str, str]) -> Verdict:
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} returned {type(value).__name__}, not a number") from None
    low, high = (-1.0, 1.0) if options["range"] == "-1..1" else (0.0, 1.0)
    if not low <= score <= high:
        hint = "" if low < 0 or not -1 <= score <= 1 else " (option range: -1..1 maps it)"
        raise ValueError(f"{name} returned the score {score:g}, outside {low:g}..{high:g}{hint}")
    return Verdict((score - low) / (high - low), Status.OK)
