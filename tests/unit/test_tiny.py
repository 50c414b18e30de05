"""The shipped tiny model: its tokenizer, its files, and that it loads without a network."""

import json
import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from grpo_cli.tasks.arithmetic import LEVELS, draw_question
from grpo_cli.tiny import TINY_DIR, TINY_MAX_TOKENS
from grpo_cli.tiny.build import ALPHABET, CHAT_TEMPLATE, build_tokenizer
from grpo_cli.tiny.corpus import NOISY, draw_answer, worked_answer

CHAT = [{"role": "user", "content": "12+7"}]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_DIR, local_files_only=True)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(
        TINY_DIR, dtype=torch.float32, local_files_only=True
    )


def test_one_token_per_character(tokenizer) -> None:
    text = ALPHABET * 2
    ids = tokenizer(text, add_special_tokens=True)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer("5\n\u00d7")["input_ids"][1:] == [tokenizer.unk_token_id] * 2


def test_questions_and_answers_round_trip(tokenizer) -> None:
    for index in range(500):
        question = draw_question(LEVELS[index % 5], False, "train", index)
        noisy = draw_answer(question, NOISY, random.Random(index))
        for text in (question.text, worked_answer(question), noisy):
            ids = tokenizer(text)["input_ids"]
            assert len(ids) == len(text)
            assert tokenizer.decode(ids) == text


def test_a_plain_worked_answer_fits_but_hard_ones_take_most_of_the_limit(tokenizer) -> None:
    lengths = {
        level: [
            len(worked_answer(draw_question(level, True, "held_out", i))) + 1 for i in range(100)
        ]
        for level in LEVELS
    }
    assert max(map(max, lengths.values())) <= TINY_MAX_TOKENS
    assert 0.6 < sum(lengths[5]) / 100 / TINY_MAX_TOKENS < 0.85


def test_special_tokens(tokenizer) -> None:
    special = [tokenizer.pad_token, tokenizer.unk_token, tokenizer.eos_token]
    assert special == ["<|pad|>", "<|unk|>", "<|end|>"]
    assert len(set(tokenizer.convert_tokens_to_ids(special))) == 3
    assert tokenizer.decode(tokenizer("#16<|end|>")["input_ids"], skip_special_tokens=True) == "#16"


def test_the_chat_template_is_exact(tokenizer) -> None:
    def render(chat, **kwargs):
        return tokenizer.apply_chat_template(chat, tokenize=False, **kwargs)

    assert render(CHAT, add_generation_prompt=True) == "<|user|>12+7<|assistant|>"
    answered = [*CHAT, {"role": "assistant", "content": "#19"}]
    assert render(answered) == "<|user|>12+7<|assistant|>#19<|end|>"
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert len(ids) == len("12+7") + 2
    with pytest.raises(Exception, match="only user and assistant"):
        render([{"role": "system", "content": "1"}])


def test_the_shipped_tokenizer_is_the_one_the_script_builds(tokenizer) -> None:
    built = build_tokenizer()
    assert tokenizer.get_vocab() == built.get_vocab()
    assert tokenizer.chat_template == built.chat_template == CHAT_TEMPLATE


def test_config_and_size() -> None:
    config = AutoConfig.from_pretrained(TINY_DIR, local_files_only=True)
    assert config.model_type == "llama"
    assert config.hidden_size // config.num_attention_heads in (32, 64)
    assert config.max_position_embeddings >= 256
    assert "auto_map" not in json.loads((TINY_DIR / "config.json").read_text())
    files = [path for path in TINY_DIR.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000


def test_the_model_loads_and_is_at_home_in_its_answers(model, tokenizer) -> None:
    assert 800_000 <= sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    text = tokenizer.apply_chat_template(
        [*CHAT, {"role": "assistant", "content": "12+7=19#19"}], tokenize=False
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logp = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])
    prompt = len(CHAT[0]["content"]) + 2
    assert logp[prompt - 1 :].exp().prod() > 0.05
