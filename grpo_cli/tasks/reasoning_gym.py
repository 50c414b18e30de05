"""The procedural data sets of `reasoning-gym` (arXiv:2505.24760) as a task.

A question is made from a seed and an index, so nothing is downloaded and there are as many as one
likes. Held-out questions come from a seed of their own; a training question whose text is also held
out is drawn again. Importing the package takes a second, so it happens inside functions. Must not
import torch.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import fields
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from grpo_cli.errors import error
from grpo_cli.recipe.problems import did_you_mean
from grpo_cli.recipe.task_schema import ReasoningGymTask
from grpo_cli.seeds import seed63
from grpo_cli.tasks.wording import content_key, turns
from grpo_cli.types import Prompt

HASH_DEPENDENT = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Data sets (of 0.1.25) that walk over sets of texts: their questions follow PYTHONHASHSEED."""
_EXCLUDED = {
    "codeio": "its programs read clocks and draw at random, so no run could be repeated",
    "composite": "a mixture takes lists of data sets, which task.options cannot hold",
}
_MAX_DRAWS = 50
"""Draws for one question before its data set counts as too small."""


def data_set_names() -> tuple[str, ...]:
    """The data sets that `task.name` can be, sorted.

    Raises:
        GrpoError: GR205 when the package is not installed.
    """
    return tuple(sorted(set(_registered()) - _EXCLUDED.keys()))


def gym_fingerprint(settings: ReasoningGymTask) -> str:
    """Package version and data set: with the settings they decide every question.

    Raises:
        GrpoError: GR205 when the package is not installed.
    """
    from importlib.metadata import version

    _registered()
    return f"reasoning-gym {version('reasoning-gym')} {settings.name}"


class ReasoningGym:
    """One data set, its training and its held-out questions, apart by their text.

    Training questions are drawn with replacement: a data set of few questions repeats them.
    """

    def __init__(self, settings: ReasoningGymTask) -> None:
        """Makes no question yet.

        Raises:
            GrpoError: GR205 when the package is missing, for an unknown data set or option, and for
                a value that the data set refuses.
        """
        self.size = settings.size
        self._settings = settings
        _check(settings)
        self._make = lru_cache(maxsize=None)(self._data_set)
        self._make("train", 0)

    def train(self, index: int) -> Prompt:
        """The training prompt at `index`, 0 <= index < size. Raises IndexError outside.

        Raises:
            GrpoError: GR205 when every draw for it is a held-out question.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"train index {index} is not in 0..{self.size - 1}")
        for draw in range(_MAX_DRAWS):
            entry = self._entry("train", draw, index)
            if content_key(entry["question"]) not in self._held_out:
                return self._prompt(entry)
        raise error(
            "GR205",
            f"{self._settings.name} has too few distinct questions: {_MAX_DRAWS} draws for training"
            f" question {index} were all held out",
            hint="lower task.held_out_size, or widen task.options",
        )

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        """The first `n` held-out prompts, distinct by text.

        Raises:
            GrpoError: GR205 when more are asked for than are held out.
        """
        if n > self._settings.held_out_size:
            raise error(
                "GR205",
                f"the reasoning_gym task holds {self._settings.held_out_size} questions out, {n} "
                "were asked for",
                hint=f"--set task.held_out_size={n}, or ask for fewer",
            )
        return tuple(self._prompt(entry) for entry in list(self._held_out.values())[:n])

    @cached_property
    def _held_out(self) -> dict[str, dict[str, Any]]:
        """Content key -> entry."""
        wanted = self._settings.held_out_size
        found: dict[str, dict[str, Any]] = {}
        for index in range(wanted):
            for draw in range(_MAX_DRAWS):
                entry = self._entry("held_out", draw, index)
                if found.setdefault(content_key(entry["question"]), entry) is entry:
                    break
            else:
                raise error(
                    "GR205",
                    f"{self._settings.name} has too few distinct questions: {_MAX_DRAWS} draws "
                    f"brought none beyond the {len(found)} held out, of {wanted}",
                    hint="lower task.held_out_size, or widen task.options",
                )
        return found

    def _data_set(self, split: str, draw: int) -> Any:
        """The data set of one seed. Item i of seed s is often item i-1 of s+1: seeds are hashed."""
        settings = self._settings
        seed = seed63("reasoning_gym", settings.seed, split, draw) % 2**31
        size = settings.size if split == "train" else settings.held_out_size
        maker, config = _registered()[settings.name]
        try:
            with redirect_stdout(sys.stderr):
                chosen = config(**settings.options, seed=seed, size=size)
                if hasattr(chosen, "validate"):
                    chosen.validate()
                return maker(config=chosen)
        except Exception as problem:
            raise error(
                "GR205",
                f"the data set {settings.name} refuses task.options {settings.options}: "
                f"{type(problem).__name__}: {problem}",
                hint=f"its options: {', '.join(_options(settings.name))}",
            ) from problem

    def _entry(self, split: str, draw: int, index: int) -> dict[str, Any]:
        with redirect_stdout(sys.stderr):  # some generators print, and stdout is for data
            entry: dict[str, Any] = self._make(split, draw)[index]
        return entry

    def _prompt(self, entry: dict[str, Any]) -> Prompt:
        settings = self._settings
        name = settings.name
        reference = {"data_set": name, "options": settings.options, "entry": _portable(entry)}
        return Prompt(
            id=content_key(f"{name}\n{entry['question']}")[:16],
            messages=turns(entry["question"], settings.asked, settings.system),
            reference=json.dumps(reference, ensure_ascii=False),
            task="reasoning_gym",
            meta={"data_set": name},
            self_check=settings.self_check_form,
        )


def _registered() -> dict[str, tuple[Any, Any]]:
    """Name -> data set class and configuration class."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as problem:
        raise error(
            "GR205",
            f"the reasoning_gym task needs the package reasoning-gym: {problem}",
            hint="pip install 'grpo-cli[reasoning-gym]'",
        ) from problem
    known: dict[str, tuple[Any, Any]] = DATASETS
    return known


