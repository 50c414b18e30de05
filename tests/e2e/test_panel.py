"""A run's metrics, worked out again from its rollouts, evaluations and checkpoints.

Nothing here calls the functions under test: plain Python on the rows, the base model through
transformers, adapters through safetensors. Ratios, entropies and losses of the later minibatches
need weights that no file holds; tests/unit has those.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import sqlite3
import statistics
from pathlib import Path
from typing import Any

import pytest

import grpo_cli
from grpo_cli.errors import GrpoError
from grpo_cli.health.panel import PANEL, describe
from tests.e2e.conftest import grpo, only_run

STEPS, G = 3, 8
SETS = (
    f"optim.steps={STEPS}",
    "optim.minibatches=2",
    "optim.lr=3e-3",
    "kl.beta=0.02",
    "sampling.prompts_per_step=5",
    f"sampling.group_size={G}",
    "sampling.max_tokens=24",
    "overlong={kind: soft, cache_frac: 0.5, penalty: 0.5}",
    "eval.every=1",
    "eval.num_questions=12",
    "eval.samples_per_question=3",
    "checkpoint.every=1",
    f"checkpoint.keep={STEPS}",
    "health.reflection_markers=[WAIT, =1]",
)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of a finished run with an MLflow store."""
    cwd = tmp_path_factory.mktemp("panel")
    sets = [part for s in SETS for part in ("--set", s)]
    store = f"sqlite:///{cwd / 'mlflow.db'}"
    done = grpo("train", "dapo", *sets, cwd=cwd, MLFLOW_TRACKING_URI=store)
    assert done.returncode == 0, done.stderr
    return cwd


@pytest.fixture(scope="module")
def run(cwd: Path) -> Path:
    """The run's folder."""
    return only_run(cwd)


