"""Fixtures shared by all tiers."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

# Set before any library is imported, as `grpo train` does.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
warnings.filterwarnings("ignore", category=FutureWarning)


@pytest.fixture
def policy():
    """The shipped tiny model with two adapters, `arm0` changed away from the base, `arm1` fresh."""
    import torch

    from grpo_cli.policy.policy import load_policy
    from grpo_cli.recipe.schema import Lora, Model

    loaded = load_policy(Model(id="tiny"), "cpu")
    loaded.add_adapter("arm0", Lora(), 0)
    loaded.add_adapter("arm1", Lora(), 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in loaded.parameters("arm0").items():
            if "lora_B" in name:
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return loaded


@pytest.fixture(scope="session")
def prompts():
    """Prompts of the tiny world's held-out set."""
    from grpo_cli.recipe.schema import ArithmeticTask
    from grpo_cli.tasks import load_task

    return load_task(ArithmeticTask()).held_out(32)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--objective-plugin", help="A file with objectives for the contract suite to check too."
    )


def pytest_configure(config: pytest.Config) -> None:
    plugin = config.getoption("--objective-plugin")
    if plugin:
        from grpo_cli.recipe.plugins import load_plugins

        load_plugins([Path(plugin)])
