"""One token id as text, with the tokenizer of a run's model: no torch, no network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from grpo_cli.policy.source import model_path
from grpo_cli.recipe.schema import Model

Decode = Callable[[int], str]


def decoder(run: Path) -> Decode | None:
    """What shows a token of this run's model; None when its tokenizer is not on this machine."""
    from tokenizers import Tokenizer

    try:
        model = Model.model_validate(json.loads((run / "recipe.json").read_bytes())["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    file = _tokenizer_file(model)
    if file is None:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises this bare type; without it the ids are shown
        return None
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)


def _tokenizer_file(model: Model) -> Path | None:
    """`tokenizer.json` of the model's folder, or of the hub's cache."""
    folder = Path(model_path(model))
    if folder.is_dir():
        return folder / "tokenizer.json" if (folder / "tokenizer.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model.id, "tokenizer.json", revision=model.revision)
    except HFValidationError:  # a local folder that is gone
        return None
    return Path(found) if isinstance(found, str) else None
