"""What a run records about where it ran. Must not import torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("grpo-cli", "torch", "transformers", "peft", "mlflow", "vllm")


def environment() -> dict[str, Any]:
    """What can change a result. A list of what to record, never `os.environ`: it holds secrets."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
        **_git(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _git() -> dict[str, Any]:
    """Commit of the checkout this code runs from; nulls when it runs from an installed package."""
    here = Path(__file__).parent

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", str(here), *args],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        # An installed package may lie inside somebody else's repository: ours must be tracked.
        git("ls-files", "--error-unmatch", "__init__.py")
        return {
            "git_commit": git("rev-parse", "HEAD"),
            "git_dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {"git_commit": None, "git_dirty": None}
