"""The `grpo` command as a process: exit codes, streams, colours, pipes and start-up cost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_cli.recipe import locate
from grpo_cli.recipe.load import load
from grpo_cli.recipe.yaml_tree import parse

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "peft", "scipy", "mlflow", "datasets"}
CLEAN = {
    key: value
    for key, value in os.environ.items()
    if key not in ("FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS", "GRPO_TRACEBACK", "COLUMNS")
}


def grpo(
    *args: str, cwd: Path = ROOT, env: dict[str, str] | None = None, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "grpo_cli", *args],
        cwd=cwd,
        env={**CLEAN, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_starts_without_heavy_libraries() -> None:
    done = grpo("-h", python=("-X", "importtime"))
    assert done.returncode == 0
    assert "recipe" in done.stdout
    assert "grpo ablate --axis std_norm --seeds 3" in done.stdout
    imported = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert "typer" in imported
    assert not HEAVY & imported


def test_showing_a_recipe_needs_no_torch() -> None:
    done = grpo("recipe", "show", "dapo", python=("-X", "importtime"))
    assert done.returncode == 0
    imported = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert "pydantic" in imported
    assert not HEAVY & imported
    assert parse(done.stdout, "stdout")[0].plain() == load("dapo").recipe.tree()


def test_version_names_the_libraries() -> None:
    done = grpo("--version")
    assert done.returncode == 0
    assert re.fullmatch(
        r"grpo [\d.]+ \(python [\d.]+, torch \S+, transformers \S+\)\n", done.stdout
    )


@pytest.mark.parametrize("args", [("recip",), ("recipe", "shw"), ("recipe", "ls", "--jsn")])
def test_a_mistyped_word_exits_2_with_a_suggestion(args: tuple[str, ...]) -> None:
    done = grpo(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert {"recip": "recipe", "shw": "show", "--jsn": "--json"}[args[-1]] in done.stderr.split(
        args[-1], 1
    )[1]


def test_ls(tmp_path: Path) -> None:
    done = grpo("recipe", "ls", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    assert [entry["name"] for entry in found["recipes"]] == locate.recipe_names()
    assert [entry["name"] for entry in found["setups"]] == locate.setup_names()
    assert all(entry["summary"] for entry in found["recipes"] + found["setups"])
    assert {"name", "path", "summary"} == found["recipes"][0].keys()
    assert {entry["path"] for entry in found["recipes"]} >= {"recipes/dapo.yaml"}


def test_show_origins_and_set() -> None:
    done = grpo("recipe", "show", "dapo", "--set", "objective.high=0.5", "--origins")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines()}
    assert rows["objective.high"] == ["0.5", "--set #1"]
    assert rows["objective.low"] == ["0.2", "recipes/dapo.yaml:6"]
    assert rows["lora.rank"][1] == "default"


def test_show_json_holds_the_hash() -> None:
    done = grpo("recipe", "show", "grpo", "--setup", "tiny", "--json")
    found = json.loads(done.stdout)
    assert found["hash"] == load("grpo").recipe.hash
    assert found["origins"]["setup"] == "--setup"


def test_diff_exits_0_and_leaves_out_what_is_equal(tmp_path: Path) -> None:
    done = grpo("recipe", "diff", "grpo", "dapo", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    changes = json.loads(done.stdout)["differences"]
    assert changes["objective.high"] == {"a": 0.2, "b": 0.28}
    assert changes["filter.max_rounds"] == {"b": 10}
    assert "objective.low" not in changes
    text = grpo("recipe", "diff", "grpo", "dapo")
    assert re.search(r"^objective\.high +0\.2 +0\.28$", text.stdout, flags=re.MULTILINE)


def test_every_shipped_file_validates(tmp_path: Path) -> None:
    done = grpo("recipe", "validate", str(locate.recipes_dir()), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = {f"recipes/{name}.yaml" for name in locate.recipe_names()}
    names |= {f"recipes/setup/{name}.yaml" for name in locate.setup_names()}
    assert set(done.stdout.splitlines()) >= {f"ok {name}" for name in names}


def test_validate_reports_every_problem_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").write_text("extends: grpo.yaml\nkll: 1\nkl: {beta: -1}\n")
    (tmp_path / "mine" / "b.yaml").write_text("extends: a.yaml\nfilter: {kind: nne}\n")
    (tmp_path / "mine" / "c.yaml").write_text("extends: dapo.yaml\n")
    (tmp_path / "mine" / "s.yaml").write_text("extends: tiny\nsampling: {group_size: 1}\n")
    done = grpo("recipe", "validate", "mine", "nope", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "ok mine/c.yaml\n"
    places = re.findall(r"--> (\S+)", done.stderr)
    assert places == [
        "mine/a.yaml:2:1",
        "mine/a.yaml:3:12",
        "mine/b.yaml:2:16",
        "mine/s.yaml:2:24",
    ]
    assert "no recipe `nope`" in done.stderr
    assert "hint: did you mean `none`?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


def test_an_error_under_json_is_one_object_on_stderr() -> None:
    done = grpo("recipe", "show", "dapoo", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["errors"][0]["hint"] == "did you mean `dapo`?"


def test_colour_and_traceback_only_when_asked() -> None:
    env = {"FORCE_COLOR": "1"}
    assert "\x1b[" in grpo("recipe", "show", "dapoo", env=env).stderr
    plain = grpo("recipe", "show", "dapoo", env={**env, "NO_COLOR": "1", "GRPO_TRACEBACK": "1"})
    assert "\x1b" not in plain.stderr.split("error[GR107]")[1]
    assert "Traceback" in plain.stderr
    assert plain.returncode == 2
    assert "Traceback" in grpo("--traceback", "recipe", "show", "dapoo").stderr


def test_a_closed_pipe_ends_quietly() -> None:
    command = f'"{sys.executable}" -m grpo_cli recipe schema | true'
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=CLEAN, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""


def test_schema_fits_a_partial_file() -> None:
    done = grpo("recipe", "schema")
    schema = json.loads(done.stdout)
    assert schema["additionalProperties"] is False
    assert {"extends", "objective", "optim"} <= schema["properties"].keys()
    assert '"required": [' not in done.stdout
    assert '"oneOf"' not in done.stdout


def test_a_latin_terminal_does_not_end_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: grpo\nsummary: 中\n", encoding="utf-8")
    done = grpo("recipe", "show", "a.yaml", cwd=tmp_path, env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0
    assert "\\u4e2d" in done.stdout


# In one process: what `main` does with errors that a command raises.


def test_main_turns_errors_into_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from grpo_cli.cli import app as module
    from grpo_cli.errors import error

    for raised, code, words in (
        (error("GR301", "not finite", exit_code=3), 3, "error[GR301]: not finite"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("oh"), 3, "ZeroDivisionError: oh"),
        (SystemExit(1), 1, ""),
    ):

        def fail(*, prog_name: str, raised: BaseException = raised) -> None:
            raise raised

        monkeypatch.setattr(module, "app", fail)
        monkeypatch.setattr(sys, "argv", ["grpo"])
        with pytest.raises(SystemExit) as caught:
            module.main()
        assert caught.value.code == code
        output = capsys.readouterr()
        assert words in output.err
        assert output.out == ""
