"""The worker pool: a hang or a crash costs its own sample, and nothing else changes."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.types import Status, Verdict
from grpo_cli.verify.load import LoadedVerifier, load_verifier
from grpo_cli.verify.pool import VerifierPool

CODE = """
import ctypes, os, signal, subprocess, sys, threading, time
from grpo_cli.types import Status, Verdict

def verify(text, reference):
    word, _, rest = text.partition(" ")
    if word == "hang":
        while True: pass
    if word == "sleep":
        time.sleep(float(rest))
    if word == "exit":
        os._exit(int(rest))
    if word == "segfault":
        ctypes.string_at(0)
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "raise":
        raise ValueError(rest)
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "print":
        print("x" * int(rest))
        os.write(1, b"y" * int(rest))
        sys.stdout.flush()
    if word == "memory":
        return Verdict(float(len(bytearray(int(rest))) > 0), Status.OK)
    if word == "long":
        return Verdict(1.0, Status.OK, parsed="z" * int(rest))
    if word == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", rest])
        while True: pass
    if word == "fork" and os.fork() == 0:
        return Verdict(0.0, Status.OK)
    if word == "input":
        return Verdict(float(sys.stdin.read() == ""), Status.OK)
    if word == "set":
        return Verdict(1.0, Status.OK, parsed=" ".join({"a", "b", "c", "d", "e", "f"}))
    if word == "modules":
        return Verdict(1.0, Status.OK, parsed=" ".join(sorted(sys.modules)))
    if word == "thread":
        return Verdict(float(threading.current_thread() is threading.main_thread()), Status.OK)
    if word == "unparsed":
        return Verdict(0.0, Status.UNPARSED, detail="no answer")
    return Verdict(float(text == reference), Status.OK, parsed=text)
