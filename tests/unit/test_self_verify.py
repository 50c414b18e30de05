"""Self-verification: reading the verdict, paying for it, and who sees what."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from grpo_cli.errors import GrpoError
from grpo_cli.evaluate import EvalJob, Question, evaluate, summarise
from grpo_cli.objective.self_verify import JudgedSelfVerify, judged_reward
from grpo_cli.recipe.load import load
from grpo_cli.rollout.collect import Demand, collect
from grpo_cli.rollout.engine import Request
from grpo_cli.runfiles import eval_fields
from grpo_cli.self_metrics import Judged, self_scalars
from grpo_cli.self_verdict import SelfVerdict, answer_part, read_self_check
from grpo_cli.stats import auc, auc_interval
from grpo_cli.step_record import rollout_rows
from grpo_cli.tasks import load_task
from grpo_cli.tiny import TINY_DIR, TINY_JUDGE_DIR
from grpo_cli.types import Completion, Finish, Message, Prompt, Status, Verdict

RIGHT, WRONG, UNREADABLE = SelfVerdict.RIGHT, SelfVerdict.WRONG, SelfVerdict.UNREADABLE
PROMPT = Prompt("q", (Message("user", "1"),), "1", "numbers", self_check="mark")


def said(text: str, finish: Finish = Finish.STOP, logp: float = math.log(0.8)) -> Completion:
    end = (-0.01,) if finish is Finish.STOP else ()
    return Completion((5, 6, *((4,) if end else ())), text, (-1.0, logp, *end), finish, 0)


@pytest.mark.parametrize(
    ("text", "answer", "verdict"),
    [
        ("12+7=19#19?y", "12+7=19#19", RIGHT),
        ("#19?n", "#19", WRONG),
        ("#19?n ", "#19", WRONG),
        ("?y", "", RIGHT),
        ("#19", "#19", UNREADABLE),
        ("#19?", "#19", UNREADABLE),
        ("#19?x", "#19", UNREADABLE),
        ("#19?y?n", "#19", UNREADABLE),
        ("#19?y?y", "#19", UNREADABLE),
        ("#19?y#20", "#19", UNREADABLE),
        ("#19?y#20?y", "#19", UNREADABLE),
        ("", "", UNREADABLE),
    ],
)
def test_marks(text: str, answer: str, verdict: SelfVerdict) -> None:
    found = read_self_check(said(text), "mark")
    assert (found.answer, found.verdict) == (answer, verdict)
    assert answer_part(text, PROMPT) == answer
    assert math.isnan(found.p_right) == (verdict is UNREADABLE)


@pytest.mark.parametrize(
    ("text", "answer", "verdict"),
    [
        ("Why? \\boxed{19}\nSelf-check: right", "Why? \\boxed{19}\n", RIGHT),
        ("\\boxed{19}\n\n**Self-check:** Wrong.\n", "\\boxed{19}\n\n", WRONG),
        ("\\boxed{19}\n- `self-check: right`", "\\boxed{19}\n", RIGHT),
        ("<think>\nSelf-check: wrong\n</think>\\boxed{1}\nSelf-check: right",
         "<think>\nSelf-check: wrong\n</think>\\boxed{1}\n", RIGHT),
        ("\\boxed{19} Self-check: right", "\\boxed{19} Self-check: right", UNREADABLE),
        ("\\boxed{19}\nSelf-check: right or wrong", "\\boxed{19}\n", UNREADABLE),
        ("\\boxed{19}\nSelf-check: not wrong", "\\boxed{19}\n", UNREADABLE),
        ("\\boxed{19}\nSelf-check: wrong\nSelf-check: right", "\\boxed{19}\n", UNREADABLE),
        ("\\boxed{19}\nSelf-check: right\n\\boxed{20}", "\\boxed{19}\n", UNREADABLE),
        ("\\boxed{19}?y", "\\boxed{19}?y", UNREADABLE),
    ],
)  # fmt: skip
def test_lines(text: str, answer: str, verdict: SelfVerdict) -> None:
    found = read_self_check(said(text), "line")
    assert (found.answer, found.verdict) == (answer, verdict)


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
def test_the_probability_is_that_of_the_last_token_before_the_end(finish: Finish) -> None:
    assert read_self_check(said("#1?y", finish), "mark").p_right == pytest.approx(0.8)
    assert read_self_check(said("#1?n", finish), "mark").p_right == pytest.approx(0.2)


def test_honesty_is_paid_and_a_failed_verifier_pays_nothing() -> None:
    settings = JudgedSelfVerify()
    paid = {(s, v): judged_reward(s, v, settings) for s in (0.0, 1.0) for v in (0.0, 1.0, None)}
    assert paid == {
        (0, 0): pytest.approx(0.24),
        (0, 1): 0,
        (1, 0): pytest.approx(0.76),
        (1, 1): pytest.approx(1),
        (0, None): 0,
        (1, None): 0,
    }
    for verdict in (0.0, 1.0, None):
        assert math.isnan(judged_reward(math.nan, verdict, settings))


TEXTS = ("1?y", "1?n", "0?y", "0?n", "1", "1?y?y", "error?y", "error")


class Script:
    """An engine whose k-th completion of a prompt is TEXTS[k]."""

    def sync(self, adapter: str, version: int) -> None: ...

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        return [said(TEXTS[k % len(TEXTS)]) for k in range(len(requests))]


class Task:
    size = 100

    def train(self, index: int) -> Prompt:
        return Prompt(f"p{index}", PROMPT.messages, "1", "numbers", self_check="mark")

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        raise NotImplementedError


SEEN: list[str] = []


def verify(pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
    SEEN[:] = [text for text, _ in pairs]
    return [
        Verdict(math.nan, Status.ERROR)
        if text == "error"
        else Verdict(float(text == reference), Status.OK)
        for text, reference in pairs
    ]


def collected(*sets: str, coin_rate: float | None = None) -> Demand:
    small = ("sampling.prompts_per_step=2", "sampling.group_size=8")
    demand = Demand("a", 0, 1, load("self_verify", sets=[*small, *sets]).recipe)
    demand.coin_rate = coin_rate
    collect(Script(), [demand], Task(), lambda _: (1,), verify)
    return demand


def test_the_verifier_sees_the_answer_alone_and_statuses_stay_clear() -> None:
    demand = collected()
    assert SEEN[:8] == ["1", "1", "0", "0", "1", "1", "error", "error"]
    group = demand.kept[0]
    assert group.rewards[:6] == pytest.approx((1, 0.76, 0, 0.24, 0, 0))
    assert all(map(math.isnan, group.rewards[6:]))
    assert [v.status for v in group.verdicts] == [Status.OK] * 6 + [Status.ERROR] * 2
    assert [v.score for v in group.verdicts[:6]] == [1, 1, 0, 0, 1, 1]
    rows = list(rollout_rows(Demand("a", 0, 1, demand.recipe, dropped=demand.kept), None, {}))
    assert [row["self_verdict"] for row in rows[:4]] == ["right", "wrong", "right", "wrong"]
    assert [row["p_right"] for row in rows[3:5]] == [pytest.approx(0.2), None]


def test_without_the_method_only_the_answer_is_paid() -> None:
    group = collected("self_verify={kind: none}").kept[0]
    assert SEEN[0] == "1"
    assert group.rewards[:6] == (1, 1, 0, 0, 1, 1)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_coin_stands_for_the_verifier_in_both_terms(rate: float) -> None:
    group = collected("control={kind: random_reward}", coin_rate=rate).kept[0]
    paid = {0.0: (0, 0.24, 0, 0.24, 0, 0), 1.0: (1, 0.76, 1, 0.76, 0, 0)}
    assert group.rewards[:6] == pytest.approx(paid[rate])
    assert all(map(math.isnan, group.rewards[6:]))


def test_evaluation_scores_the_answer_and_keeps_the_verdict() -> None:
    job = EvalJob(None, 0, 8, 8, 1.0)
    (rows,) = evaluate(Script(), verify, [Question(PROMPT, (1,))], [job])
    assert SEEN == ["1", "1", "0", "0", "1", "1", "error", "error"]
    assert [r.text for r in rows] == list(TEXTS)
    assert [r.score for r in rows[:6]] == [1, 1, 0, 0, 1, 1]
    assert [r.self_verdict for r in rows[:6]] == [
        RIGHT,
        WRONG,
        RIGHT,
        WRONG,
        UNREADABLE,
        UNREADABLE,
    ]
    found = {k: v for k, v in summarise(rows).items() if k.startswith("eval/self_")}
    assert found == {
        "eval/self_judged_frac": pytest.approx(4 / 6),
        "eval/self_says_right_frac": 0.5,
        "eval/self_right_given_yes": 0.5,
        "eval/self_right_given_no": 0.5,
        "eval/self_honesty": 0.5,
        "eval/self_auc": 0.5,
    }
    plain = Prompt("q", PROMPT.messages, "1", "numbers")
    (rows,) = evaluate(Script(), verify, [Question(plain, (1,))], [job])
    assert list(TEXTS) == SEEN
    assert not any("self" in name for name in summarise(rows))
    assert not {"self_verdict", "p_right"} & eval_fields(rows[0]).keys()


def test_honesty_and_auc() -> None:
    answers = [Judged(1, RIGHT, 0.9), Judged(1, WRONG, 0.4), Judged(0, WRONG, 0.1)]
    found = self_scalars([*answers, Judged(0, UNREADABLE, math.nan)], "self/")
    assert found["self/judged_frac"] == 0.75
    assert found["self/honesty"] == pytest.approx(2 / 3)
    assert (found["self/right_given_yes"], found["self/right_given_no"]) == (1, 0.5)
    assert found["self/auc"] == 1
    assert self_scalars([], "self/") == {}


def test_auc_counts_pairs_within_strata() -> None:
    p, right = [0.9, 0.6, 0.6, 0.2], [True, True, False, False]
    assert auc(p, right, ["a"] * 4) == 0.875
    # Only how easy a question is: perfect between two levels, nothing within.
    p, right = [0.9] * 4 + [0.1] * 4, [True, True, True, False, True, False, False, False]
    level = ["easy"] * 4 + ["hard"] * 4
    assert auc(p, right, ["all"] * 8) == 0.75
    assert auc(p, right, level) == 0.5
    assert math.isnan(auc([0.5], [True], ["a"]))


def test_the_interval_resamples_questions() -> None:
    rng = np.random.default_rng(0)
    right = rng.random(800) < 0.5
    p = rng.random(800) + 0.3 * right
    alone, together = (
        auc_interval(p, right, ["all"] * 800, clusters, np.random.default_rng(1))
        for clusters in ([str(i) for i in range(800)], [str(i // 8) for i in range(800)])
    )
    assert alone.low < alone.mean < alone.high
    assert (alone.n, together.n) == (800, 100)
    repeated = auc_interval(
        np.repeat(p[:100], 8), np.repeat(right[:100], 8), ["all"] * 800,
        [str(i // 8) for i in range(800)], np.random.default_rng(1),
    )  # fmt: skip
    # Eight copies of an answer say no more than one.
    assert repeated.high - repeated.low > 2 * (alone.high - alone.low)


def test_a_chat_prompt_asks_for_the_verdict_and_the_tiny_one_need_not() -> None:
    chat = load("self_verify", setup="smollm2-arithmetic").recipe
    prompt = load_task(chat.task).train(0)
    assert prompt.self_check == "line"
    assert prompt.messages[-1].content.endswith("else `Self-check: wrong`.")
    plain = load_task(load("grpo", setup="smollm2-arithmetic").recipe.task).train(0)
    assert plain.self_check is None
    assert prompt.messages[-1].content.startswith(plain.messages[-1].content)
    tiny = load_task(load("self_verify").recipe.task).train(0)
    assert (tiny.self_check, tiny.id) == ("mark", load_task(load("grpo").recipe.task).train(0).id)
    assert tiny.messages == load_task(load("grpo").recipe.task).train(0).messages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"setup": "tiny"}, "tiny-judge"),
        ({"setup": "tiny-text"}, "no room for a verdict"),
        ({"sets": ["task.self_check=false"]}, "leave that key out"),
        ({"sets": ["self_verify.answer_weight=0", "self_verify.honesty_weight=0"]}, "nothing is"),
        ({"sets": ["self_verify.honesty_weight=-1"]}, "at least 0"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(GrpoError) as caught:
        load("self_verify", **arguments)
    assert message in str(caught.value)


def test_the_shipped_judge_is_what_the_docs_measured() -> None:
    weights = TINY_JUDGE_DIR / "model.safetensors"
    assert sum(path.stat().st_size for path in TINY_JUDGE_DIR.iterdir()) < 2_000_000
    assert (
        hashlib.sha256(weights.read_bytes()).hexdigest()
        == "b455eada3e5e9544ed1d922e180c419839f82af0a18420507e71f52c63af37af"
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (TINY_JUDGE_DIR / name).read_bytes() == (TINY_DIR / name).read_bytes()
    assert json.loads((TINY_JUDGE_DIR / "config.json").read_text())["dtype"] == "float16"
