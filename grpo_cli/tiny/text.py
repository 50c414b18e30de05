"""Make the shipped text: `python -m grpo_cli.tiny.text [OUT]`, under a second.

A document is one line that counts up or down in steps of one size: `14+9=23;23+9=32;32+9=41.`. Its
first sum is free; from then on every character is decided by what stands before it, except whether
the line ends after a sum. The tiny model has never seen such lines and is unsure at many places, so
thinking can put its predictions right. Numbers are 0 to 99, as in the model's corpus.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from grpo_cli.tiny import TINY_TEXT

SEED = 0
NUM_DOCUMENTS = 1600
MAX_NUMBER, MAX_STEP = 99, 24
SUMS = (3, 5)  # fewest and most in a line


def document(first: int, step: int, num_sums: int) -> str:
    """The line that begins at `first` and goes up by `step`, or down when it is negative."""
    sums, number = [], first
    for _ in range(num_sums):
        sums.append(f"{number}{step:+d}={number + step}")
        number += step
    return ";".join(sums) + "."


def documents() -> list[str]:
    """The lines of the shipped text, all different, no two with the same first sum."""
    every = []
    for first in range(1, MAX_NUMBER + 1):
        for step in (*range(-MAX_STEP, -1), *range(2, MAX_STEP + 1)):
            room = (first if step < 0 else MAX_NUMBER - first) // abs(step)
            if room >= SUMS[0]:
                every.append((first, step, min(room, SUMS[1])))
    # Of `random` only random() is used: the same numbers on every platform and version.
    rng = random.Random(SEED)
    drawn = sorted(every, key=lambda _: rng.random())[:NUM_DOCUMENTS]
    return [
        document(first, step, SUMS[0] + int(rng.random() * (most - SUMS[0] + 1)))
        for first, step, most in drawn
    ]


def main(out: Path) -> None:
    """Write the text."""
    out.write_text("".join(f"{line}\n" for line in documents()), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TINY_TEXT)
