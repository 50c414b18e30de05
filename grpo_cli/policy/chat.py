"""A chat as the text that a model reads. Must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_cli.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def chat_text(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], thinking: bool | None = None
) -> str:
    """The chat template's text, up to where the assistant starts to write.

    `thinking` reaches the template as `enable_thinking` (Qwen3 and others; a template that does not
    know it ignores it); None does not pass it.
    """
    chat = [{"role": m.role, "content": m.content} for m in messages]
    known: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **known)
    return str(text)


def turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template puts after an assistant's turn, if it puts one.

    A base model may declare another end (`<|endoftext|>`) than the one that chats teach it
    (`<|im_end|>`), and would talk on after its answer.
    """
    said = "QZX"
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": said}]
    try:
        text = str(tokenizer.apply_chat_template(chat, tokenize=False))
    except Exception:  # templates are programs; one that refuses this chat has no say here
        return None
    _, found, tail = text.rpartition(said)
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"] if found else []
    return ids[0] if ids and ids[0] in tokenizer.all_special_ids else None
