"""What no single key of a recipe can say: which choices exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_cli.recipe.schema import Recipe


def disagreement(recipe: Recipe) -> str | None:
    """The first pair of choices that contradict each other, and what to do; None if none does."""
    rules = (_correction, _mean_scale, _critic, _self_check, _minibatches, _truncation)
    for rule in rules:
        for problem in rule(recipe):
            return problem
    return None


def _correction(recipe: Recipe) -> Iterator[str]:
    kind, correction = recipe.objective.kind, recipe.correction
    weighs = correction.kind not in ("none", "opsm")
    if correction.bypass and weighs and kind != "reinforce":
        yield (
            f"correction.bypass makes the ratio of objective `{kind}` policy / sampler already; "
            f"correction `{correction.kind}` would weigh it twice: use kind `none`, or "
            "objective.kind `reinforce`"
        )


def _mean_scale(recipe: Recipe) -> Iterator[str]:
    penalised = recipe.overlong.kind in ("hard", "soft") or recipe.kl.in_reward
    if recipe.advantage.scale == "mean" and penalised:
        yield (
            "advantage.scale `mean` divides by the group's mean reward, which a length penalty "
            "or a KL in the reward can push below 0: every advantage would change its sign"
        )


def _critic(recipe: Recipe) -> Iterator[str]:
    has_critic = recipe.critic.kind == "value"
    if has_critic != (recipe.advantage.baseline == "critic"):
        yield (
            "critic.kind `value` and advantage.baseline `critic` belong together: one is "
            "the critic, the other says that the advantages come from it"
        )
    if not has_critic:
        return
    if recipe.advantage.scale not in ("none", "batch_tokens"):
        yield (
            f"advantage.scale `{recipe.advantage.scale}` divides by the rewards' deviation; with "
            "a critic use `batch_tokens` (whitening over the tokens) or `none`"
        )
    by_sequence = recipe.objective.sequence_level
    if by_sequence or recipe.correction.kind == "opsm":
        name = recipe.objective.kind if by_sequence else recipe.correction.kind
        yield (
            f"critic: `{name}` reads one advantage per sequence, and a critic gives one per "
            "token; use a token-level objective such as `clip`"
        )


def _self_check(recipe: Recipe) -> Iterator[str]:
    asks = recipe.task.self_check
    if recipe.self_verify.kind == "judged" and not asks:
        yield (
            "self_verify.kind `judged` pays for a verdict that task.self_check `false` does not "
            "ask for: leave that key out"
        )
    if asks and recipe.task.kind == "next_token":
        yield (
            "task.self_check (which self_verify.kind `judged` turns on): a prediction of "
            "`next_token` is taken to the letter and has no room for a verdict; use another task"
        )
    if asks and recipe.model.id == "tiny":
        yield (
            "task.self_check (which self_verify.kind `judged` turns on): the model `tiny` never "
            "judges its answers; `--setup tiny-judge` has the one that does"
        )


def _minibatches(recipe: Recipe) -> Iterator[str]:
    groups = recipe.sampling.prompts_per_step
    if recipe.optim.minibatches > groups:
        yield (
            f"optim.minibatches is {recipe.optim.minibatches}, but a batch has only {groups} "
            "groups (sampling.prompts_per_step)"
        )


def _truncation(recipe: Recipe) -> Iterator[str]:
    sampling = recipe.sampling
    if sampling.truncates and not sampling.keep_sampling_mask:
        yield (
            "sampling.top_p and sampling.top_k cut the distribution that is sampled, and the "
            "learner would score the whole one, which biases every ratio: set "
            "sampling.keep_sampling_mask to true, or leave both off"
        )
    if sampling.keep_sampling_mask and not sampling.truncates:
        yield (
            "sampling.keep_sampling_mask has no mask to keep: set sampling.top_p below 1 or "
            "sampling.top_k, or leave it off"
        )
