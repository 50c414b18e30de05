"""Loading verifiers by path, and calling them without losing a failure."""

import math
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.types import Status
from grpo_cli.verify.load import LoadedVerifier, load_verifier

BUNDLED = Path(__file__).parents[3] / "verifiers"
HEAD = "from grpo_cli.types import Status, Verdict\nimport math\n"


def make(folder: Path, code: str, name: str = "mine") -> LoadedVerifier:
    """A verifier folder with this code, loaded."""
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "verifier.py").write_text(HEAD + code)
    return load_verifier(name, folder)


def test_by_name_and_by_path() -> None:
    by_name = load_verifier("exact_integer", BUNDLED)
    by_path = load_verifier(str(BUNDLED / "exact_integer"), Path("nowhere"))
    assert by_name.name == by_path.name == "exact_integer"
    assert by_name.sha256 == by_path.sha256
    assert len(by_name.sha256) == 64
    verdict = by_name("#16", "16")
    assert (verdict.score, verdict.status, verdict.parsed) == (1.0, Status.OK, "16")
    assert verdict.elapsed_s > 0


def test_the_hash_follows_the_code(tmp_path: Path) -> None:
    one = make(tmp_path, "def verify(t, r): return Verdict(0.0, Status.OK)")
    two = make(tmp_path, "def verify(t, r): return Verdict(1.0, Status.OK)")
    assert one.sha256 != two.sha256
    assert (one("", "").score, two("", "").score) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise ValueError('no such reference')", "no such reference"),
        ("return 1.0", "returned float, not a Verdict"),
        ("return None", "returned NoneType"),
        ("return Verdict(1.5, Status.OK)", "outside 0..1"),
        ("return Verdict(-0.1, Status.UNPARSED)", "outside 0..1"),
        ("return Verdict(math.nan, Status.OK)", "outside 0..1"),
        ("return Verdict(math.inf, Status.OK)", "outside 0..1"),
        ("return Verdict('1', Status.OK)", "score is str"),
        ("return Verdict(True, Status.OK)", "score is bool"),
        ("return Verdict(1.0, 'fine')", "not a Status"),
        ("return Verdict(0.0, Status.ERROR)", "must have a NaN score"),
        ("return Verdict(0.0, Status.TIMEOUT)", "must have a NaN score"),
    ],
)
def test_a_broken_verifier_is_an_error_and_never_a_zero(
    tmp_path: Path, body: str, detail: str
) -> None:
    verdict = make(tmp_path, f"def verify(text, reference):\n    {body}\n")("#16", "16")
    assert verdict.status is Status.ERROR
    assert verdict.missing
    assert math.isnan(verdict.score)
    assert detail in (verdict.detail or "")


def test_its_own_timeout_passes_through(tmp_path: Path) -> None:
    code = "def verify(t, r): return Verdict(math.nan, Status.TIMEOUT, detail='slow')"
    verdict = make(tmp_path, code)("#16", "16")
    assert (verdict.status, verdict.detail) == (Status.TIMEOUT, "slow")


def test_a_dataclass_inside_a_verifier(tmp_path: Path) -> None:
    """Dataclasses look their module up in sys.modules."""
    code = (
        "from dataclasses import dataclass\n"
        "@dataclass\nclass A:\n    x: 'int'\n"
        "def verify(t, r): return Verdict(float(A(1).x), Status.OK)"
    )
    assert make(tmp_path, code)("", "").score == 1.0


def test_missing_folder_suggests_a_name() -> None:
    with pytest.raises(GrpoError, match=r"GR205.*no verifier 'exact_intger'") as caught:
        load_verifier("exact_intger", BUNDLED)
    assert caught.value.problems[0].hint == "did you mean 'exact_integer'?"
    with pytest.raises(GrpoError, match="GR205"):
        load_verifier("", BUNDLED)


def test_missing_file_function_or_import(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(GrpoError, match=r"GR205.*has no verifier\.py"):
        load_verifier("empty", tmp_path)
    with pytest.raises(GrpoError, match=r"GR205.*no function 'verify'") as caught:
        make(tmp_path, "def verfy(t, r): return None")
    assert "did you mean 'verfy'" in (caught.value.problems[0].hint or "")
    with pytest.raises(GrpoError, match=r"GR205.*ModuleNotFoundError"):
        make(tmp_path, "import no_such_module_anywhere")
    with pytest.raises(GrpoError, match=r"GR205.*SyntaxError"):
        make(tmp_path, "def verify(t, r:")
