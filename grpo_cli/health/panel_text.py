"""The panel on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_cli.health.panel_info import MetricInfo

if TYPE_CHECKING:
    from rich.text import Text

_WIDTH = 96


def panel_text(infos: Sequence[MetricInfo]) -> Text:
    """A block per metric, with a heading where the area changes."""
    from rich.text import Text

    text = Text(no_wrap=True)
    area = None
    for info in infos:
        if info.area != area:
            area = info.area
            text.append(f"{area.upper()}\n", style="bold")
        text.append(f"  {info.name}", style="cyan").append(f"  [{info.unit}]\n", style="dim")
        for label, value in (
            ("", info.formula),
            ("why: ", info.why),
            ("healthy: ", info.healthy),
            ("on record: ", info.when),
        ):
            if value is not None:
                text.append(f"{_wrapped(label + value)}\n")
    text.rstrip()
    return text


def _wrapped(value: str) -> str:
    return textwrap.fill(
        value, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 8, break_long_words=False
    )
