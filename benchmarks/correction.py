"""Do the corrections bring back the on-policy gradient when the sampler is off?

    python benchmarks/correction.py [--factor 1.3] [--prompts 192] [--seeds 3]

On the tiny world: the gradient of one large batch sampled at the learner's own temperature, and
that of batches sampled at `factor` times it, with and without corrections. Prints the cosine of
each with the on-policy gradient of *another* seed (so that "on-policy" itself shows the noise) and
its length relative to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from grpo_cli.batch import build_batch
from grpo_cli.policy.policy import Policy, load_policy
from grpo_cli.recipe.load import load
from grpo_cli.recipe.locate import verifiers_dir
from grpo_cli.rollout.collect import Demand, collect
from grpo_cli.rollout.disturbed import DisturbedEngine
from grpo_cli.rollout.transformers_engine import TransformersEngine
from grpo_cli.tasks import load_task
from grpo_cli.update import update
from grpo_cli.verify.load import load_verifier

SETS = ("kl.beta=0", "optim.minibatches=1", "optim.max_grad_norm=1e9", "filter.kind=none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=1.3)
    parser.add_argument("--prompts", type=int, default=192)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    kinds = ("none", "tis_token", "tis_seq", "mis_token", "icepop")
    policy = load_policy(load("grpo").recipe.model, "cpu")
    policy.add_adapter("arm0", load("grpo").recipe.lora, 0)
    references = [_gradient(policy, "none", 1.0, 100 + s, args) for s in range(args.seeds)]
    rows: dict[str, list[tuple[float, float]]] = {"on-policy": []}
    for seed in range(args.seeds):
        target = references[seed]
        # The noise floor: the same estimator on other prompts.
        rows["on-policy"].append(_compare(references[(seed + 1) % args.seeds], target))
        for kind in kinds:
            found = _gradient(policy, kind, args.factor, seed, args)
            rows.setdefault(kind, []).append(_compare(found, target))
    print(f"{'correction':<11}  cosine by seed{'':<{max(0, 7 * args.seeds - 14)}}  mean   length")
    for name, values in rows.items():
        cosines = "  ".join(f"{cosine:+.2f}" for cosine, _ in values)
        mean = sum(c for c, _ in values) / len(values)
        length = sum(x for _, x in values) / len(values)
        print(f"{name:<11}  {cosines}  {mean:+.3f}  {length:.2f}")


def _gradient(
    policy: Policy, kind: str, factor: float, seed: int, args: argparse.Namespace
) -> torch.Tensor:
    """The gradient of one batch, flat; the adapter is left as it was."""
    wanted = f"correction.kind={kind}"
    recipe = load("grpo", sets=[*SETS, wanted, f"sampling.prompts_per_step={args.prompts}"]).recipe
    engine = DisturbedEngine(TransformersEngine(policy, 256), factor)
    judge = load_verifier(recipe.verifier.name, verifiers_dir())
    demand = Demand("arm0", seed, 1, recipe)
    task = load_task(recipe.task)
    collect(
        engine,
        [demand],
        task,
        lambda prompt: policy.render(prompt.messages),
        lambda pairs: [judge(text, reference) for text, reference in pairs],
    )
    parameters = policy.parameters("arm0")
    before = _flat(list(parameters.values()))
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    batch = build_batch(policy, "arm0", None, demand.kept, recipe)
    update(policy, "arm0", None, optimizer, batch, recipe, 0)
    gradient = before - _flat(list(parameters.values()))
    with torch.no_grad():
        start = 0
        for parameter in parameters.values():
            parameter.copy_(before[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
    return gradient


def _flat(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def _compare(gradient: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    cosine = torch.nn.functional.cosine_similarity(gradient, target, dim=0)
    return float(cosine), float(gradient.norm() / target.norm())


if __name__ == "__main__":
    main()