"""


@pytest.fixture
def verifier(tmp_path: Path) -> LoadedVerifier:
    return make(tmp_path, CODE)


def make(folder: Path, code: str) -> LoadedVerifier:
    (folder / "mine").mkdir()
    (folder / "mine" / "verifier.py").write_text(code)
    return load_verifier("mine", folder)


def facts(verdicts: Sequence[Verdict]) -> list[tuple]:
    """Everything but the time; NaN as None, so that equal lists are equal."""
    return [
        (None if math.isnan(v.score) else v.score, v.status, v.parsed, v.detail) for v in verdicts
    ]


def plain(n: int) -> list[tuple[str, str]]:
    return [(str(i), str(i if i % 3 else -1)) for i in range(n)]


def test_the_same_as_in_process_alone_shuffled_and_with_any_number_of_workers(
    verifier: LoadedVerifier,
) -> None:
    pairs = [*plain(200), ("unparsed", ""), ("raise bad reference", ""), ("\ud800 \x00é", "x")]
    pairs += [("5", "5")] * 3
    wanted = facts([verifier(*pair) for pair in pairs])
    order = list(range(len(pairs)))
    random.Random(0).shuffle(order)
    for workers in (1, 2):
        with VerifierPool(verifier.source, workers=workers) as pool:
            assert facts(pool(pairs)) == wanted
            shuffled = facts(pool([pairs[i] for i in order]))
            assert shuffled == [wanted[i] for i in order]
            assert [facts(pool([pair]))[0] for pair in pairs[:5]] == wanted[:5]
            assert pool([]) == []


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("exit 3", "exit code 3"),
        ("exit 0", "exit code 0"),
        ("segfault", "SIGSEGV"),
        ("killed", "SIGKILL (out of memory?)"),
        ("interrupt", "SIGINT"),
    ],
)
def test_a_crash_costs_its_own_sample(verifier: LoadedVerifier, text: str, detail: str) -> None:
    pairs = plain(40)
    with VerifierPool(verifier.source, workers=1) as pool:
        wanted = facts(pool(pairs))
        got = pool([*pairs[:20], (text, ""), *pairs[20:]])
    crashed = got.pop(20)
    assert crashed.status is Status.ERROR
    assert math.isnan(crashed.score)
    assert detail in (crashed.detail or "")
    assert facts(got) == wanted


def test_hangs_cost_their_own_samples_and_little_time(verifier: LoadedVerifier) -> None:
    """1,000 samples, 5 of them hanging: 5 limits shared by 2 workers, the other 995 unchanged."""
    pairs = plain(1000)
    with VerifierPool(verifier.source, workers=2, sample_limit_s=0.4) as pool:
        wanted = facts(pool(pairs))
        start = time.perf_counter()
        pool(pairs)
        without_s = time.perf_counter() - start
        hanging = [3, 4, 400, 997, 999]
        mixed = list(pairs)
        for i in hanging:
            mixed[i] = (f"hang {i}", "")
        start = time.perf_counter()
        got = pool(mixed)
        extra_s = time.perf_counter() - start - without_s
    for i, verdict in enumerate(got):
        if i in hanging:
            assert (verdict.status, verdict.detail) == (Status.TIMEOUT, "no verdict within 0.4 s")
            assert 0.4 <= verdict.elapsed_s < 5
            assert math.isnan(verdict.score)
        else:
            assert facts([verdict]) == wanted[i : i + 1]
    # 3 x 0.4 s on the worker that got three of them, and as many new workers.
    assert extra_s < 10, extra_s


def test_a_hang_given_eight_times_is_waited_for_once(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1, sample_limit_s=0.5) as pool:
        pool([("1", "1")])
        start = time.perf_counter()
        got = pool([("hang", "")] * 8)
    assert [v.status for v in got] == [Status.TIMEOUT] * 8
    assert time.perf_counter() - start < 3


def test_slow_but_within_the_limit_is_not_cut(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1, sample_limit_s=1.0) as pool:
        got = pool([(f"sleep 0.3 {i}", "") for i in range(1)] + [("sleep 0.3", ""), ("1", "1")])
    # Several slow samples in one chunk add up to more than the limit of each.
    assert got[1].status is got[2].status is Status.OK
    with VerifierPool(verifier.source, workers=1, sample_limit_s=0.5) as pool:
        pairs = [(f"sleep 0.1{i}", "") for i in range(8)]
        assert {v.status for v in pool(pairs)} == {Status.OK}


def test_the_batch_limit_ends_what_is_unfinished(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=2, batch_limit_s=1.0) as pool:
        got = pool([("1", "1"), ("hang a", ""), ("hang b", ""), ("2", "2")])
        assert [v.status for v in got[1:3]] == [Status.TIMEOUT] * 2
        assert got[1].detail == "the batch limit of 1 s"
        assert pool([("3", "3")])[0].score == 1.0  # and the next batch starts clean


def test_printing_and_reading_cannot_disturb_the_protocol(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1) as pool:
        got = pool([("print 3000000", ""), ("input", ""), ("1", "1"), ("fork", "fork"), ("2", "2")])
    assert [v.score for v in got] == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_a_verdict_too_long_to_send_is_an_error(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1) as pool:
        got = pool([("long 1000000", ""), ("long 20000000", ""), ("1", "1")])
    assert [v.status for v in got] == [Status.OK, Status.ERROR, Status.OK]
    assert "longer than" in (got[1].detail or "")


def test_memory_is_limited(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1, memory_bytes=2**29) as pool:
        got = pool([(f"memory {2**27}", ""), (f"memory {2**30}", ""), ("1", "1")])
    assert [v.status for v in got] == [Status.OK, Status.ERROR, Status.OK]
    assert "MemoryError" in (got[1].detail or "")


def test_what_a_killed_worker_started_dies_with_it(verifier: LoadedVerifier) -> None:
    mark = f"mark-{os.getpid()}-{time.time_ns()}"
    with VerifierPool(verifier.source, workers=1, sample_limit_s=0.7) as pool:
        assert pool([(f"child {mark}", "")])[0].status is Status.TIMEOUT
        _until(lambda: not _running(mark))


def test_sets_are_in_one_order_whatever_the_parent_has(verifier: LoadedVerifier) -> None:
    with (
        VerifierPool(verifier.source, workers=1) as one,
        VerifierPool(verifier.source, workers=1, hash_seed=0) as same,
    ):
        assert facts(one([("set", "")])) == facts(same([("set", "")]))
    code = (
        "import sys; from pathlib import Path; from grpo_cli.verify.load import load_verifier; "
        "from grpo_cli.verify.pool import VerifierPool; "
        "pool = VerifierPool(load_verifier(sys.argv[1], Path('.')).source); "
        "print(pool([('set', '')])[0].parsed)"
    )
    seen = set()
    for seed in ("0", "1", "2", "3"):
        args = [sys.executable, "-c", code, str(verifier.path)]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        seen.add(subprocess.run(args, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(seen) == 1, seen


def test_a_worker_is_light_and_calls_from_its_main_thread(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1) as pool:
        modules, thread = pool([("modules", ""), ("thread", "")])
    loaded = set((modules.parsed or "").split())
    heavy = {"torch", "transformers", "numpy", "scipy", "pydantic", "rich", "mlflow", "asyncio"}
    assert not loaded & heavy
    assert thread.score == 1.0


def test_calls_from_several_threads_do_not_mix(verifier: LoadedVerifier) -> None:
    batches = [[(str(i * 100 + k), str(i * 100 + k)) for k in range(50)] for i in range(6)]
    with VerifierPool(verifier.source, workers=2) as pool, ThreadPoolExecutor(6) as threads:
        got = list(threads.map(pool, batches))
        for pairs, verdicts in zip(batches, got, strict=True):
            assert [v.parsed for v in verdicts] == [text for text, _ in pairs]
    # The thread that called first is gone; its workers serve on.
    with VerifierPool(verifier.source, workers=1) as pool:
        first = threading.Thread(target=pool, args=([("1", "1")],))
        first.start()
        first.join()
        workers = list(pool._live)
        assert pool([("2", "2")])[0].score == 1.0
        assert pool._live == workers


def test_a_worker_that_died_while_idle_is_replaced(verifier: LoadedVerifier) -> None:
    with VerifierPool(verifier.source, workers=1) as pool:
        pool([("1", "1")])
        os.kill(pool._live[0]._process.pid, signal.SIGKILL)
        time.sleep(0.1)
        assert pool([("2", "2")])[0].score == 1.0


def test_an_interrupt_in_the_parent_leaves_no_old_verdicts(verifier: LoadedVerifier) -> None:
    # A process that was started in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with VerifierPool(verifier.source, workers=2) as pool:
        pool(plain(4))
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool([("sleep 30", ""), *plain(50)])
        signal.signal(signal.SIGINT, before)
        assert [v.parsed for v in pool([("a", "a"), ("b", "b")])] == ["a", "b"]


def test_workers_die_with_a_parent_that_is_killed(verifier: LoadedVerifier) -> None:
    code = (
        "import sys; from pathlib import Path; from grpo_cli.verify.load import load_verifier; "
        "from grpo_cli.verify.pool import VerifierPool; "
        "pool = VerifierPool(load_verifier(sys.argv[1], Path('.')).source, workers=1); "
        "pool([('1', '1')]); print(pool._live[0]._process.pid, flush=True); pool([('hang', '')])"
    )
    args = [sys.executable, "-c", code, str(verifier.path)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert _alive(worker)
        parent.kill()
    _until(lambda: not _alive(worker))


def test_close_ends_the_workers_and_a_later_call_starts_new_ones(
    verifier: LoadedVerifier,
) -> None:
    pool = VerifierPool(verifier.source, workers=2)
    assert not pool._live
    pool(plain(2000))
    pids = [worker._process.pid for worker in pool._live]
    assert pids
    pool.close()
    assert not any(map(_alive, pids))
    assert pool([("1", "1")])[0].score == 1.0
    pool.close()


def test_options_reach_the_workers(tmp_path: Path) -> None:
    code = (
        "from grpo_cli.types import Status, Verdict\n"
        "OPTIONS = {'case': ('strict', 'ignore')}\n"
        "def verify(text, reference, case='strict'):\n"
        "    return Verdict(1.0, Status.OK, parsed=case)\n"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "verifier.py").write_text(code)
    for options in ({}, {"case": "ignore"}):
        source = load_verifier("mine", tmp_path, options).source
        with VerifierPool(source, workers=1) as pool:
            assert pool([("", "")])[0].parsed == options.get("case", "strict")


def test_code_that_changed_since_it_was_loaded_is_refused(verifier: LoadedVerifier) -> None:
    (verifier.path / "verifier.py").write_text(CODE + "\n# edited\n")
    with (
        VerifierPool(verifier.source) as pool,
        pytest.raises(GrpoError, match=r"GR205.*has changed since") as caught,
    ):
        pool([("1", "1")])
    assert caught.value.exit_code == 3


def test_a_verifier_that_only_the_parent_can_load(tmp_path: Path) -> None:
    code = (
        f"import os\nif os.getpid() != {os.getpid()}: os._exit(7)\n"
        "def verify(text, reference): return None\n"
    )
    with (
        VerifierPool(make(tmp_path, code).source) as pool,
        pytest.raises(GrpoError, match=r"GR205.*exit code 7"),
    ):
        pool([("1", "1")])
    slow = f"import os, time\nif os.getpid() != {os.getpid()}: time.sleep(60)\n" + CODE
    (tmp_path / "slow").mkdir()
    with (
        VerifierPool(make(tmp_path / "slow", slow).source, start_limit_s=0.5) as pool,
        pytest.raises(GrpoError, match=r"GR205.*did not load within 0.5 s"),
    ):
        pool([("1", "1")])


@pytest.mark.parametrize("body", ["os._exit(9)", "time.sleep(60)"])
def test_a_verifier_that_fails_on_everything_fails_sample_by_sample(
    tmp_path: Path, body: str
) -> None:
    code = f"import os, time\ndef verify(text, reference):\n    {body}\n"
    source = make(tmp_path, code).source
    with VerifierPool(source, workers=2, sample_limit_s=0.3, start_limit_s=2.0) as pool:
        got = pool([("1", "1"), ("2", "2"), ("3", "3")])
    wanted = Status.ERROR if "exit" in body else Status.TIMEOUT
    assert [v.status for v in got] == [wanted] * 3


def test_what_is_imported_late_does_not_count_against_the_first_sample(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from grpo_cli.types import Status, Verdict\n"
        "warm = []\n"
        "def answer(reference): return '#' + reference\n"
        "def verify(text, reference):\n"
        "    if text.startswith('#') and not warm:\n"
        "        time.sleep(0.8); warm.append(1)\n"
        "    return Verdict(1.0, Status.OK)\n"
    )
    source = make(tmp_path, code).source
    with VerifierPool(source, workers=2, sample_limit_s=0.4) as pool:
        got = pool([(f"#{i}", str(i)) for i in range(50)])
    assert {v.status for v in got} == {Status.OK}


def test_cheap_samples_cost_little(verifier: LoadedVerifier) -> None:
    """Loose: about 10 us of overhead a sample was measured; ten times that is a broken design."""
    pairs = plain(5000)
    with VerifierPool(verifier.source, workers=1) as pool:
        pool(pairs)
        start = time.perf_counter()
        pool(pairs)
        elapsed_s = time.perf_counter() - start
    assert elapsed_s / len(pairs) < 5e-4


def _until(true: Callable[[], bool]) -> None:
    """Wait a little for the kernel to end what was killed."""
    for _ in range(100):
        if true():
            return
        time.sleep(0.05)
    pytest.fail("a process outlived what it belongs to")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _running(mark: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False
