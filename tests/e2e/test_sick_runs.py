"""Real runs made sick on purpose: the first finding of `grpo doctor` names the fault."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from grpo_cli.health.doctor import diagnose

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sick_runs.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sick_runs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


sick_runs = _script()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(sick_runs.KINDS))
def test_the_first_finding_names_what_was_done_to_the_run(name: str, tmp_path: Path) -> None:
    found = diagnose(sick_runs.make_run(name, 0, tmp_path))
    assert sick_runs.is_named(sick_runs.KINDS[name], found), sick_runs.describe(found)
