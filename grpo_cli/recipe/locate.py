"""Where the shipped recipes and verifiers are, and what they are called. Reads no file contents."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
SUFFIXES = (".yaml", ".yml")


def data_dir() -> Path:
    """The folder that holds `recipes/` and `verifiers/`.

    An installed wheel has `grpo_cli/_data`; a checkout does not, and its own folders are used. The
    wheel comes first: beside an installed package, another project's `recipes/` may lie.
    """
    data = _PACKAGE / "_data"
    return data if data.is_dir() else _PACKAGE.parent


def recipes_dir() -> Path:
    """The folder of the shipped recipes, one file per algorithm."""
    return data_dir() / "recipes"


def setups_dir() -> Path:
    """The folder of the shipped setups."""
    return recipes_dir() / "setup"


def axes_dir() -> Path:
    """The folder of the shipped axes: what `--axis NAME` means."""
    return recipes_dir() / "axes"


def verifiers_dir() -> Path:
    """The folder of the shipped verifiers, one folder each."""
    return data_dir() / "verifiers"


def recipe_names() -> list[str]:
    """Short names of the shipped recipes, sorted."""
    return sorted(path.stem for path in recipes_dir().glob("*.yaml"))


def setup_names() -> list[str]:
    """Short names of the shipped setups, sorted."""
    return sorted(path.stem for path in setups_dir().glob("*.yaml"))


def axis_names() -> list[str]:
    """Short names of the shipped axes, sorted."""
    return sorted(path.stem for path in axes_dir().glob("*.yaml"))


def shown_path(path: Path) -> str:
    """The path to show a person: never an absolute machine path for a shipped file.

    A shipped file is shown from the data folder (`recipes/dapo.yaml`) wherever it is installed, so
    that what a run folder stores does not depend on the machine. Any other file is shown relative
    to the working directory when it lies inside it.
    """
    full = path.resolve()
    for root in (recipes_dir().resolve(), verifiers_dir().resolve()):
        if full.is_relative_to(root):
            return full.relative_to(root.parent).as_posix()
    cwd = Path.cwd().resolve()
    return full.relative_to(cwd).as_posix() if full.is_relative_to(cwd) else path.as_posix()