def scalars(run: Path) -> list[dict[str, float]]:
    """The scalars of every step; null is NaN."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: math.nan if v is None else v for k, v in line["scalars"].items()} for line in lines]


def rollouts(run: Path, step: int) -> Rows:
    with gzip.open(run / "rollouts" / f"step-{step:06d}.jsonl.gz", "rt") as stream:
        return [json.loads(line) for line in stream]


def answers(run: Path, step: int) -> Rows:
    return [
        json.loads(x)
        for x in (run / "eval" / f"step-{step:06d}.jsonl").read_text().split("\n")
        if x
    ]


def mean(values: Any) -> float:
    found = list(values)
    return statistics.fmean(found) if found else math.nan


def check(found: dict[str, float], want: dict[str, float], rel: float = 1e-6) -> None:
    for name, value in want.items():
        assert found[name] == pytest.approx(value, rel=rel, abs=1e-9, nan_ok=True), name


def marked(rows: Rows, text: str) -> float:
    return mean(any(marker in row[text].lower() for marker in ("wait", "=1")) for row in rows)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_what_was_sampled(run: Path, step: int) -> None:
    rows = rollouts(run, step)
    valid = [r for r in rows if r["status"] in ("ok", "unparsed")]
    right, wrong = ([r for r in valid if (r["score"] == 1) is want] for want in (True, False))
    assert len({r["finish"] for r in rows}) == 2, "nothing truncated: the test sees too little"

    def length(some: Rows) -> float:
        return mean(len(r["token_ids"]) for r in some)

    def repeated(row: dict[str, Any]) -> float:
        ids, seen, again = row["token_ids"], set(), 0
        for i in range(len(ids) - 3):
            gram = tuple(ids[i : i + 4])
            again += gram in seen
            seen.add(gram)
        return again / (len(ids) - 3)

    check(
        scalars(run)[step],
        {
            "reward/mean": mean(r["reward"] for r in valid),
            "reward/accuracy": mean(r["score"] for r in valid),
            "reward/penalty_mean": mean(r["reward"] - r["score"] for r in valid),
            "reward/format_frac": mean(r["status"] == "ok" for r in valid),
            "completion/mean_length": length(rows),
            "completion/mean_length_right": length(right),
            "completion/mean_length_wrong": length(wrong),
            "completion/mean_length_stopped": length([r for r in rows if r["finish"] == "stop"]),
            "completion/length_gap": length(wrong) - length(right),
            "completion/truncated_frac": mean(r["finish"] == "length" for r in rows),
            "completion/repeated_ngram_frac": mean(
                repeated(r) for r in rows if len(r["token_ids"]) >= 4
            ),
            "completion/reflection_right_frac": marked(right, "completion"),
            "completion/reflection_wrong_frac": marked(wrong, "completion"),
            "verifier/unparsed_frac": mean(r["status"] == "unparsed" for r in rows),
            "verifier/error_frac": mean(r["status"] == "error" for r in rows),
            "verifier/timeout_frac": mean(r["status"] == "timeout" for r in rows),
        },
    )


def test_the_trend_of_the_length_gap(run: Path) -> None:
    found = scalars(run)
    gaps = [found[step]["completion/length_gap"] for step in range(1, STEPS + 1)]
    assert [math.isnan(s["completion/length_gap_slope"]) for s in found[1:]] == [True, True, False]
    # Of three points the middle one does not move the slope.
    assert found[3]["completion/length_gap_slope"] == pytest.approx((gaps[2] - gaps[0]) / 2)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_groups(run: Path, step: int) -> None:
    rows = rollouts(run, step)
    groups = [rows[i : i + G] for i in range(0, len(rows), G)]
    assert all(len({r["prompt_id"] for r in group}) == 1 for group in groups)
    scores = [[r["score"] for r in g] for g in groups]
    rewards = [[r["reward"] for r in g] for g in groups]

    def similarity(group: Rows) -> float:
        sets = [
            {tuple(r["token_ids"][i : i + 3]) for i in range(len(r["token_ids"]) - 2)}
            for r in group
        ]
        pairs = itertools.combinations([s for s in sets if s], 2)
        return mean(len(a & b) / len(a | b) for a, b in pairs)

    parsed = [[r["parsed"] for r in g if r["parsed"] is not None] for g in groups]
    used = sum(g[0]["kept"] for g in groups)
    assert used < len(groups), "nothing dropped: the test sees too little"
    check(
        scalars(run)[step],
        {
            "group/mixed_frac": mean(len(set(s)) > 1 for s in scores),
            "group/all_right_frac": mean(set(s) == {1} for s in scores),
            "group/all_wrong_frac": mean(set(s) == {0} for s in scores),
            "group/zero_variance_frac": mean(len(set(r)) == 1 for r in rewards),
            "group/reward_var_mean": mean(mean(x * x for x in r) - mean(r) ** 2 for r in rewards),
            "group/sampled": len(groups),
            "group/used": used,
            "group/kept_frac": used / len(groups),
            "group/distinct_answers_frac": mean(len(set(p)) / len(p) for p in parsed if p),
            "group/similarity": mean(s for s in map(similarity, groups) if s == s),
            "group/effective": sum(any(r["advantage"] for r in g) for g in groups if g[0]["kept"]),
        },
    )


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_batch_and_mismatch(run: Path, step: int) -> None:
    kept = [r for r in rollouts(run, step) if r["kept"]]
    found = scalars(run)[step]
    adv = [r["advantage"] for r in kept]
    logp = [x for r in kept for x in r["learner_logp"]]
    sampler = [x for r in kept for x in r["sampler_logp"]]
    gaps = [a - b for a, b in zip(logp, sampler, strict=True)]
    before = [rollouts(run, s) for s in range(1, step + 1)]
    check(
        found,
        {
            "loss/tokens": len(logp),
            "loss/sequences": len(kept),
            "loss/masked_sequences": 0,
            "loss/masked_tokens": 0,
            "loss/weight_sum": 1,
            "loss/denominator": len(logp) / 2,
            "loss/effective_tokens_frac": sum(len(r["token_ids"]) for r in kept if r["advantage"])
            / len(logp),
            "advantage/mean": mean(adv),
            "advantage/std": statistics.stdev(adv),
            "advantage/min": min(adv),
            "advantage/max": max(adv),
            "advantage/positive_frac": mean(a > 0 for a in adv),
            "policy/prob_mean": mean(math.exp(x) for x in logp),
            "policy/prob_p10": quantile([math.exp(x) for x in logp], 0.1),
            "optim/updates": 2,
            "optim/lr": 3e-3,
            "optim/without_signal": 0,
            "optim/nonfinite": 0,
            "mismatch/staleness": 0,
            "progress/tokens_generated": sum(len(r["token_ids"]) for rows in before for r in rows),
            "progress/prompts_seen": sum(len(rows) / G for rows in before),
            "correction/modified_frac": 0,
        },
    )
    # Differences of two float32 numbers: the last digits are not theirs.
    check(
        found,
        {
            "mismatch/logp_abs_mean": mean(abs(x) for x in gaps),
            "mismatch/logp_abs_p99": quantile([abs(x) for x in gaps], 0.99),
            "mismatch/logp_abs_max": max(abs(x) for x in gaps),
            "mismatch/k1": -mean(gaps),
            "correction/weight_mean": mean(math.exp(x) for x in gaps),
            "correction/weight_max": max(math.exp(x) for x in gaps),
            "correction/ess_token": 1,
        },
        rel=1e-4,
    )
    # Half of the batch trains with the old policy itself, the other half one step later.
    shares = [found[f"ratio/{name}"] for name in ("min", "p1", "p50", "p99", "max")]
    assert shares == sorted(shares)
    assert shares[0] < 1 < shares[-1]
    sampled = sum(len(r["token_ids"]) for r in before[-1])
    assert found["time/rollout_tokens_per_s"] * found["time/rollout_s"] == pytest.approx(sampled)
    assert found["time/learner_tokens_per_s"] * found["time/learner_s"] == pytest.approx(len(logp))
    assert found["time/tokens_per_s"] * found["time/step_s"] == pytest.approx(sampled)


def test_the_distance_to_the_base_model(run: Path) -> None:
    """With the model as transformers loads it, one sequence at a time, and another formula."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(grpo_cli.__file__).parent / "tiny"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for step in range(1, STEPS + 1):
        kept = [r for r in rollouts(run, step) if r["kept"]]
        assert len(kept) > 32, "no choice among the sequences: the test sees too little"
        terms: list[float] = []
        for row in [kept[len(kept) * i // 32] for i in range(32)]:
            text = tokenizer.apply_chat_template(
                row["prompt"], tokenize=False, add_generation_prompt=True
            )
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([prompt + row["token_ids"]])
            with torch.no_grad():
                logits = model(ids).logits[0].double()
            for i, token in enumerate(row["token_ids"]):
                at = logits[len(prompt) + i - 1]
                rho = math.exp(float(at[token] - at.logsumexp(0)) - row["learner_logp"][i])
                terms.append(rho - 1 - math.log(rho))
        found = scalars(run)[step]["policy/kl_base"]
        assert found == pytest.approx(mean(terms), rel=1e-3, abs=1e-9)
        # The adapter starts as the base model.
        assert (found < 1e-9) == (step == 1)


def test_the_length_of_the_update(run: Path) -> None:
    from safetensors.numpy import load_file

    def adapter(step: int) -> dict[str, Any]:
        path = run / "checkpoints" / f"step-{step:06d}" / "adapter" / "adapter_model.safetensors"
        return load_file(path)

    for step in range(2, STEPS + 1):
        old, new = adapter(step - 1), adapter(step)
        squares = sum(float(((new[k] - old[k]).astype("float64") ** 2).sum()) for k in new)
        found = scalars(run)[step]["optim/update_norm"]
        assert found == pytest.approx(math.sqrt(squares), rel=1e-5)
    # B starts at 0, so its norm after one step is a part of what the first step moved.
    part = sum(float((v**2).sum()) for k, v in adapter(1).items() if "lora_B" in k)
    assert scalars(run)[1]["optim/update_norm"] >= 0.999 * math.sqrt(part) > 0


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_held_out_metrics(run: Path, step: int) -> None:
    rows = answers(run, step)
    assert len(rows) == 36
    valid = [r for r in rows if r["status"] in ("ok", "unparsed")]
    right, wrong = ([r for r in valid if (r["score"] == 1) is want] for want in (True, False))
    by_question = [rows[i : i + 3] for i in range(0, len(rows), 3)]
    check(
        scalars(run)[step],
        {
            "eval/accuracy": mean(r["score"] for r in valid),
            "eval/pass_at_3": mean(any(r["score"] == 1 for r in some) for some in by_question),
            "eval/format_frac": mean(r["status"] == "ok" for r in valid),
            "eval/mean_length": mean(r["num_tokens"] for r in rows),
            "eval/mean_length_right": mean(r["num_tokens"] for r in right),
            "eval/mean_length_wrong": mean(r["num_tokens"] for r in wrong),
            "eval/truncated_frac": mean(r["finish"] == "length" for r in rows),
            "eval/unparsed_frac": mean(r["status"] == "unparsed" for r in rows),
            "eval/verifier_error_frac": mean(r["status"] in ("error", "timeout") for r in rows),
            "eval/reflection_right_frac": marked(right, "text"),
            "eval/reflection_wrong_frac": marked(wrong, "text"),
        },
    )


def test_every_metric_of_the_run_is_in_the_panel_and_the_other_way_round(run: Path) -> None:
    found = scalars(run)
    for name in set().union(*found):
        try:
            describe(name)
        except GrpoError:
            pytest.fail(f"{name} is not described")
    for step in found[1:]:
        assert {i.name for i in PANEL if i.when is None} <= set(step)
    written = {describe(name).name for name in set().union(*found)}
    # What this run's settings leave out, and nothing else.
    assert {i.name for i in PANEL} - written == {
        "eval/next_token_direct",
        "reward/kl_mean",
        "correction/rejected_frac",
        "system/gpu_peak_gib",
        # Of a mixture of experts.
        "moe/sampler_drift",
        "moe/update_drift",
        "moe/load_imbalance",
        "moe/router_entropy",
        # Of a critic, of imitation, of verdicts on the own answer, of a sampling mask.
        *(i.name for i in PANEL if i.name.startswith(("value/", "self/", "eval/self_"))),
        "loss/positive_nll",
        "policy/support_mean",
        "policy/support_one_frac",
    }


def test_mlflow_has_the_same_names_and_values(cwd: Path, run: Path) -> None:
    with sqlite3.connect(cwd / "mlflow.db") as store:
        stored = store.execute("select step, key, value from metrics where is_nan = 0").fetchall()
    for step, want in enumerate(scalars(run)):
        known = {k: v for k, v in want.items() if not math.isnan(v)}
        assert {key: value for at, key, value in stored if at == step} == pytest.approx(known)
