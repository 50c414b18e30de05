"""`grpo tasks`: what a setup asks the model, and how hard that is for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.errors import error
from grpo_cli.recipe import locate

if TYPE_CHECKING:
    from grpo_cli.difficulty import PromptRate, ZeroVariance
    from grpo_cli.recipe.load import Loaded
    from grpo_cli.tasks import Task
    from grpo_cli.types import Prompt
    from grpo_cli.verify.load import LoadedVerifier


def _examples(*commands: str) -> str:
    """The end of a help page; an empty line keeps each command on a line of its own."""
    return "\n\n".join(["Examples:", *(f"  grpo tasks {command}" for command in commands)])


app = typer.Typer(
    no_args_is_help=True,
    help="Show what a setup asks the model, and measure how hard that is.",
    epilog=_examples("ls", "show tiny", "profile tiny --k 8"),
)


def _complete(incomplete: str) -> list[str]:
    names = [*locate.setup_names(), *locate.recipe_names()]
    return [name for name in names if name.startswith(incomplete)]


TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="SETUP|RECIPE", help="Name or path of a setup or recipe.", autocompletion=_complete
    ),
]
SetupOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="With a recipe: another setup than its own.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in a file. Repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("ls", epilog=_examples("ls", "ls --json"))
def list_tasks(as_json: JsonOption = False) -> None:
    """List the kinds of task and the shipped setups that use them."""
    from typing import get_args

    from grpo_cli.recipe.load import load
    from grpo_cli.recipe.task_schema import AnyTask

    kinds = [
        {
            "kind": str(cls.model_fields["kind"].default),
            "summary": (cls.__doc__ or "").strip().splitlines()[0],
        }
        for cls in get_args(AnyTask)
    ]
    setups = []
    for name in locate.setup_names():
        recipe = load("grpo", setup=name).recipe
        setups.append(
            {
                "setup": name,
                "task": recipe.task.kind,
                "verifier": recipe.verifier.name,
                "model": recipe.model.id,
            }
        )
    if as_json:
        _echo_json({"kinds": kinds, "setups": setups})
        return
    for kind in kinds:
        _echo(f"{kind['kind']:<11} {kind['summary']}")
    _echo("")
    _echo_table([("SETUP", "TASK", "VERIFIER", "MODEL"), *(tuple(row.values()) for row in setups)])


@app.command(
    epilog=_examples(
        "show tiny",
        "show smollm2-arithmetic --prompts 3",
        "show gsm8k-qwen3-0.6b --set task.path=gsm8k/ --json",
    )
)
def show(
    target: TargetArgument,
    setup: SetupOption = None,
    sets: SetOption = None,
    prompts: Annotated[int, typer.Option(min=0, help="Prompts to show.")] = 2,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Show held-out prompts, not training prompts.")
    ] = False,
    golds: Annotated[
        int, typer.Option(min=0, help="Golds to check against the verifier; 0 checks none.")
    ] = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Show a task: its size, what its filters find, its first prompts as the model reads them."""
    from grpo_cli.difficulty import sample_prompts

    loaded, verifier, task = _load(target, setup, sets)
    document: dict[str, object] = {
        "task": loaded.recipe.task.model_dump(mode="json"),
        "verifier": verifier.name,
        **_survey(task, verifier, golds),
    }
    first = task.held_out(prompts) if held_out else sample_prompts(task, prompts)
    render = _renderer(loaded)
    shown = [
        {
            "id": prompt.id,
            "reference": prompt.reference,
            "meta": dict(prompt.meta),
            "text": None if render is None else render(prompt),
            "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
        }
        for prompt in first
    ]
    if as_json:
        _echo_json({**document, "prompts": shown})
        return
    _echo(f"{loaded.recipe.setup}: {loaded.recipe.task.kind}, verifier {verifier.name}\n")
    for key, value in document.items():
        if key in ("task", "verifier"):
            continue
        if isinstance(value, dict):
            _echo(f"{key}:")
            for name, count in value.items():
                _echo(f"  {name:<22} {count}")
            if not value:
                _echo("  nothing")
        else:
            _echo(f"{key:<24} {value}")
    for entry, prompt in zip(shown, first, strict=True):
        note = "" if render is not None else " (the tokenizer is not here: turns, not tokens)"
        _echo(f"\n--- prompt {entry['id']}, reference {prompt.reference}{note}")
        text = entry["text"] or "\n".join(f"[{m.role}] {m.content}" for m in prompt.messages)
        _echo(str(text))


