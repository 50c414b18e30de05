"""Where a base model comes from, and how a run folder recognises it. Must not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from grpo_cli.recipe.schema import Model
from grpo_cli.tiny import TINY_DIR, TINY_JUDGE_DIR

SHIPPED = {"tiny": TINY_DIR, "tiny-judge": TINY_JUDGE_DIR}
"""Models that come with the package."""
_WHOLE = 2**24
_SAMPLES = 1024


def model_path(model: Model) -> str:
    """The folder of a shipped model, otherwise the folder or hub id as it stands."""
    return str(SHIPPED.get(model.id, model.id))


def model_fingerprint(model: Model) -> str:
    """What a run folder remembers of its base model, so that resuming on another is refused."""
    folder = Path(model_path(model))
    if not folder.is_dir():
        return f"{model.id}@{model.revision or 'main'}"
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*")):
        if file.suffix in (".safetensors", ".json", ".jinja"):
            digest.update(f"{file.name}:{file.stat().st_size}\n".encode())
            size = file.stat().st_size
            with file.open("rb") as stream:
                # Reading gigabytes to resume would cost more than it protects: the table of tensors
                # and the first of them whole, then samples from all over the file.
                digest.update(stream.read(_WHOLE))
                for i in range(_SAMPLES if size > _WHOLE else 0):
                    stream.seek(_WHOLE + i * (size - _WHOLE) // _SAMPLES)
                    digest.update(stream.read(2**14))
    return digest.hexdigest()
