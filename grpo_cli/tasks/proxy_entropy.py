"""How unsure a proxy model is at every place of a text. Measured once and kept on disk.

Torch is imported when something has to be measured, not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_cli.checkpoint import replace_file
from grpo_cli.errors import GrpoError
from grpo_cli.policy.source import model_fingerprint
from grpo_cli.recipe.schema import Model
from grpo_cli.recipe.task_schema import TextModel

if TYPE_CHECKING:
    from grpo_cli.policy.policy import Policy

Entropies = Mapping[int, float]
"""Characters read -> entropy of the next token, in nats, at the ends of the proxy's tokens."""

_VERSION = 1
_BATCH_TOKENS = 8192
_LOGIT_ROWS = 256
_DECIMALS = 4


def cache_dir() -> Path:
    """Where measured entropies are kept: `grpo` in XDG_CACHE_HOME, or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grpo" / "entropy"


def entropies(texts: Sequence[str], proxy: TextModel, top_k: int) -> list[Entropies]:
    """For every text, the proxy's next-token entropy after each of its tokens.

    The entropy is that of the `top_k` likeliest next tokens, their probabilities scaled to sum to
    1: at most ln(top_k). Rounded to 4 decimals. From the cache when the same proxy has read the
    same texts before; a cache that cannot be read or written costs time, nothing else.

    Raises:
        GrpoError: GR201 when the proxy cannot be loaded.
    """
    asked = [_VERSION, model_fingerprint(_model(proxy)), top_k, list(texts)]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    file = cache_dir() / f"{key}.json"
    kept = _read(file, len(texts))
    if kept is not None:
        return kept
    found = _measure(texts, proxy, top_k)
    rows = [[list(one), list(one.values())] for one in found]
    with contextlib.suppress(OSError, GrpoError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(rows).encode())
    return found


def token_ends(offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """Where each token ends, in characters; None inside a character of several tokens."""
    starts = [start for start, _ in offsets[1:]]
    ends = [end for _, end in offsets]
    return [
        end if follows is None or follows >= end else None
        for end, follows in zip(ends, [*starts, None], strict=True)
    ]


def text_tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int | None]]:
    """Token ids of a text, without special tokens, and where each ends (`token_ends`)."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["input_ids"]), token_ends(encoded["offset_mapping"])


def opening(tokenizer: Any) -> list[int]:
    """The begin-of-text token where the tokenizer puts one, else nothing."""
    first = tokenizer("a")["input_ids"][:1]
    return first if first and first[0] == tokenizer.bos_token_id else []


def _model(proxy: TextModel) -> Model:
    return Model(id=proxy.id, revision=proxy.revision)


def _read(file: Path, num_texts: int) -> list[Entropies] | None:
    try:
        rows = json.loads(file.read_bytes())
        found: list[Entropies] = [dict(zip(*row, strict=True)) for row in rows]
    except (OSError, ValueError, TypeError):
        return None
    return found if len(found) == num_texts else None


def _measure(texts: Sequence[str], proxy: TextModel, top_k: int) -> list[Entropies]:
    import torch

    from grpo_cli.policy.policy import load_policy

    policy = load_policy(_model(proxy), "auto")
    begin = opening(policy.tokenizer)
    read = [text_tokens(policy.tokenizer, text) for text in texts]
    found: list[dict[int, float]] = [{} for _ in texts]
    with torch.inference_mode():
        for batch in _batches([len(ids) for ids, _ in read]):
            rows = _entropy_rows(policy, [begin + read[i][0] for i in batch], top_k)
            for i, row in zip(batch, rows, strict=True):
                pairs = zip(read[i][1], row[len(begin) :], strict=True)
                found[i] = {end: round(value, _DECIMALS) for end, value in pairs if end is not None}
    return list(found)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts of like length, so many that a padded batch has _BATCH_TOKENS at most."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batch and (len(batch) + 1) * max(lengths[i], 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        if lengths[i]:
            batch.append(i)
    if batch:
        yield batch


def _entropy_rows(policy: Policy, rows: Sequence[Sequence[int]], top_k: int) -> list[list[float]]:
    """Entropy after every token of every row; one padded forward pass."""
    import torch

    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=policy.device)
    # Padding on the right cannot reach a real token under a causal mask.
    hidden = policy.body(input_ids=ids, use_cache=False).last_hidden_state
    flat = torch.cat([hidden[i, : len(row)] for i, row in enumerate(rows)])
    parts = []
    for some in flat.split(_LOGIT_ROWS):  # all logits at once may not fit into memory
        logits = policy.logits(some)
        top = logits.topk(min(top_k, logits.shape[-1])).values.log_softmax(-1)
        parts.append(-(top.exp() * top).sum(-1))
    values = torch.cat(parts).split([len(row) for row in rows])
    return [value.tolist() for value in values]
