"""What training learns of its verifier before it begins: its audit and the sandbox in force."""

from __future__ import annotations

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.prepare import open_judge
from grpo_cli.recipe.load import load
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.verify.audit_file import audit_path, read
from grpo_cli.verify.load import load_verifier
from grpo_cli.verify.sandbox import LEVEL_VARIABLE

NAMES = sorted(p.parent.name for p in verifiers_dir().glob("*/verifier.py"))


@pytest.fixture
def _package_of_the_verifier(name: str) -> None:
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("_package_of_the_verifier")
def test_the_committed_audit_is_of_the_committed_code(name: str) -> None:
    source = load_verifier(name, verifiers_dir()).source
    problem = read(audit_path(source)).mismatch(source)
    assert problem is None, f"{problem}; audit it again as docs/verify-verifier.md says"


def test_a_shipped_recipe_shows_the_error_rates_of_its_verifier() -> None:
    judge = open_judge(load("dapo").recipe)
    assert judge.has_audit
    assert judge.note is not None
    assert judge.note.startswith("verifier exact_integer: FN <= ")
    assert judge.environment() == {}, "a verifier that runs no programs needs no sandbox"


def test_a_code_verifier_records_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "none")  # so that the old value comes back after the test
    recipe = load("grpo", sets=["verifier.name=code", "verifier.sandbox=none"]).recipe
    judge = open_judge(recipe)
    assert judge.environment() == {"sandbox": "none"}
    assert judge.note is not None
    assert "NO SANDBOX" in judge.note


def test_without_a_sandbox_training_on_programs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "no-such-level")
    with pytest.raises(GrpoError, match="no-such-level"):
        open_judge(load("grpo", sets=["verifier.name=code"]).recipe)
