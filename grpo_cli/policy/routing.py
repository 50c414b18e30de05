"""The experts that a mixture of experts chooses: found, recorded and replayed.

Dims: S positions of a forward pass (rows times width, padding included), L routed layers, E experts
of a layer, K experts that a token uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpo_cli.errors import error
from grpo_cli.policy.logprob import upcast
from grpo_cli.recipe.moe import Moe

_NAME = re.compile(r"(Router|Gate|Gating)$")
OWN = -1
"""In place of a recorded expert: the pass chooses for itself, as on padding."""


def replayed_gate(logits_SE: Tensor, experts_SK: Tensor, *, renormalised: bool) -> Tensor:
    """Weights (S, K) of recorded experts, from current logits and with gradient through them.

    R3 (arXiv:2510.11370): g_e = I_e exp(s_e) / sum_e' I_e' exp(s_e'), I = 1 for a recorded expert.
    A model that does not renormalise (`norm_topk_prob: false`) was trained with
    g_e = I_e exp(s_e) / sum_e' exp(s_e'), and keeps that.
    """
    logits_SE = upcast(logits_SE)
    if renormalised:
        return logits_SE.gather(-1, experts_SK).softmax(-1)
    return logits_SE.softmax(-1).gather(-1, experts_SK)


@dataclass(slots=True)
class Pass:
    """What the routers said in one forward pass, one entry per layer."""

    replay_SLK: Tensor | None = None
    """Experts to use; OWN where the pass chooses. None leaves the model's own code alone."""
    chosen: list[Tensor] = field(default_factory=list)
    """The routers' own choices (S, K), before replay."""
    logits: list[Tensor] = field(default_factory=list)
    """(S, E), without gradient."""

    def experts(self) -> Tensor:
        """The routers' own choices, (S, L, K) int16 on the CPU."""
        return torch.stack(self.chosen, dim=1).to("cpu", torch.int16)

    def entropy(self) -> Tensor:
        """Entropy (nats) of the softmax over all experts of a layer, (S, L)."""
        found = []
        for logits_SE in self.logits:
            logp_SE = upcast(logits_SE).log_softmax(-1)
            found.append(-(logp_SE.exp() * logp_SE).sum(-1))
        return torch.stack(found, dim=1).cpu()


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a router's output tuple has what."""

    logits: int
    weights: int
    chosen: int


class Routers:
    """The routers of a model in the order of their layers, each with a forward hook.

    Outside `watch` the hooks do nothing.
    """

    def __init__(
        self, modules: list[torch.nn.Module], places: _Places, num_experts: int, top_k: int
    ) -> None:
        self.num_layers = len(modules)
        self.num_experts = num_experts
        self.top_k = top_k
        self.renormalised: bool | None = None
        """The gate's convention; None when it is no softmax and replay cannot compute it."""
        self._places = places
        self._pass: Pass | None = None
        for layer, module in enumerate(modules):
            module.register_forward_hook(self._hook(layer))

    @contextmanager
    def watch(self, replay_SLK: Tensor | None = None) -> Iterator[Pass]:
        """Record the one forward pass made inside, and replay experts in it if they are given."""
        assert self._pass is None
        self._pass = found = Pass(replay_SLK)
        try:
            yield found
        finally:
            self._pass = None

    def _hook(self, layer: int) -> Callable[..., tuple[Tensor, ...] | None]:
        places = self._places

        def hook(
            module: torch.nn.Module, inputs: object, output: tuple[Tensor, ...]
        ) -> tuple[Tensor, ...] | None:
            if self._pass is None:
                return None
            assert len(self._pass.chosen) == layer, "the layers ran in another order"
            logits_SE, own_SK = output[places.logits], output[places.chosen]
            self._pass.chosen.append(own_SK)
            self._pass.logits.append(logits_SE.detach())
            if self._pass.replay_SLK is None:
                return None
            assert self.renormalised is not None
            record_SK = self._pass.replay_SLK[:, layer].to(own_SK)
            # Own choices get their weights from the same formula, so that the old policy and the
            # current one differ by their weights alone.
            experts_SK = torch.where(record_SK == OWN, own_SK, record_SK)
            gate_SK = replayed_gate(logits_SE, experts_SK, renormalised=self.renormalised)
            changed = list(output)
            changed[places.chosen] = experts_SK
            changed[places.weights] = gate_SK.to(output[places.weights].dtype)
            return tuple(changed)

        return hook


