"""Next-token accuracy without reasoning: does the likeliest token at a position match the text?

It reads the bare context of a `next_token` position, no chat and no template, and asks for one
token; the usual held-out accuracy lets the model reason first. Must not import torch at module
level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_cli.stats.interval import Interval, wilson
from grpo_cli.tasks.next_token import NextToken
from grpo_cli.tasks.proxy_entropy import opening, text_tokens

if TYPE_CHECKING:
    from grpo_cli.policy.policy import Policy
    from grpo_cli.types import Prompt

_BATCH = 64


def direct_hits(
    policy: Policy, adapter: str | None, task: NextToken, prompts: Sequence[Prompt]
) -> list[bool | None]:
    """For every prompt, whether the policy's likeliest next token is the text's.

    None where the policy's own tokenizer has no token border at the position.

    Args:
        adapter: None is the base model.

    Raises:
        KeyError: a prompt is not of `task`.
    """
    import torch

    begin = opening(policy.tokenizer)
    hits: list[bool | None] = [None] * len(prompts)
    asked: list[tuple[int, list[int], int]] = []
    for index, prompt in enumerate(prompts):
        position = task.position(prompt.id)
        whole = position.context + position.continuation
        ids, ends = text_tokens(policy.tokenizer, whole)
        border = len(position.context)
        if border in ends and ends.index(border) + 1 < len(ids):
            at = ends.index(border) + 1
            asked.append((index, begin + ids[:at], ids[at]))
    for first in range(0, len(asked), _BATCH):
        some = asked[first : first + _BATCH]
        width = max(len(ids) for _, ids, _ in some)
        rows = [[*ids, *[0] * (width - len(ids))] for _, ids, _ in some]
        with torch.inference_mode(), policy.using(adapter):
            hidden = policy.body(
                input_ids=torch.tensor(rows, device=policy.device), use_cache=False
            ).last_hidden_state
            last = [len(ids) - 1 for _, ids, _ in some]
            said = policy.logits(hidden[range(len(some)), last]).argmax(-1).tolist()
        for (index, _, gold), token in zip(some, said, strict=True):
            hits[index] = token == gold
    return hits


def direct_accuracy(
    policy: Policy, adapter: str | None, task: NextToken, prompts: Sequence[Prompt]
) -> Interval:
    """Share of `direct_hits`, with its 95 % Wilson interval; `n` counts the positions asked."""
    hits = [hit for hit in direct_hits(policy, adapter, task, prompts) if hit is not None]
    return wilson(sum(hits), len(hits))
