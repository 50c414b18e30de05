"""The verifier under audit in the worker pool that training uses, with a clock on every call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from grpo_cli.types import Status, Verdict
from grpo_cli.verify.load import LoadedVerifier
from grpo_cli.verify.pool import VerifierPool
from grpo_cli.verify.source import VerifierSource

BATCH_LIMIT_S = 300.0
"""Wall seconds for one step of the audit: a verifier that hangs on every row must not run on."""
Key = tuple[float | None, Status, str | None, str | None]


class Bench:
    """Asks one verifier. A context manager; leaving it ends the workers.

    `elapsed_s` and `statuses` are of every call, bombs excepted: those go to a pool of their own.
    """

    def __init__(
        self, verifier: LoadedVerifier, *, workers: int = 2, sample_limit_s: float = 5.0
    ) -> None:
        self.verifier = verifier
        self.workers = workers
        self.sample_limit_s = sample_limit_s
        self.elapsed_s: list[float] = []
        self.statuses: Counter[Status] = Counter()
        self._pools: dict[str, VerifierPool] = {}

    def __call__(
        self, pairs: Sequence[tuple[str, str]], options: Mapping[str, str] | None = None
    ) -> list[Verdict]:
        """The verdict on each (text, reference), in order; with other options if given."""
        if not pairs:
            return []
        verdicts = self._pool(options or {})(pairs)
        self.elapsed_s += [v.elapsed_s for v in verdicts if v.status is not Status.TIMEOUT]
        self.statuses.update(v.status for v in verdicts)
        return verdicts

    def pool(self, *, workers: int, sample_limit_s: float, hash_seed: int = 0) -> VerifierPool:
        """A pool of its own, not yet started, for a check that must not share workers."""
        return VerifierPool(
            self.verifier.source,
            workers=workers,
            sample_limit_s=sample_limit_s,
            hash_seed=hash_seed,
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pool in self._pools.values():
            pool.close()

    def _pool(self, options: Mapping[str, str]) -> VerifierPool:
        source = self.verifier.source
        merged = dict(sorted({**source.options, **options}.items()))
        key = json.dumps(merged)
        if key not in self._pools:
            chosen: VerifierSource = replace(source, options=merged)
            self._pools[key] = VerifierPool(
                chosen,
                workers=self.workers,
                sample_limit_s=self.sample_limit_s,
                batch_limit_s=BATCH_LIMIT_S,
            )
        return self._pools[key]


def key(verdict: Verdict) -> Key:
    """What must be the same each time a verifier is asked: all but the time."""
    score = None if verdict.missing else verdict.score
    return score, verdict.status, verdict.parsed, verdict.detail
