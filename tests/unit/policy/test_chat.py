"""The chat template gets `enable_thinking` when, and only when, the recipe says something."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from grpo_cli.policy.chat import chat_text, turn_end
from grpo_cli.tiny import TINY_DIR
from grpo_cli.types import Message

# What Qwen3's own template does with it, shortened.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
)


@pytest.mark.parametrize(("thinking", "end"), [(None, ""), (True, ""), (False, "<think></think>")])
def test_thinking(thinking: bool | None, end: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    tokenizer.chat_template = TEMPLATE
    text = chat_text(tokenizer, [Message("system", "s"), Message("user", "u")], thinking)
    assert text == f"<system>s<user>u<assistant>{end}"


def test_the_end_of_a_turn_is_the_templates() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    assert turn_end(tokenizer) == tokenizer.eos_token_id
    template = str(tokenizer.chat_template)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    assert turn_end(tokenizer) is None, "a template without an end token names none"
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert turn_end(tokenizer) is None
    tokenizer.chat_template = template
