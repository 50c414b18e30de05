"""`grpo recipe`: look at recipes. Data goes to stdout, errors to stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.errors import GrpoError, Problem, error
from grpo_cli.recipe import locate

if TYPE_CHECKING:
    from grpo_cli.recipe.load import Absent
    from grpo_cli.recipe.yaml_tree import JSON


def _examples(*commands: str) -> str:
    """The end of a help page; an empty line keeps each command on a line of its own."""
    return "\n\n".join(["Examples:", *(f"  grpo recipe {command}" for command in commands)])


app = typer.Typer(
    no_args_is_help=True,
    help="List, show, compare and check recipes.",
    epilog=_examples("ls", "show dapo --origins"),
)


def _complete_recipe(incomplete: str) -> list[str]:
    return [name for name in locate.recipe_names() if name.startswith(incomplete)]


def _complete_setup(incomplete: str) -> list[str]:
    return [name for name in locate.setup_names() if name.startswith(incomplete)]


NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of a shipped recipe, or a path.", autocompletion=_complete_recipe
    ),
]
SetupOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Setup (model, task, budget) in place of the recipe's own: name or path.",
        autocompletion=_complete_setup,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in a file. Repeatable."),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE", help="Python file that defines objectives. Repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("ls", epilog=_examples("ls", "ls --json"))
def list_recipes(as_json: JsonOption = False) -> None:
    """List the shipped recipes and setups."""
    found = {
        "recipes": [
            _entry(locate.recipes_dir() / f"{name}.yaml") for name in locate.recipe_names()
        ],
        "setups": [_entry(locate.setups_dir() / f"{name}.yaml") for name in locate.setup_names()],
    }
    if as_json:
        _echo_json(found)
        return
    width = max((len(entry["name"]) for entries in found.values() for entry in entries), default=0)
    for heading, entries in found.items():
        _echo(f"{heading}:")
        for entry in entries:
            _echo(f"  {entry['name']:{width}}  {entry['summary']}".rstrip())


@app.command(
    epilog=_examples(
        "show dapo",
        "show dapo --set objective.high=0.3 --origins",
        "show grpo --setup tiny --json",
    )
)
def show(
    name: NameArgument,
    setup: SetupOption = None,
    sets: SetOption = None,
    origins: Annotated[
        bool, typer.Option("--origins", help="Where every value came from (file and line).")
    ] = False,
    plugins: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the resolved recipe: every value, defaults included, as YAML."""
    from grpo_cli.recipe.load import leaves, load
    from grpo_cli.recipe.plugins import load_plugins
    from grpo_cli.recipe.yaml_tree import show_tree, show_value

    load_plugins(plugins or ())
    loaded = load(name, setup=setup, sets=sets or ())
    if as_json:
        _echo_json(
            {
                "name": loaded.name,
                "hash": loaded.recipe.hash,
                "recipe": loaded.recipe.tree(),
                "origins": loaded.origins,
            }
        )
    elif origins:
        rows = [
            (leaf, show_value(value), loaded.origins[leaf])
            for leaf, value in leaves(loaded.recipe).items()
        ]
        _echo_table(rows)
    else:
        _echo(show_tree(loaded.recipe.tree()))