@app.command(
    epilog=_examples(
        "profile tiny --k 8",
        "profile smollm2-arithmetic --set model.id=DIR --n 32 --json",
        "profile dapo --set sampling.group_size=16 --k 16",
    )
)
def profile(
    target: TargetArgument,
    setup: SetupOption = None,
    sets: SetOption = None,
    k: Annotated[
        int, typer.Option("--k", min=1, help="Samples per prompt; from the group size on, exact.")
    ] = 8,
    n: Annotated[int, typer.Option("--n", min=1, help="Training prompts to sample.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Measure the base model's pass rate per prompt, and how many groups will have no contrast."""
    from grpo_cli import difficulty
    from grpo_cli.prepare import prepare_libraries

    prepare_libraries()
    from grpo_cli.evaluate import Question
    from grpo_cli.policy.policy import load_policy
    from grpo_cli.rollout.choose import make_engine
    from grpo_cli.verify.pool import VerifierPool

    loaded, verifier, task = _load(target, setup, sets)
    recipe = loaded.recipe

    def say(text: str) -> None:
        _echo(text, err=True)

    say(f"loading {recipe.model.id}")
    policy = load_policy(recipe.model, recipe.device, recipe.learner)
    engine = make_engine(policy, recipe, 1, say)
    questions = [
        Question(prompt, policy.render(prompt.messages))
        for prompt in difficulty.sample_prompts(task, n)
    ]
    with VerifierPool(verifier.source, sample_limit_s=verifier.sample_limit_s) as pool:
        rates = difficulty.measure(engine, pool, questions, recipe, k, difficulty.Every(5.0, say))
    size = recipe.sampling.group_size
    found = difficulty.expected_zero_variance(rates, size)
    if as_json:
        _echo_json(_profile_document(loaded, k, rates, found))
    else:
        _show_profile(loaded, k, rates, found)


def _load(
    target: str, setup: str | None, sets: list[str] | None
) -> tuple[Loaded, LoadedVerifier, Task]:
    """The recipe that `target` means (a setup is taken under `grpo`), its verifier and task."""
    from grpo_cli.recipe.load import is_setup_file, load
    from grpo_cli.recipe.problems import did_you_mean
    from grpo_cli.tasks import load_task
    from grpo_cli.verify.load import load_verifier

    names = [*locate.recipe_names(), *locate.setup_names()]
    if target not in names and not Path(target).exists():
        hint = did_you_mean(Path(target).stem, names) or f"known: {', '.join(names)}"
        raise error("GR107", f"no setup or recipe `{target}`", hint=hint)
    is_setup = target not in locate.recipe_names() and (
        target in locate.setup_names() or is_setup_file(Path(target))
    )
    if is_setup and setup is None:
        loaded = load("grpo", setup=target, sets=sets or ())
    else:
        loaded = load(target, setup=setup, sets=sets or ())
    chosen = loaded.recipe.verifier
    verifier = load_verifier(chosen.name, locate.verifiers_dir(), getattr(chosen, "options", None))
    return loaded, verifier, load_task(loaded.recipe.task, verifier)


def _survey(task: Task, verifier: LoadedVerifier, num_golds: int) -> dict[str, object]:
    """Sizes, what was dropped, and what every filter finds, on or off."""
    from grpo_cli.tasks.data import DataSet
    from grpo_cli.tasks.survey import bad_golds, found_by_filters

    if not isinstance(task, DataSet):
        golds = [task.train(i).reference for i in range(min(num_golds, task.size))]
        checked = f"{bad_golds(verifier, golds)} of {len(golds)} checked"
        return {"training prompts": task.size, "golds refused": checked}
    selection = task.selection
    return {
        "training rows read": selection.num_train_rows,
        "training prompts": task.size,
        "held-out prompts": len(task.held_out_rows),
        "held out, in training": selection.contaminated,
        "dropped": selection.dropped,
        "filters find in training": found_by_filters(task.train_rows, verifier, num_golds),
        "filters find held out": found_by_filters(task.held_out_rows, verifier, num_golds),
    }


def _renderer(loaded: Loaded) -> Callable[[Prompt], str] | None:
    """A function from a prompt to its text with the chat template, or None without tokenizer."""
    from grpo_cli.prepare import prepare_libraries

    prepare_libraries()
    from transformers import AutoTokenizer

    from grpo_cli.hub import hub_or_cache
    from grpo_cli.policy.chat import chat_text
    from grpo_cli.policy.source import model_path

    model = loaded.recipe.model
    try:
        with hub_or_cache():
            tokenizer = AutoTokenizer.from_pretrained(model_path(model), revision=model.revision)
    except (OSError, ValueError):
        return None
    if not tokenizer.chat_template:
        return None

    def render(prompt: Prompt) -> str:
        return chat_text(tokenizer, prompt.messages, model.thinking)

    return render


def _profile_document(
    loaded: Loaded, k: int, rates: list[PromptRate], found: ZeroVariance
) -> dict[str, object]:
    from dataclasses import asdict

    from grpo_cli import difficulty
    from grpo_cli.stats import mean_interval

    recipe = loaded.recipe
    return {
        "setup": recipe.setup,
        "model": recipe.model.id,
        "k": k,
        "group_size": recipe.sampling.group_size,
        "temperature": recipe.sampling.temperature,
        **recipe.sampling.model_dump(include={"top_p", "top_k"}, exclude_defaults=True),
        "max_tokens": recipe.sampling.max_tokens,
        "pass_rate": _numbers(asdict(mean_interval([r.rate for r in rates]))),
        "zero_variance": {
            **_numbers(asdict(found.share)),
            "all_right": found.all_right,
            "all_wrong": found.all_wrong,
            "unbiased": found.unbiased,
        },
        "histogram": [
            {"low": low, "high": high, "prompts": count}
            for (low, high), count in zip(difficulty.BINS, difficulty.histogram(rates), strict=True)
        ],
        "levels": {
            str(level): {
                "prompts": len(group),
                "pass_rate": mean_interval([r.rate for r in group]).mean,
            }
            for level, group in difficulty.by_level(rates).items()
        },
        "prompts": [{**asdict(r), "rate": None if r.rate != r.rate else r.rate} for r in rates],
    }


def _show_profile(loaded: Loaded, k: int, rates: list[PromptRate], found: ZeroVariance) -> None:
    from grpo_cli import difficulty
    from grpo_cli.stats import mean_interval

    recipe = loaded.recipe
    size = recipe.sampling.group_size
    mean = mean_interval([r.rate for r in rates])
    samples = max(len(rates) * k, 1)
    _echo(
        f"{recipe.setup}, {recipe.model.id}: {len(rates)} training prompts x {k} samples, "
        f"{recipe.sampling.drawn()}, at most {recipe.sampling.max_tokens} tokens\n"
    )
    _echo(f"pass rate     {_percent(mean.mean)}  [{_percent(mean.low)}, {_percent(mean.high)}]")
    _echo(
        f"truncated     {_percent(sum(r.num_truncated for r in rates) / samples)}   "
        f"no answer {_percent(sum(r.num_unparsed for r in rates) / samples)}   "
        f"mean length {sum(r.mean_tokens for r in rates) / max(len(rates), 1):.0f} tokens\n"
    )
    counts = difficulty.histogram(rates)
    names = ["0", "to 25 %", "to 50 %", "to 75 %", "below 100 %", "100 %"]
    for name, count in zip(names, counts, strict=True):
        bar = "#" * round(40 * count / max(len(rates), 1))
        _echo(f"  {name:<12} {count:>5}  {bar}".rstrip())
    levels = difficulty.by_level(rates)
    if levels:
        _echo("")
    for level, group in levels.items():
        part = difficulty.expected_zero_variance(group, size).share.mean
        rate = mean_interval([r.rate for r in group]).mean
        _echo(
            f"  level {level}  {len(group):>4} prompts   pass rate {_percent(rate)}   "
            f"no contrast {_percent(part)}"
        )
    share = found.share
    interval = f"  [{_percent(share.low)}, {_percent(share.high)}]" if found.unbiased else ""
    _echo(f"\ngroups of {size} without contrast: {_percent(share.mean)}{interval}, of them")
    _echo(f"  all right {_percent(found.all_right)}, all wrong {_percent(found.all_wrong)}")
    if not found.unbiased:
        _echo(f"  from a beta-binomial fit: --k {size} or more gives an unbiased estimate")


def _percent(share: float) -> str:
    return "-" if share != share else f"{100 * share:.1f} %"


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """NaN as null: JSON has no NaN."""
    return {key: None if value != value else value for key, value in values.items()}


def _echo(text: str, *, err: bool = False) -> None:
    from grpo_cli.report import safe_text

    typer.echo(safe_text(text, None), err=err)


def _echo_json(document: Mapping[str, object]) -> None:
    from grpo_cli.report import JSON_VERSION

    typer.echo(json.dumps({"schema_version": JSON_VERSION, **document}, indent=2))


def _echo_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        _echo("  ".join(cells).rstrip())
