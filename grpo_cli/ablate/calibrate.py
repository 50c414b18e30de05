"""Times a piece of training work: `python -m grpo_cli.ablate.calibrate RECIPE_AS_JSON`.

Reads a number of threads per line and answers with the seconds that the work took.
"""

from __future__ import annotations

import sys
import time

from grpo_cli.prepare import prepare_libraries
from grpo_cli.recipe.schema import Lora, Recipe

_ROWS = 64
_PROMPT, _COMPLETION = 14, 32
_REPEATS = 2


def main() -> int:
    """Entry point."""
    prepare_libraries()
    import torch

    from grpo_cli.policy.policy import load_policy
    from grpo_cli.rollout.engine import Request
    from grpo_cli.rollout.transformers_engine import TransformersEngine

    recipe = Recipe.model_validate_json(sys.argv[1])
    policy = load_policy(recipe.model, recipe.device, recipe.learner)
    policy.add_adapter("cell0", Lora(), 0)
    engine = TransformersEngine(policy, _ROWS)
    prompts = [tuple(range(3, 3 + _PROMPT))] * _ROWS
    completions = [tuple(range(3, 3 + _COMPLETION))] * _ROWS

    def step() -> None:
        """Two parts of learning to one of sampling, about as in a run."""
        for _ in range(2):
            logp_T, _ = policy.logprobs("cell0", prompts, completions, 1.0)
            logp_T.sum().backward()
        engine.sample([Request(p, i, "cell0", _COMPLETION, 1.0) for i, p in enumerate(prompts)])

    step()
    print("ready", flush=True)  # noqa: T201 this is the data
    for line in sys.stdin:
        torch.set_num_threads(int(line))
        begun = time.perf_counter()
        for _ in range(_REPEATS):
            step()
        print(time.perf_counter() - begun, flush=True)  # noqa: T201 this is the data
    return 0


if __name__ == "__main__":
    sys.exit(main())
