"""A recipe as the formula it trains, and what is known to mislead about it."""

from __future__ import annotations

from grpo_cli.errors import Problem
from grpo_cli.objective.aggregate import SeqMean, SeqSum
from grpo_cli.objective.correction import MisSeq, TisSeq
from grpo_cli.objective.self_verify import JudgedSelfVerify
from grpo_cli.recipe.schema import Recipe

_SEQUENCE_LEVEL = ("gspo", "gspo_token", "gmpo")
_LONG = 1000


def explain(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Symbol, formula with its numbers, source: the loss of a recipe, part by part."""
    optim = recipe.optim
    old = "sampler" if recipe.correction.bypass else "policy before the batch's first update"
    critic, nll = recipe.critic, recipe.positive_nll
    parts = (
        ("ell", recipe.objective),
        ("A", recipe.advantage),
        ("R", recipe.overlong),
        ("w", recipe.aggregate),
        ("c", recipe.correction),
        ("KL", recipe.kl),
        ("entropy", recipe.entropy),
        ("data", recipe.filter),
    )
    kl = " + w KL" if recipe.kl.in_loss else ""
    rows = [
        ("loss", f"sum over tokens of w c ell{kl}", ""),
        ("r", f"exp(log pi - log pi_old), pi_old = the {old}", ""),
        *((symbol, part.formula(), part.source) for symbol, part in parts),
    ]
    if isinstance(recipe.self_verify, JudgedSelfVerify):
        rows.append(("score", recipe.self_verify.formula(), recipe.self_verify.source))
    if critic.kind != "none":
        rows.append(("V", critic.formula(), critic.source))
    if nll.weight:
        rows.append(("NLL", nll.formula(), nll.source))
    if recipe.moe.replay != "off":
        rows.append(("routing", recipe.moe.formula(), "R3 arXiv:2510.11370"))
    if recipe.sampling.keep_sampling_mask:
        kept = f"renormalised over what {recipe.sampling.truncation()} kept at sampling"
        rows.append(("pi", kept, "DeepSeek-V3.2 arXiv:2512.02556"))
    if recipe.correction.kind != "none":
        top = "pi" if recipe.correction.bypass else "pi_old"
        rows.append(("rho", f"{top} / sampler, detached", ""))
    rows.append(
        (
            "updates",
            f"{optim.epochs_per_batch} x {optim.minibatches} per batch, AdamW, lr {optim.lr:g}",
            "",
        )
    )
    return rows


def warnings(recipe: Recipe) -> list[Problem]:
    """What is legal in a recipe and known to mislead."""
    found: list[Problem] = []
    kind, optim = recipe.objective.kind, recipe.optim
    if (
        optim.minibatches == optim.epochs_per_batch == 1
        and kind != "reinforce"
        and not recipe.correction.bypass
    ):
        found.append(
            Problem(
                "GW401",
                "one minibatch and one epoch: the ratio is always 1, so what sets "
                f"`{kind}` apart does nothing",
                hint="raise optim.minibatches or optim.epochs_per_batch",
            )
        )
    if kind in _SEQUENCE_LEVEL and not isinstance(recipe.aggregate, SeqMean | SeqSum):
        found.append(
            Problem(
                "GW402",
                f"`{kind}` with aggregate `{recipe.aggregate.kind}` weighs long answers more: "
                "that is not the paper's objective",
                hint="use aggregate.kind `seq_mean`",
            )
        )
    if isinstance(recipe.correction, TisSeq | MisSeq) and recipe.sampling.max_tokens > _LONG:
        found.append(
            Problem(
                "GW403",
                f"`{recipe.correction.kind}` multiplies the ratios of up to "
                f"{recipe.sampling.max_tokens} tokens: most weights leave any bound",
                hint="use `tis_token`, `icepop` or `geo_rs`",
            )
        )
    return found