@app.command(epilog=_examples("explain gspo", "explain dapo --set objective.high=0.3"))
def explain(
    name: NameArgument,
    setup: SetupOption = None,
    sets: SetOption = None,
    plugins: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a recipe's loss as a formula with its numbers, and the source of each part."""
    from rich.console import Console

    from grpo_cli.recipe.explain import explain as parts_of
    from grpo_cli.recipe.explain import warnings
    from grpo_cli.recipe.load import load
    from grpo_cli.recipe.plugins import load_plugins
    from grpo_cli.report import render_warnings

    load_plugins(plugins or ())
    loaded = load(name, setup=setup, sets=sets or ())
    rows = parts_of(loaded.recipe)
    found = warnings(loaded.recipe)
    if as_json:
        parts = [dict(zip(("symbol", "formula", "source"), row, strict=True)) for row in rows]
        codes = [{"code": p.code, "message": p.message, "hint": p.hint} for p in found]
        _echo_json({"name": loaded.name, "parts": parts, "warnings": codes})
        return
    _echo(f"{loaded.name}: {loaded.recipe.summary}\n")
    for symbol, formula, source in rows:
        _echo(f"{symbol:<8} {formula}")
        if source:
            _echo(f"{'':<8}   {source}")
    render_warnings(found, Console(stderr=True))


@app.command(epilog=_examples("diff grpo dapo", "diff dapo my/dapo.yaml --json"))
def diff(
    a: Annotated[str, typer.Argument(metavar="A", autocompletion=_complete_recipe)],
    b: Annotated[str, typer.Argument(metavar="B", autocompletion=_complete_recipe)],
    plugins: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the values in which two resolved recipes differ."""
    from grpo_cli.recipe import load as recipes
    from grpo_cli.recipe.plugins import load_plugins

    load_plugins(plugins or ())
    left, right = recipes.load(a), recipes.load(b)
    changes = recipes.diff(left.recipe, right.recipe)
    if as_json:
        # A side without such a leaf has no key: null is a value of its own.
        sides = {
            leaf: {
                side: value
                for side, value in zip(("a", "b"), pair, strict=True)
                if value is not recipes.Absent.ABSENT
            }
            for leaf, pair in changes.items()
        }
        _echo_json({"a": left.name, "b": right.name, "differences": sides})
        return
    if not changes:
        typer.echo("no difference", err=True)
        return
    rows = [(leaf, _side(one), _side(other)) for leaf, (one, other) in changes.items()]
    _echo_table([("", left.name, right.name), *rows])


@app.command(epilog=_examples("validate recipes", "validate dapo my/recipe.yaml"))
def validate(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, folders or names of recipes.")
    ],
    plugins: PluginOption = None,
) -> None:
    """Check recipes and setups: every problem of every file. A setup is checked under `grpo`."""
    from grpo_cli.recipe.load import find, is_setup_file, load
    from grpo_cli.recipe.plugins import load_plugins

    load_plugins(plugins or ())
    problems: list[Problem] = []
    for typed in paths:
        try:
            files = _files_in(typed) if Path(typed).is_dir() else [str(find(typed))]
        except GrpoError as bad:
            problems += bad.problems
            continue
        for file in files:
            try:
                if is_setup_file(Path(file)):
                    load("grpo", setup=file)
                else:
                    load(file)
            except GrpoError as bad:
                problems += bad.problems
            else:
                _echo(f"ok {locate.shown_path(Path(file))}")
    if problems:
        raise GrpoError(*dict.fromkeys(problems))  # a shared parent's problems only once


@app.command(epilog=_examples("schema", "schema > recipe.schema.json"))
def schema() -> None:
    """Print the JSON Schema of a recipe file, for editors."""
    from grpo_cli.recipe.schema import Recipe

    tree = Recipe.model_json_schema()
    name = {"type": "string"}
    tree["properties"]["extends"] = {
        "anyOf": [name, {"type": "array", "items": name}],
        "description": "Files to build on; later ones win.",
    }
    typer.echo(json.dumps(_partial(tree), indent=2))


def _partial(node: JSON) -> JSON:
    """The schema of one layer: a file may leave out what another file sets, `kind` included."""
    if isinstance(node, list):
        return [_partial(item) for item in node]
    if not isinstance(node, dict):
        return node
    loose = {key: _partial(value) for key, value in node.items() if key != "discriminator"}
    if isinstance(loose.get("required"), list):
        del loose["required"]
    if "oneOf" in loose:
        loose["anyOf"] = loose.pop("oneOf")
    return loose


def _files_in(folder: str) -> list[str]:
    """The recipe files below a folder, without hidden ones and `axes`, which hold no recipes."""
    found = [
        path
        for suffix in locate.SUFFIXES
        for path in Path(folder).rglob(f"*{suffix}")
        if path.is_file()
        and "axes" not in path.relative_to(folder).parts
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise error("GR107", f"no recipe files in `{folder}`")
    return [str(path) for path in sorted(found)]


def _entry(path: Path) -> dict[str, str]:
    from grpo_cli.recipe.load import summary_of

    try:
        summary = summary_of(path)
    except GrpoError as bad:  # one bad file must not hide the others
        summary = f"(cannot be read: {bad.problems[0].message})"
    return {"name": path.stem, "path": locate.shown_path(path), "summary": summary}


def _side(value: JSON | Absent) -> str:
    from grpo_cli.recipe.load import Absent
    from grpo_cli.recipe.yaml_tree import show_value

    return "-" if isinstance(value, Absent) else show_value(value)


def _echo(text: str) -> None:
    from grpo_cli.report import safe_text

    typer.echo(safe_text(text, None))


def _echo_json(document: Mapping[str, object]) -> None:
    from grpo_cli.report import JSON_VERSION

    typer.echo(json.dumps({"schema_version": JSON_VERSION, **document}, indent=2))


def _echo_table(rows: list[tuple[str, str, str]]) -> None:
    """Columns of the width of their longest cell: a piped table must not be cut to 80 columns."""
    first = max(len(row[0]) for row in rows)
    # One long value (a summary) must not push the last column off everybody's screen.
    second = min(max(len(row[1]) for row in rows), 40)
    for row in rows:
        _echo(f"{row[0]:{first}}  {row[1]:{second}}  {row[2]}".rstrip())
