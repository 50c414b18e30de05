"""One file per objective. A new file here is found by itself; it needs no registration."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from grpo_cli.objective.base import Objective


@cache
def objective_kinds() -> tuple[type[Objective], ...]:
    """Every objective class defined in this folder, in order of its kind."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    classes = {cls.model_fields["kind"].default: cls for cls in Objective.__subclasses__()}
    return tuple(classes[kind] for kind in sorted(classes))
