"""Methods that a source names and that the runner does not have, and what is nearest here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Missing:
    """A method without an implementation here.

    `key` and `recipe` are the recipe key and the recipe name that would come with it, so a test
    sees when a row is out of date.
    """

    id: str
    method: str
    why: str
    nearest: str
    key: str | None = None
    recipe: str | None = None


_ROWS = (
    Missing(
        "r3",
        "R3, replay of the sampler's routing (arXiv:2510.11370), with vLLM",
        "the sourced remedy for routing drift, but the experts of a token are not read from vLLM",
        "`moe.replay: learner` (R2) with any engine, `moe.replay: sampler` (R3) with transformers",
        recipe="r3",
    ),
    Missing(
        "moe-setup",
        "a setup with a mixture of experts",
        "none is shipped and none of real size was trained here; adapters reach linear layers, "
        "experts and routers stay frozen",
        "a setup file of your own (docs/moe.md)",
    ),
    Missing(
        "token-rewards",
        "a reward for each token or step",
        "a verifier here returns one score per answer; a critic spreads it over the tokens",
        "`vapo` with the token rewards summed into one score",
        key="token_reward",
    ),
    Missing(
        "multi-turn",
        "rollouts of several turns with results of tools",
        "a completion here is one turn, and nothing masks the tokens of a tool",
        "score the call itself with a verifier of your own",
        key="tools",
    ),
    Missing(
        "gdpo",
        "GDPO, one normalised advantage per reward (arXiv:2601.05242)",
        "chat often has several rewards",
        "one score of the verifier, without division by the deviation",
        recipe="gdpo",
    ),
    Missing(
        "async",
        "an asynchronous pipeline (PipelineRL)",
        "ScaleRL's results are with samples up to eight updates old",
        "the same loss with synchronous sampling; more optim.minibatches make samples staler",
    ),
    Missing(
        "fp16-learner",
        "a learner in float16 (arXiv:2510.26788)",
        "only engine.dtype knows float16",
        "a float32 head on both sides",
    ),
)

MISSING: dict[str, Missing] = {row.id: row for row in _ROWS}
assert len(MISSING) == len(_ROWS), "an id twice"
