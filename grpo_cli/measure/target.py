"""What `grpo eval TARGET` names: a run, a checkpoint, an adapter or a base model."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from grpo_cli.errors import error
from grpo_cli.policy.source import SHIPPED, model_fingerprint
from grpo_cli.recipe.schema import Lora, Model
from grpo_cli.rundir import find_runs, read_info

ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_STEP = re.compile(r"step-(\d{6,})")
_FORMS = (
    "a target is a run (`grpo runs ls`), RUN@STEP, a checkpoint or adapter folder, a model folder, "
    "a hub id such as org/name, `tiny` or `tiny-judge`"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One policy to measure.

    Example:
        Subject(label="dapo/tiny/s0-51ab0c2f@60", kind="run", model=Model(id="tiny"),
                lora=Lora(), adapter=Path(".../step-000060/adapter"), run=Path(".../s0-51ab0c2f"),
                step=60, seed=0, tree={"task": {...}})
    """

    label: str
    kind: Literal["run", "adapter", "base"]
    model: Model
    lora: Lora = field(default_factory=Lora)
    adapter: Path | None = None
    """The folder in PEFT's format; None is the base model."""
    run: Path | None = None
    step: int | None = None
    seed: int = 0
    tree: Mapping[str, Any] | None = None
    """The run's recipe.json."""

    def base(self) -> Subject:
        """The model without its adapter."""
        label = Path(self.model.id).name
        return Subject(f"base {label}", "base", self.model, run=self.run, seed=self.seed)

    def fingerprint(self) -> dict[str, Any]:
        """What decides its answers: hashes of the model and of the adapter."""
        weights = None
        if self.adapter is not None:
            weights = [_sha256(self.adapter / name) for name in (WEIGHTS, ADAPTER_CONFIG)]
        return {
            "model": model_fingerprint(self.model),
            "thinking": self.model.thinking,
            "adapter": weights,
        }


def find_subject(text: str, runs_dir: Path, find_run: Callable[[str], Path]) -> Subject:
    """The policy that a person means by `text`.

    `find_run` finds a run by a part of its path. What is a folder wins over a run of that name, a
    run over a hub id.

    Raises:
        GrpoError: GR206 when `text` names nothing, or a run without that checkpoint; GR204 when
            a checkpoint is damaged; GR201 when an adapter is of a kind that cannot be loaded.
    """
    if not text.strip():
        raise error("GR206", "the target is empty", hint=_FORMS)
    if text in SHIPPED:
        return Subject(text, "base", Model(id=text))
    name, at, suffix = text.rpartition("@")
    step: int | None = None
    if at:
        if not suffix.isdigit():
            raise error("GR206", f"`{text}`: what follows the @ is not a step", hint="write RUN@40")
        text, step = name, int(suffix)
    path = Path(text).expanduser()
    if path.is_dir() and (found := _folder(path, step, runs_dir)):
        return found
    if path.is_file():
        raise error("GR206", f"`{text}` is a file", hint=_FORMS)
    runs = [run.relative_to(runs_dir).as_posix() for run in find_runs(runs_dir)]
    if any(text.strip("/") in run for run in runs):
        return _run(find_run(text), step, runs_dir)
    if path.is_dir():
        raise error("GR206", f"the folder `{text}` is no run, checkpoint, adapter or model: it has "
                    "no run.json, adapter_config.json or config.json", hint=_FORMS)  # fmt: skip
    if step is None and _HUB_ID.fullmatch(text):
        return Subject(text, "base", Model(id=text))
    close = difflib.get_close_matches(text, [*SHIPPED, *runs], n=1, cutoff=0.5)
    raise error(
        "GR206",
        f"`{text}` is no run in {runs_dir}, no folder" + (" here" if step else " and no hub id"),
        hint=f"did you mean `{close[0]}`?" if close else _FORMS,
    )


def _folder(path: Path, step: int | None, runs_dir: Path) -> Subject | None:
    """What a folder holds; None when it is nothing that can be measured."""
    if (path / "run.json").is_file():
        return _run(path, step, runs_dir)
    has_adapter = (path / ADAPTER_CONFIG).is_file()
    inner = path if has_adapter else path / "adapter"
    match = _STEP.fullmatch(inner.resolve().parent.name)
    kind = "adapter" if has_adapter or (inner / ADAPTER_CONFIG).is_file() else "model"
    if kind == "model" and not (path / "config.json").is_file():
        return None
    if step is not None:
        raise error("GR206", f"`{path}` is a {kind} folder, which has no steps", hint="drop the @")
    if kind == "model":
        return Subject(path.as_posix(), "base", Model(id=path.as_posix()))
    if match and (inner.resolve().parents[2] / "run.json").is_file():
        return _run(inner.resolve().parents[2], int(match[1]), runs_dir)
    model, lora = read_adapter(inner)
    return Subject(path.as_posix(), "adapter", model, lora, inner)