def is_router(module: torch.nn.Module) -> bool:
    """Whether a module is called a router; `find_routers` looks at what it returns."""
    return bool(_NAME.search(type(module).__name__))


def find_routers(body: torch.nn.Module, device: torch.device) -> Routers | None:
    """The routers of a decoder, or None when it has none (a dense model: no pass is run).

    A router is a module whose class is called Router, Gate or Gating and that returns logits
    (S, E), weights (S, K) and experts (S, K) with K < E, in any order, as in Qwen3-MoE, Mixtral and
    OLMoE of transformers 5. One small pass shows that, and which formula makes the weights.
    """
    named = [m for m in body.modules() if is_router(m)]
    if not named:
        return None
    outputs: dict[torch.nn.Module, Any] = {}
    handles = [m.register_forward_hook(lambda m, _, out: outputs.update({m: out})) for m in named]
    ids = torch.arange(4, device=device)[None]
    with torch.no_grad():
        body(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    # In the order in which they ran.
    found = [(m, out, places) for m, out in outputs.items() if (places := _places(out))]
    shapes = {(p, out[p.logits].shape[1], out[p.chosen].shape[1]) for _, out, p in found}
    if len(shapes) != 1:
        return None
    ((places, num_experts, top_k),) = shapes
    routers = Routers([m for m, _, _ in found], places, num_experts, top_k)
    for renormalised in (True, False):
        if all(_makes(out, p, renormalised=renormalised) for _, out, p in found):
            routers.renormalised = renormalised
            break
    return routers


def require_routers(routers: Routers | None, moe: Moe, model: str) -> None:
    """Refuse a replay that this model cannot have.

    Raises:
        GrpoError: GR201 for a dense model and for routers whose weights are no softmax.
    """
    if moe.replay == "off":
        return
    if routers is None:
        raise error(
            "GR201",
            f"moe.replay is `{moe.replay}`, but model `{model}` has no routers that choose experts",
            hint="a dense model has no routing to replay: leave moe.replay out",
        )
    if routers.renormalised is None:
        raise error(
            "GR201",
            f"moe.replay is `{moe.replay}`, but the routers of model `{model}` weigh experts by "
            "something else than a softmax of their logits, which replay does not know",
            hint="leave moe.replay out; Qwen3-MoE, Mixtral and OLMoE can be replayed",
        )


def _places(output: object) -> _Places | None:
    """Where logits, weights and experts are in a router's output; None if it is another thing."""
    if not isinstance(output, tuple) or len(output) != 3:
        return None
    if not all(isinstance(part, Tensor) and part.ndim == 2 for part in output):
        return None
    integer = [i for i, part in enumerate(output) if not part.is_floating_point()]
    floating = [i for i, part in enumerate(output) if part.is_floating_point()]
    if len(integer) != 1:
        return None
    weights, logits = sorted(floating, key=lambda i: output[i].shape[1])
    top_k = output[integer[0]].shape[1]
    if output[weights].shape[1] != top_k or output[logits].shape[1] <= top_k:
        return None
    return _Places(logits, weights, integer[0])


def _makes(output: tuple[Tensor, ...], places: _Places, *, renormalised: bool) -> bool:
    """Whether the formula gives the weights that the router gave."""
    weights_SK = output[places.weights]
    gate_SK = replayed_gate(
        output[places.logits], output[places.chosen].long(), renormalised=renormalised
    )
    close = 1e-4 if weights_SK.dtype == torch.float32 else 2e-2
    return torch.allclose(gate_SK.float(), weights_SK.float(), rtol=close, atol=close)
