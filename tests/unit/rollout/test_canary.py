"""The canary names the side that is wrong. Each engine below is broken in one way."""

from __future__ import annotations

import pytest
import torch

from grpo_cli.errors import GrpoError
from grpo_cli.policy.policy import Policy
from grpo_cli.recipe.load import load
from grpo_cli.rollout.canary import Canary, tolerance
from grpo_cli.rollout.disturbed import DisturbedEngine, disturbed
from grpo_cli.rollout.engine import Scoring
from grpo_cli.rollout.transformers_engine import TransformersEngine

PROMPT = tuple(4 + i % 12 for i in range(40))


class Broken(TransformersEngine):
    """Scores as `change` says."""

    def __init__(self, policy: Policy, change) -> None:
        super().__init__(policy, 8)
        self.change = change

    def score(self, scorings):
        return [self.change(super(Broken, self).score, s) for s in scorings]


def without_adapter(score, scoring: Scoring) -> tuple[float, ...]:
    return score([Scoring(None, scoring.prompt_ids, scoring.completion_ids)])[0]


def other_adapter(score, scoring: Scoring) -> tuple[float, ...]:
    adapter = "arm2" if scoring.adapter else None
    return score([Scoring(adapter, scoring.prompt_ids, scoring.completion_ids)])[0]


def other_base(score, scoring: Scoring) -> tuple[float, ...]:
    return tuple(x - 0.3 for x in score([scoring])[0])


def not_finite(score, scoring: Scoring) -> tuple[float, ...]:
    return tuple(float("nan") if scoring.adapter else x for x in score([scoring])[0])


def test_a_sound_engine_passes_and_the_adapter_is_seen(policy: Policy) -> None:
    canary = Canary(policy, TransformersEngine(policy, 8), [PROMPT], 1e-3)
    readings = canary.check("arm0")
    assert readings["canary/logp_abs_mean"] < 1e-5
    assert readings["canary/moved"] > 1e-3
    assert canary.check("arm1")["canary/moved"] == 0, "a fresh adapter is the base model"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without_adapter, "the sampler answers as the base model"),
        (other_adapter, "another adapter or other weights"),
        (other_base, "already without an adapter they differ by 0.3 nats"),
        (not_finite, "the sampler's log-probabilities are not finite"),
    ],
)
def test_the_broken_side_is_named(policy: Policy, change, what: str) -> None:
    policy.add_adapter("arm2", load("dapo").recipe.lora, 2)
    with torch.no_grad():
        for name, parameter in policy.parameters("arm2").items():
            if "lora_B" in name:
                parameter += 0.05
    canary = Canary(policy, Broken(policy, change), [PROMPT], 1e-3)
    with pytest.raises(GrpoError, match=what) as caught:
        canary.check("arm0")
    assert caught.value.exit_code == 3
    assert caught.value.problems[0].code == "GR306"


def test_weights_before_the_last_sync_are_named(policy: Policy) -> None:
    frozen = {}

    def stale(score, scoring: Scoring) -> tuple[float, ...]:
        return frozen.setdefault(scoring.adapter, score([scoring])[0])

    canary = Canary(policy, Broken(policy, stale), [PROMPT], 10.0)
    canary.check("arm0")
    with torch.no_grad():
        for parameter in policy.parameters("arm0").values():
            parameter *= 1.5
    with pytest.raises(GrpoError, match="weights before the last sync"):
        canary.check("arm0")


def test_a_learner_without_its_adapter_is_named(policy: Policy, monkeypatch) -> None:
    engine = TransformersEngine(policy, 8)
    scores = {a: engine.score([Scoring(a, PROMPT[:24], PROMPT[24:])])[0] for a in ("arm0", None)}
    monkeypatch.setattr(engine, "score", lambda scorings: [scores[s.adapter] for s in scorings])
    whole = policy.logprobs
    monkeypatch.setattr(policy, "logprobs", lambda adapter, *rest: whole(None, *rest))
    with pytest.raises(GrpoError, match="the learner answers as the base model"):
        Canary(policy, engine, [PROMPT], 1e-3).check("arm0")


def test_tolerance_follows_the_precision() -> None:
    def of(*sets: str) -> float:
        return tolerance(load("dapo", sets=list(sets)).recipe)

    assert of() == 1e-3
    assert of("learner.dtype=bfloat16") == of("engine.dtype=bfloat16") > of()
    assert of("engine.quantization=fp8") > of("learner.dtype=bfloat16")


def test_a_disturbed_sampler_is_asked_for_by_name(policy: Policy, monkeypatch) -> None:
    engine = TransformersEngine(policy, 8)
    assert disturbed(engine) is engine
    monkeypatch.setenv("GRPO_DISTURB_SAMPLER", "temperature:1.3")
    assert disturbed(engine) == DisturbedEngine(engine, 1.3)
    for bad in ("temperature", "noise:1", "temperature:-1", "temperature:x"):
        monkeypatch.setenv("GRPO_DISTURB_SAMPLER", bad)
        with pytest.raises(GrpoError, match="cannot be read"):
            disturbed(engine)
