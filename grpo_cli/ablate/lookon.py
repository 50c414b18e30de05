"""Look on from another terminal: an ablation or a single run. Must not import torch."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from grpo_cli.ablate.finish import Screen
from grpo_cli.ablate.plan import Cell, Outline
from grpo_cli.ablate.store import read_outline
from grpo_cli.ablate.watch import Board
from grpo_cli.errors import error
from grpo_cli.rundir import is_held, read_info

_TICK_S = 0.5
_PIPE_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at, and the folder whose lock says that it goes on."""

    board: Board
    held: Path


def of_ablation(folder: Path) -> Watched:
    """An ablation.

    Raises:
        GrpoError: GR224 when its plan cannot be read.
    """
    return Watched(Board(folder, read_outline(folder)), folder)


def of_run(run: Path) -> Watched:
    """A single run, as an ablation of one cell.

    Raises:
        GrpoError: GR204 when its files are damaged.
    """
    info = read_info(run)
    try:
        steps = int(json.loads((run / "recipe.json").read_bytes())["optim"]["steps"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error("GR204", f"{run / 'recipe.json'} cannot be read") from problem
    name = f"{info.recipe}/{info.name}"
    outline = Outline("", {name: steps}, (Cell(name, info.seed, run.name),))
    return Watched(Board(run.parent, outline), run)


def look_on(watched: Watched) -> None:
    """Redraw the table until nobody trains any more; in a pipe, lines and the last table."""
    out = Console(highlight=False)
    screen = Screen("live" if out.is_terminal else "plain", out)
    watched.board.refresh()
    screen(watched.board, [])
    try:
        while is_held(watched.held):
            time.sleep(_TICK_S)
            screen(watched.board, watched.board.refresh())
        screen(watched.board, watched.board.refresh())
    finally:
        screen.close()
    if not out.is_terminal:
        show_table(watched)


def show_table(watched: Watched) -> None:
    """The table as it stands; in a pipe as wide as it needs to be."""
    watched.board.refresh()
    out = Console(highlight=False)
    width = out.width if out.is_terminal else _PIPE_WIDTH
    Console(highlight=False, width=width).print(watched.board.table(width))
