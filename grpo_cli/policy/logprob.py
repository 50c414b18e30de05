"""Log-probability and entropy of chosen tokens without keeping any logits.

Dims: T completion tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo_cli.support import Support

_CHUNK_LOGITS = 2**24
"""Most logits alive at once (64 MiB in float32)."""


class _ChosenLogprob(torch.autograd.Function):
    """The projection is frozen, so the gradient of a token's log-probability with respect to its
    hidden state is known in the forward pass: (W[y] - softmax(z) @ W) / temperature. Saving that,
    a (T, D) array, replaces both the logits and their recomputation."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        ids_T: Tensor,
        temperature: float,
        entropy_grad: bool,
        support: Support | None,
    ) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        chunk = max(1, _CHUNK_LOGITS // weight_VD.shape[0])
        parts: list[tuple[Tensor, Tensor]] = []
        grads: list[Tensor] = []
        entropy_grads: list[Tensor] = []
        pieces = hidden_TD.split(chunk)
        supports = [None] * len(pieces) if support is None else support.split(chunk)
        for hidden, ids, kept in zip(pieces, ids_T.split(chunk), supports, strict=True):
            logits = upcast(F.linear(hidden, weight_VD, bias_V)) / temperature
            if kept is not None:
                cut = ~kept.mask(logits.shape[-1])
                logits = logits.masked_fill(cut, -torch.inf)
            logp = logits.log_softmax(-1)
            prob = logp.exp()
            chosen = logp.gather(-1, ids[:, None])[:, 0]
            if kept is not None:
                # p log p is 0 where p is; the product would be NaN.
                logp = logp.masked_fill(cut, 0)
            entropy = -(prob * logp).sum(-1)
            parts.append((chosen, entropy))
            if needs_grad:
                mean = prob.to(weight_VD.dtype) @ weight_VD
                grads.append((weight_VD[ids] - mean) / temperature)
                if entropy_grad:
                    slope = -prob * (logp + entropy[:, None])
                    entropy_grads.append(slope.to(weight_VD.dtype) @ weight_VD / temperature)
        if needs_grad:
            saved = [torch.cat(part) for part in (grads, entropy_grads) if part]
            ctx.save_for_backward(*saved)
        logp_T = torch.cat([logp for logp, _ in parts])
        entropy_T = torch.cat([entropy for _, entropy in parts])
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_T)
        return logp_T, entropy_T

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad_T: Tensor, entropy_grad_T: Tensor
    ) -> tuple[Tensor, None, None, None, None, None, None]:
        unit_TD, *slope = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_TD = unit_TD * grad_T[:, None].to(unit_TD.dtype)
        if slope:
            grad_TD = grad_TD + slope[0] * entropy_grad_T[:, None].to(unit_TD.dtype)
        return grad_TD, None, None, None, None, None, None


def upcast(logits: Tensor) -> Tensor:
    """Logits in float32, or float64 when they already are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def chosen_logprob(
    hidden_TD: Tensor,
    head: torch.nn.Linear,
    ids_T: Tensor,
    temperature: float,
    *,
    entropy_grad: bool = False,
    support: Support | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each chosen token and entropy of its distribution, both (T,), in nats.

    Args:
        hidden_TD: hidden states of the positions that predict the chosen tokens.
        head: the frozen vocabulary projection. Its own gradient is not computed.
        temperature: logits are divided by it first, as the sampler does.
        entropy_grad: whether the entropy carries a gradient, which costs one more projection.
        support: the tokens that the sampler kept, each chosen one among them: both results are of
            the distribution renormalised over these. None is the whole vocabulary.
    """
    if not len(ids_T):
        return hidden_TD.new_zeros(0), hidden_TD.new_zeros(0)
    logp_T, entropy_T = _ChosenLogprob.apply(
        hidden_TD, head.weight, head.bias, ids_T, temperature, entropy_grad, support
    )  # type: ignore[no-untyped-call]
    return logp_T, entropy_T
