"""How much of the returns' variance any critic could explain, beside what a run's own one did.

    python benchmarks/critic_ceiling.py RUN [--base] [--answers 100]

Samples answers to held-out questions from the run's last checkpoint (or its base model), then
`--samples` continuations from before every token of each; their mean score is the value that a
perfect critic would give there. Explained variance over tokens, as `value/explained_variance`, with
the noise of the finite number of continuations added back. Verdicts come from the run's verifier;
only for recipes without shaping of the reward.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch

from grpo_cli.policy.policy import load_policy
from grpo_cli.policy.state import load_adapter
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rollout.engine import Request
from grpo_cli.rollout.transformers_engine import TransformersEngine
from grpo_cli.seeds import sample_seed
from grpo_cli.tasks import load_task
from grpo_cli.verify.load import load_verifier

ADAPTER = "run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--base", action="store_true", help="the base model, without the adapter")
    parser.add_argument("--answers", type=int, default=100)
    parser.add_argument("--samples", type=int, default=16, help="continuations of each prefix")
    args = parser.parse_args()
    recipe = Recipe.model_validate_json((args.run / "recipe.json").read_text())
    policy = load_policy(recipe.model, "cpu")
    adapter = None
    if not args.base:
        policy.add_adapter(ADAPTER, recipe.lora, 0)
        last = max((args.run / "checkpoints").glob("step-*"))
        load_adapter(last / "adapter", policy, ADAPTER)
        adapter = ADAPTER
    engine = TransformersEngine(policy, recipe.engine.batch_rows)
    verifier = load_verifier(recipe.verifier.name, verifiers_dir())
    prompts = load_task(recipe.task, train=False).held_out(args.answers)
    limit, temperature = recipe.sampling.max_tokens, recipe.sampling.temperature

    def sampled(prefixes: list[tuple[int, tuple[int, ...]]], count: int) -> list[float]:
        """The mean score of `count` answers that go on from each (question, tokens so far)."""
        requests = [
            Request(
                policy.render(prompts[q].messages) + ids,
                sample_seed(1, len(ids), prompts[q].id, k),
                adapter,
                limit - len(ids),
                temperature,
            )
            for q, ids in prefixes
            for k in range(count)
        ]
        found = iter(engine.sample(requests))
        return [
            statistics.fmean(
                verifier(policy.decode(ids + next(found).token_ids), prompts[q].reference).score
                for _ in range(count)
            )
            for q, ids in prefixes
        ]

    own = engine.sample(
        [
            Request(
                policy.render(p.messages), sample_seed(0, 0, p.id, 0), adapter, limit, temperature
            )
            for p in prompts
        ]
    )
    scores = [verifier(c.text, p.reference).score for c, p in zip(own, prompts, strict=True)]
    prefixes = [(q, c.token_ids[:t]) for q, c in enumerate(own) for t in range(len(c.token_ids))]
    value_T = torch.tensor(sampled(prefixes, args.samples))
    return_T = torch.tensor([scores[q] for q, _ in prefixes])
    spread = float(return_T.var(correction=0))
    left = float((return_T - value_T).var(correction=0))
    noise = float((value_T * (1 - value_T)).mean()) / (args.samples - 1)
    print(
        f"accuracy {statistics.fmean(scores):.3f} of {len(scores)} answers, {len(prefixes)} "
        f"tokens; a perfect critic explains {1 - (left - noise) / spread:.3f} of the variance"
    )
    lines = [
        json.loads(x)["scalars"] for x in (args.run / "metrics.jsonl").read_text().split("\n") if x
    ]
    seen = [s.get("value/explained_variance") for s in lines]
    known = [v for v in seen if v is not None and not math.isnan(v)]
    if known:
        print(f"this run's critic, mean of its last ten steps: {statistics.fmean(known[-10:]):.3f}")


if __name__ == "__main__":
    main()
