"""Verdicts from killable worker processes: a hang or a crash costs its own sample and no other.

Workers are subprocesses, not forks: the parent may hold a GPU and many threads. Each gets samples
in chunks and gives every verdict back at once, so the parent always knows which sample is in hand.
A worker over its time is killed with its process group, that sample becomes TIMEOUT, the rest of
its chunk goes to another worker. Verdicts come back in the order of the samples and do not depend
on chunks, workers or neighbours. Must not import torch.
"""

from __future__ import annotations

import math
import selectors
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from grpo_cli.errors import GrpoError, error
from grpo_cli.types import Status, Verdict
from grpo_cli.verify.load import broken
from grpo_cli.verify.process import Sample, State, Worker
from grpo_cli.verify.source import VerifierSource

_CHUNK_S = 0.05
"""Work that a worker is given at once, judged by the mean so far: long against a round trip, short
against the wait of an idle neighbour."""
_WORTH_S = 0.005
"""Less work than this is not shared: waking a second worker costs more."""
_CHUNK_MAX = 512
_CHUNK_CHARS = 2**20
_LOOK_S = 0.25
"""Longest time between looks for workers that died and left their pipe open."""
_GATHER_S = 5e-4
"""Pause that lets verdicts on cheap samples gather, so that not each one wakes the parent."""


