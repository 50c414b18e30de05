"""Time: of ordinary calls, and of answers made to cost time.

A bomb must be cut by the pool that training uses, must not be paid, and must not cost the verdict
of a sample beside it. Seconds are measured on the machine at hand and never written to audit.json.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cli.audit.bench import Bench
from grpo_cli.audit.rows import accepted
from grpo_cli.audit.template import Wrapper
from grpo_cli.types import Status

BOMB_LIMIT_S = 2.0
_PATIENCE = 3.0
"""Wall time for which a bomb may hold the pool, in multiples of its limit, is this much per bomb:
the limit, a worker's start, and a busy machine."""

BOMBS = {
    "tower of powers": "9^{9^{9}}",
    "power in code": "9**9**9",
    "factorial": "(10^7)!",
    "nested factorials": "((20!)!)!",
    "binomial": "\\binom{10^8}{10^7}",
    "long sum": "\\sum_{k=1}^{10^9} \\frac{1}{k}",
    "2,000 brackets": "(" * 2000 + "1" + ")" * 2000,
    "2,000 open braces": "{" * 2000,
    "a million digits": "7" * 1_000_000,
    "huge exponent": "1e1000000000",
    "polynomial power": "(x+y+z)^{500}",
    "100,000 spaces": "1" + " " * 100_000 + "1",
    "20,000 plus signs": "1" + "+1" * 20_000,
    "5,000 roots": "\\sqrt{" * 5000 + "2" + "}" * 5000,
}


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of the ordinary calls.

    Example:
        Speed(calls=7210, p50_s=2e-5, p99_s=9e-5, max_s=0.002, timeouts=0)
    """

    calls: int
    p50_s: float
    p99_s: float
    max_s: float
    timeouts: int


@dataclass(frozen=True, slots=True)
class Bomb:
    """What became of one costly answer."""

    name: str
    status: Status
    seconds: float
    paid: bool
    neighbours: bool
    """Whether the ordinary answers in the same batch kept their verdicts."""

    @property
    def contained(self) -> bool:
        """Whether it came back, unpaid, and hurt nobody."""
        return not self.paid and self.neighbours and self.seconds < BOMB_LIMIT_S * _PATIENCE + 10


def speed(bench: Bench) -> Speed:
    """The times of all ordinary calls so far."""
    times = sorted(bench.elapsed_s)
    timeouts = bench.statuses[Status.TIMEOUT]
    if not times:
        return Speed(timeouts, float("nan"), float("nan"), float("nan"), timeouts)

    def at(share: float) -> float:
        return times[min(len(times) - 1, int(share * len(times)))]

    return Speed(len(times) + timeouts, at(0.5), at(0.99), times[-1], timeouts)


def bombs(bench: Bench, wrapper: Wrapper, plain: Sequence[tuple[str, str]]) -> list[Bomb]:
    """Every bomb in a batch with `plain` pairs that the verifier accepts."""
    found = []
    reference = plain[0][1]
    with bench.pool(workers=bench.workers, sample_limit_s=BOMB_LIMIT_S) as pool:
        pool(plain)  # the workers' start is not the bomb's time
        for name, text in BOMBS.items():
            begun = time.monotonic()
            first, *others = pool([(wrapper.fill(text), reference), *plain])
            seconds = time.monotonic() - begun
            fine = all(accepted(verdict) for verdict in others)
            # Whoever judges the format only may pay for any answer in it.
            paid = accepted(first) and bench.verifier.kind != "format"
            found.append(Bomb(name, first.status, seconds, paid, fine))
    return found
