"""The same question must get the same verdict: again, in any order, alone, in any process.

Reward noise that comes from the order of a batch or from PYTHONHASHSEED cannot be reproduced, and a
verdict that moves to a neighbour trains the wrong sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from grpo_cli.audit.bench import Bench, key
from grpo_cli.seeds import seed63
from grpo_cli.types import Verdict

_ALONE, _THREADED = 12, 40


@dataclass(frozen=True, slots=True)
class Repeat:
    """One way of asking again.

    Example:
        Repeat("in another order", changed=0, asked=150, example=None)
    """

    how: str
    changed: int
    asked: int
    example: str | None = None


def determinism(bench: Bench, pairs: Sequence[tuple[str, str]]) -> list[Repeat]:
    """Every way, over `pairs` (distinct, all of which end in time)."""
    pairs = list(dict.fromkeys(pairs))
    first = bench(pairs)
    order = sorted(range(len(pairs)), key=lambda i: seed63("audit", "order", i))
    shuffled = bench([pairs[i] for i in order])
    back = dict(zip(order, shuffled, strict=True))
    ways = [
        ("again", pairs, first, bench(pairs)),
        ("a third time", pairs, first, bench(pairs)),
        ("in another order", pairs, first, [back[i] for i in range(len(pairs))]),
        ("one at a time", pairs[:_ALONE], first, [bench([pair])[0] for pair in pairs[:_ALONE]]),
    ]
    for seed in (1, 2):
        with bench.pool(workers=1, sample_limit_s=bench.sample_limit_s, hash_seed=seed) as pool:
            ways.append((f"in a process with PYTHONHASHSEED={seed}", pairs, first, pool(pairs)))
    if not any(verdict.missing for verdict in first):
        few = pairs[:_THREADED]
        with ThreadPoolExecutor(4) as threads:
            threaded = list(threads.map(lambda pair: bench.verifier(*pair), few))
        ways.append(("in threads of one process", few, first, threaded))
    return [_compare(*way) for way in ways]


def _compare(
    how: str,
    pairs: Sequence[tuple[str, str]],
    first: Sequence[Verdict],
    again: Sequence[Verdict],
) -> Repeat:
    changed = [
        text for (text, _), a, b in zip(pairs, first, again, strict=False) if key(a) != key(b)
    ]
    return Repeat(how, len(changed), len(pairs), changed[0] if changed else None)
