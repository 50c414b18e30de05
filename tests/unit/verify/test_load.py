"""Loading verifiers by path, and calling them without losing a failure."""

import hashlib
import math
import sys
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.types import Status
from grpo_cli.verify.load import LoadedVerifier, load_source, load_verifier
from grpo_cli.verify.source import VerifierSource

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


OPTIONS = (
    'OPTIONS = {"percent": ("strict", "equal"), "order": ("strict", "any")}\n'
    'def verify(t, r, percent="strict", order="strict"):\n'
    '    return Verdict(1.0, Status.OK, parsed=f"{percent} {order}")\n'
)


def test_options_have_defaults_and_are_passed_on(tmp_path: Path) -> None:
    plain = make(tmp_path, OPTIONS)
    assert plain("", "").parsed == "strict strict"
    assert dict(plain.source.options) == {"order": "strict", "percent": "strict"}
    chosen = load_verifier("mine", tmp_path, {"percent": "equal"})
    assert chosen("", "").parsed == "equal strict"
    assert chosen.sha256 == plain.sha256
    assert load_source(VerifierSource.from_json(chosen.source.to_json()))("", "").parsed == (
        "equal strict"
    )


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"pecent": "equal"}, "has no option 'pecent'", "did you mean 'percent'?"),
        ({"rounding": "no"}, "has no option 'rounding'", "its options: order, percent"),
        ({"percent": "equals"}, "cannot be 'equals'", "did you mean 'equal'?"),
        ({"percent": "7"}, "cannot be '7'", "its values: strict, equal"),
    ],
)
def test_an_unknown_option_or_value_is_refused(
    tmp_path: Path, options: dict[str, str], message: str, hint: str
) -> None:
    make(tmp_path, OPTIONS)
    with pytest.raises(GrpoError, match="GR205") as caught:
        load_verifier("mine", tmp_path, options)
    assert message in str(caught.value)
    assert caught.value.problems[0].hint == hint


def test_a_verifier_without_options_says_so() -> None:
    with pytest.raises(GrpoError, match="no option 'percent'") as caught:
        load_verifier("exact_integer", BUNDLED, {"percent": "strict"})
    assert caught.value.problems[0].hint == "it has no options"


@pytest.mark.parametrize("declared", ["[]", "{'a': ()}", "{'a': 'strict'}", "{1: ('a',)}"])
def test_options_that_are_declared_wrongly(tmp_path: Path, declared: str) -> None:
    with pytest.raises(GrpoError, match=r"GR205.*OPTIONS of the verifier mine"):
        make(tmp_path, f"OPTIONS = {declared}\ndef verify(t, r): return None")


def test_kind_and_answer(tmp_path: Path) -> None:
    plain = make(tmp_path, "def verify(t, r): return None")
    assert (plain.kind, plain.answer) == ("number", None)
    code = "KIND = 'choice'\ndef answer(r): return f'({r})'\ndef verify(t, r): return None"
    chosen = make(tmp_path, code)
    assert chosen.kind == "choice"
    assert chosen.answer is not None
    assert chosen.answer("B") == "(B)"
    with pytest.raises(GrpoError, match=r"GR205.*KIND 'choices'") as caught:
        make(tmp_path, "KIND = 'choices'\ndef verify(t, r): return None")
    assert caught.value.problems[0].hint == "did you mean 'choice'?"


def test_files_of_the_folder_are_imported_relatively_and_hashed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "units.py").write_text("FACTOR = 0.5\n")
    code = "from .units import FACTOR\ndef verify(t, r): return Verdict(FACTOR, Status.OK)"
    one = make(tmp_path, code)
    assert one("", "").score == 0.5
    (tmp_path / "mine" / "units.py").write_text("FACTOR = 0.7\n")
    two = make(tmp_path, code)
    assert two("", "").score == 0.7
    assert one.sha256 != two.sha256
    (tmp_path / "mine" / "notes.txt").write_text("not code")
    assert make(tmp_path, code).sha256 == two.sha256


def test_the_hash_of_a_single_file_is_that_of_its_bytes() -> None:
    code = (BUNDLED / "exact_integer" / "verifier.py").read_bytes()
    assert load_verifier("exact_integer", BUNDLED).sha256 == hashlib.sha256(code).hexdigest()


def test_a_second_version_within_a_second_is_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytecode files know a source by its second and size: both versions would look the same."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for score in ("0.25", "0.75"):
        verifier = make(tmp_path, f"def verify(t, r): return Verdict({score}, Status.OK)")
        assert verifier("", "").score == float(score)
    assert not list(tmp_path.rglob("*.pyc"))


def test_exiting_at_import_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    with pytest.raises(GrpoError, match=r"GR205.*SystemExit"):
        make(tmp_path, "raise SystemExit(0)")


@pytest.mark.parametrize(
    "code", ["def verify(text): return Verdict(1.0, Status.OK)",
             "def verify(t, r, strict): return Verdict(1.0, Status.OK)",
             "OPTIONS = {'a': ('x',)}\ndef verify(t, r): return Verdict(1.0, Status.OK)"],
)  # fmt: skip
def test_a_function_with_other_arguments_is_refused_at_once(tmp_path: Path, code: str) -> None:
    with pytest.raises(GrpoError, match="cannot be called with") as caught:
        make(tmp_path, code)
    assert caught.value.exit_code == 2


def test_the_limit_of_a_sample_is_the_verifiers(tmp_path: Path) -> None:
    body = "def verify(t, r): return Verdict(1.0, Status.OK)"
    assert make(tmp_path, body).sample_limit_s == 5
    assert make(tmp_path, f"SAMPLE_LIMIT_S = 12\n{body}").sample_limit_s == 12
    assert load_verifier("code", BUNDLED).sample_limit_s == 30
    for wrong in ("0", "'5'", "True", "None", "math.nan"):
        with pytest.raises(GrpoError, match="SAMPLE_LIMIT_S"):
            make(tmp_path, f"SAMPLE_LIMIT_S = {wrong}\n{body}")