def _run(run: Path, step: int | None, runs_dir: Path) -> Subject:
    info = read_info(run)
    file = run / "recipe.json"
    try:
        tree = json.loads(file.read_bytes())
        if missing := {"task", "verifier", "sampling", "engine", "learner", "eval"} - set(tree):
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        model, lora = Model.model_validate(tree["model"]), Lora.model_validate_json(
            json.dumps(tree["lora"])
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error(
            "GR204", f"{file} cannot be read: {problem}", hint="bring it back from a copy"
        ) from None
    shown = run.as_posix()
    if run.resolve().is_relative_to(runs_dir.resolve()):
        shown = run.resolve().relative_to(runs_dir.resolve()).as_posix()
    steps = {
        int(m[1]): p for p in (run / "checkpoints").glob("step-*") if (m := _STEP.fullmatch(p.name))
    }
    if step is None and not steps:
        raise error(
            "GR206",
            f"the run {shown} has no checkpoint yet",
            hint=f"wait for one, or measure its base model: {shown}@0",
        )
    step = max(steps) if step is None else step
    label = f"{shown}@{step}"
    if step == 0 and 0 not in steps:
        return Subject(label, "run", model, lora, None, run, 0, info.seed, tree)
    if step not in steps:
        there = ", ".join(map(str, [0, *sorted(steps)]))
        raise error(
            "GR206",
            f"the run {shown} has no checkpoint of step {step}",
            hint=f"steps that are there: {there} (0 is the base model); checkpoint.keep says how "
            "many a run keeps",
        )
    _check_adapter(steps[step])
    return Subject(label, "run", model, lora, steps[step] / "adapter", run, step, info.seed, tree)


def _check_adapter(checkpoint: Path) -> None:
    """The adapter's files must be those of the checkpoint's manifest."""
    try:
        entries = json.loads((checkpoint / "manifest.json").read_bytes())["files"]
        want = {entry["name"]: entry["sha256"] for entry in entries}
        for name in (f"adapter/{WEIGHTS}", f"adapter/{ADAPTER_CONFIG}"):
            if _sha256(checkpoint / name) != want[name]:
                raise ValueError(f"{name} does not match its checksum")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error(
            "GR204",
            f"the checkpoint {checkpoint} is damaged: {problem}",
            hint="measure an earlier one with RUN@STEP",
        ) from None


def read_adapter(folder: Path) -> tuple[Model, Lora]:
    """Base model and shape of an adapter in PEFT's format.

    Raises:
        GrpoError: GR201 when it is no plain LoRA, names no base model or has no weights.
    """
    file = folder / ADAPTER_CONFIG
    try:
        config = json.loads(file.read_bytes())
        assert isinstance(config, dict)
    except (OSError, ValueError, AssertionError):
        raise error("GR201", f"{file} cannot be read", hint="export the adapter again") from None
    if not (folder / WEIGHTS).is_file():
        raise error("GR201", f"the adapter folder {folder} has no {WEIGHTS}",
                    hint="save it with `save_pretrained` (safetensors)")  # fmt: skip
    beyond = [
        key
        for key in ("use_rslora", "use_dora", "modules_to_save", "rank_pattern", "alpha_pattern")
        if config.get(key)
    ]
    if config.get("peft_type", "LORA") != "LORA" or beyond:
        what = ", ".join(beyond) or f"peft_type {config.get('peft_type')}"
        raise error(
            "GR201",
            f"the adapter {folder} is no plain LoRA ({what})",
            hint="merge it into its base model and pass that folder",
        )
    base = config.get("base_model_name_or_path")
    if not base:
        raise error(
            "GR201",
            f"{file} names no base model",
            hint="fill in base_model_name_or_path: a hub id or a local folder",
        )
    alpha = config.get("lora_alpha")
    try:
        lora = Lora.model_validate_json(
            json.dumps(
                {
                    "rank": config.get("r"),
                    "alpha": int(alpha) if isinstance(alpha, float) and alpha % 1 == 0 else alpha,
                    "targets": config.get("target_modules"),
                }
            )
        )
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise error(
            "GR201", f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None
    return Model(id=str(base)), lora


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise error("GR204", f"cannot read {path}: {problem.strerror}") from problem