def _options(name: str) -> list[str]:
    names = [field.name for field in fields(_registered()[name][1])]
    return [name for name in names if name not in ("seed", "size")]


def _check(settings: ReasoningGymTask) -> None:
    name, known = settings.name, data_set_names()
    if name in _EXCLUDED:
        raise error("GR205", f"the data set {name} cannot be a task: {_EXCLUDED[name]}")
    if name not in known:
        raise error(
            "GR205",
            f"reasoning-gym has no data set `{name}`",
            hint=did_you_mean(name, known) or f"data sets: {', '.join(known)}",
        )
    options = _options(name)
    for option in settings.options:
        if option not in options:
            raise error(
                "GR205",
                f"the data set {name} has no option `{option}` (task.options)",
                hint=did_you_mean(option, options) or f"its options: {', '.join(options)}",
            )
    if name in HASH_DEPENDENT and sys.flags.hash_randomization:
        raise error(
            "GR205",
            f"the questions of {name} change with Python's hash seed, so that a run could not be "
            "repeated or resumed",
            hint="set PYTHONHASHSEED=0 in the environment, for this and every later command",
        )


def _portable(value: Any) -> Any:
    """`value` for JSON, with the tuples and keys that JSON would lose spelled out.

    Raises:
        GrpoError: GR205 for a value that cannot travel to the scorer's process.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list):
        return [_portable(part) for part in value]
    if isinstance(value, tuple):
        return {"$tuple": [_portable(part) for part in value]}
    if isinstance(value, Fraction):
        return {"$fraction": [value.numerator, value.denominator]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _portable(part) for key, part in value.items()}
        return {"$dict": [[_portable(key), _portable(part)] for key, part in value.items()]}
    raise error("GR205", f"a {type(value).__name__} in an entry of the data set is no JSON")