class VerifierPool:
    """Batches of samples in, verdicts out. Workers start on first use and stay for the next batch.

    A context manager; `close` ends the workers, and so does the end of this process, however it
    comes. Calls from several threads wait for each other.

    Example:
        with VerifierPool(load_verifier("gsm8k", verifiers_dir()).source) as pool:
            pool([("so it is #### 16", "16")])[0].score == 1.0
    """

    def __init__(
        self,
        source: VerifierSource,
        *,
        workers: int = 2,
        sample_limit_s: float = 5.0,
        batch_limit_s: float | None = None,
        memory_bytes: int | None = 4 * 2**30,
        start_limit_s: float = 60.0,
        hash_seed: int = 0,
    ) -> None:
        """Nothing is started yet.

        Args:
            source: what the workers load.
            workers: most processes at work at once.
            sample_limit_s: wall seconds for one sample; then it is TIMEOUT.
            batch_limit_s: wall seconds for one call; what is unfinished then is TIMEOUT.
            memory_bytes: address space of a worker (RLIMIT_AS); None sets no limit.
            start_limit_s: wall seconds for importing the verifier, and again for a trial call,
                which pays for what the verifier imports late.
            hash_seed: PYTHONHASHSEED of the workers, so that set order is the same in every run.
        """
        assert workers >= 1, workers
        assert sample_limit_s > 0, sample_limit_s
        self.source = source
        self._workers = workers
        self._sample_limit_s = sample_limit_s
        self._batch_limit_s = batch_limit_s
        self._memory_bytes = memory_bytes
        self._start_limit_s = start_limit_s
        self._hash_seed = hash_seed
        self._live: list[Worker] = []
        self._mean_s = 1e-3
        self._trial = True
        self._lock = threading.Lock()
        # Linux ends a worker with the *thread* that started it, so one thread starts them all.
        self._starter: ThreadPoolExecutor | None = None
        self._finalizer = weakref.finalize(self, _kill_all, self._live)

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdict on each (text, reference), in order. Equal pairs are judged once.

        Raises:
            GrpoError: GR205 when a worker cannot load the verifier. Never for a sample.
        """
        with self._lock:
            try:
                return self._run(pairs)
            except BaseException:
                # Workers may still owe verdicts of this batch, which the next must not get.
                _kill_all(self._live)
                raise

    def close(self) -> None:
        """End the workers. A later call starts new ones."""
        with self._lock:
            _kill_all(self._live)
            if self._starter is not None:
                self._starter.shutdown()
                self._starter = None

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        place: dict[tuple[str, str], int] = {}
        for pair in pairs:
            place.setdefault(pair, len(place))
        batch = _Batch(list(place), self._batch_limit_s)
        self._listen(batch, wait=False)  # finds workers that died since the last batch
        while batch.verdicts.keys() != batch.samples.keys():
            self._hand_out(batch)
            self._listen(batch)
            self._judge_time(batch)
        return [batch.verdicts[place[pair]] for pair in pairs]

    def _hand_out(self, batch: _Batch) -> None:
        """Work for every idle worker; more workers while there is more."""
        for worker in self._live:
            if worker.idle and batch.todo:
                share = max(len(batch.todo) / self._workers, _WORTH_S / self._mean_s)
                worker.send(batch.take(math.ceil(min(share, _CHUNK_S / self._mean_s))))
        coming = sum(worker.state is not State.READY for worker in self._live)
        while len(self._live) < self._workers and len(batch.todo) > coming:
            self._live.append(self._start())
            coming += 1

    def _start(self) -> Worker:
        if self._starter is None:
            self._starter = ThreadPoolExecutor(1, "verifier-starter")
        args = (self.source, self._memory_bytes, self._hash_seed, self._trial)
        return self._starter.submit(Worker, *args).result()

    def _listen(self, batch: _Batch, wait: bool = True) -> None:
        """Take in every verdict there is, and the end of workers. Waits for something to happen."""
        if wait:
            ends = [w.since + self._limit_s(w) for w in self._live if not w.idle]
            wait_s = min([batch.deadline, *ends]) - time.monotonic()
            with selectors.DefaultSelector() as selector:
                for worker in self._live:
                    worker.register(selector)
                selector.select(max(0.0, min(wait_s, _LOOK_S)))
        came = 0
        for worker in list(self._live):
            for number, verdict in worker.pump():
                batch.verdicts[number] = verdict
                self._mean_s += 0.05 * (verdict.elapsed_s + 1e-5 - self._mean_s)
                came += 1
            if worker.ended:
                self._bury(worker, batch)
        if came and any(len(worker.pending) > 1 for worker in self._live):
            time.sleep(_GATHER_S)

    def _bury(self, worker: Worker, batch: _Batch) -> None:
        """A worker ended by itself: the sample in hand is lost, the rest is for another."""
        cause = worker.cause()
        if worker.refused is not None or worker.state is State.LOADING:
            raise self._cannot_start(worker.refused or f"{cause}; {worker.last_words()}")
        if worker.state is State.TRIAL:
            self._trial = False  # the samples will show what is wrong, each for itself
        self._drop(worker, batch, broken(f"the verifier's process died: {cause}"))

    def _judge_time(self, batch: _Batch) -> None:
        """End what is over its limit."""
        now = time.monotonic()
        for worker in list(self._live):
            over_s = now - worker.since
            if worker.idle or over_s <= self._limit_s(worker):
                continue
            if worker.state is State.LOADING:
                limit = f"it did not load within {self._start_limit_s:g} s"
                raise self._cannot_start(limit)
            if worker.state is State.TRIAL:
                self._trial = False
            detail = f"no verdict within {self._sample_limit_s:g} s"
            self._drop(worker, batch, _timeout(detail, over_s))
        if now >= batch.deadline:
            detail = f"the batch limit of {self._batch_limit_s:g} s"
            for worker in [w for w in self._live if w.pending]:
                self._drop(worker, batch, _timeout(detail, now - worker.since))
            for number in batch.samples.keys() - batch.verdicts.keys():
                batch.verdicts[number] = _timeout(detail, 0.0)
            batch.todo.clear()

    def _drop(self, worker: Worker, batch: _Batch, verdict: Verdict) -> None:
        """Kill a worker; `verdict` is for its sample in hand, the others go back."""
        self._live.remove(worker)
        worker.kill()
        if worker.pending:
            in_hand, *rest = worker.pending
            batch.verdicts[in_hand[0]] = verdict
            batch.todo.extendleft(reversed(rest))

    def _limit_s(self, worker: Worker) -> float:
        return self._sample_limit_s if worker.state is State.READY else self._start_limit_s

    def _cannot_start(self, why: str) -> GrpoError:
        return error(
            "GR205",
            f"a worker cannot load the verifier {self.source.name}: {why}",
            hint="its code must import within the memory and time limits of the pool",
            exit_code=3,
        )


class _Batch:
    """One call's samples and what is known of them."""

    def __init__(self, pairs: Sequence[tuple[str, str]], limit_s: float | None) -> None:
        self.samples: dict[int, Sample] = {i: (i, *pair) for i, pair in enumerate(pairs)}
        self.todo: deque[Sample] = deque(self.samples.values())
        self.verdicts: dict[int, Verdict] = {}
        self.deadline = math.inf if limit_s is None else time.monotonic() + limit_s

    def take(self, count: int) -> list[Sample]:
        """The next samples: at least one, at most `count`, and no more text than a chunk holds."""
        taken = [self.todo.popleft()]
        size = len(taken[0][1])
        while self.todo and len(taken) < min(count, _CHUNK_MAX) and size < _CHUNK_CHARS:
            size += len(self.todo[0][1])
            taken.append(self.todo.popleft())
        return taken


def _timeout(detail: str, elapsed_s: float) -> Verdict:
    return Verdict(math.nan, Status.TIMEOUT, detail=detail, elapsed_s=elapsed_s)


def _kill_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().kill()
