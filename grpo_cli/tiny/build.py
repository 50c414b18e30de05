"""Build the tiny base model: `python -m grpo_cli.tiny.build [OUT]`, 9 minutes on 2 idle cores.

A character tokenizer, a Llama of 0.9 M parameters, and two parts of training on `corpus.py`: first
arithmetic without mistakes, then the habits and mistakes that ship. Seeded throughout; the same
thread count and library versions give the same weights. At the end the saved folder is loaded
again and measured on held-out questions, so the printed figures are those of what ships. On a
machine that is busy with other work, OMP_WAIT_POLICY=PASSIVE in the environment helps a lot.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from grpo_cli.recipe.schema import ArithmeticTask
from grpo_cli.tasks import load_task
from grpo_cli.tiny import TINY_DIR, TINY_MAX_TOKENS
from grpo_cli.tiny.corpus import CLEAN, NOISY, Rates, draw_example
from grpo_cli.types import Prompt, Status
from grpo_cli.verify.load import LoadedVerifier, load_verifier

SEED = 0
THREADS = 2
CLEAN_STEPS, NOISY_STEPS = 1700, 500
CLEAN_LR, NOISY_LR = 3e-3, 1e-3
BATCH = 96
SLICES = 3  # of a batch, each padded to its own longest sequence
MAX_TOKENS = 96  # of a training sequence; the rest of a long one is cut
IGNORE = -100

PAD, UNK, USER, ASSISTANT, END = "<|pad|>", "<|unk|>", "<|user|>", "<|assistant|>", "<|end|>"
ALPHABET = "0123456789+-*=;# abcdefghijklmnopqrstuvwxyz.,:?!()"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}<|user|>{{ message['content'] }}"
    "{%- elif message['role'] == 'assistant' -%}<|assistant|>{{ message['content'] }}<|end|>"
    "{%- else -%}{{ raise_exception('the tiny model knows only user and assistant turns') }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character of `ALPHABET`; every other character is unknown."""
    vocab = {token: i for i, token in enumerate((PAD, UNK, USER, ASSISTANT, END, *ALPHABET))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    make: type[Any] = PreTrainedTokenizerFast  # transformers leaves its constructors untyped
    built: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
        padding_side="left",
    )
    return built


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama with random weights: 4 layers, width 128, head size 32, tied embeddings."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


Draw = Callable[[int], tuple[str, str]]
"""Index -> a question and what the model is taught to answer."""


def batch(tokenizer: Any, draw: Draw, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batch of a step in SLICES pairs (ids, labels), padded right; questions carry no loss.

    Sequences of like length share a slice, to pad less. All slices make one optimizer step: a
    step with answers of one length, hence one style, would pull the shares of the styles about.
    """
    ids = tokenizer.get_vocab()
    rows: list[tuple[int, list[int]]] = []
    for index in range(step * BATCH, (step + 1) * BATCH):
        question, answer = draw(index)
        head = [ids[USER], *(ids[c] for c in question), ids[ASSISTANT]]
        tail = [*(ids[c] for c in answer), ids[END]]
        rows.append((len(head), (head + tail)[:MAX_TOKENS]))
    rows.sort(key=lambda row: len(row[1]))
    size = BATCH // SLICES
    slices = []
    for at in range(0, BATCH, size):
        length = len(rows[at + size - 1][1])
        x = torch.full((size, length), ids[PAD])
        y = torch.full((size, length), IGNORE)
        for row, (num_head, tokens) in enumerate(rows[at : at + size]):
            x[row, : len(tokens)] = torch.tensor(tokens)
            y[row, num_head : len(tokens)] = x[row, num_head : len(tokens)]
        slices.append((x, y))
    return slices


def train(
    model: LlamaForCausalLM,
    tokenizer: Any,
    draw: Draw,
    name: str,
    num_steps: int,
    peak_lr: float,
) -> None:
    """One part of training: AdamW, linear warm-up over 5 % of the steps, cosine to 5 % of peak."""
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    begun = time.monotonic()
    for step in range(num_steps):
        done = step / num_steps
        scale = min(done / 0.05, 0.525 + 0.475 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * scale
        slices = batch(tokenizer, draw, step)
        num_targets = sum(int((y != IGNORE).sum()) for _, y in slices)
        total = 0.0
        for x, y in slices:
            # Padding is on the right and attention is causal: no mask is needed.
            out = model(input_ids=x, labels=y, use_cache=False, num_items_in_batch=num_targets)
            out.loss.backward()
            total += out.loss.item()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == num_steps - 1:
            seconds = time.monotonic() - begun
            print(f"{name} step {step:5d}  loss {total:.4f}  {seconds:6.0f} s", flush=True)


@torch.inference_mode()
def sample(
    model: LlamaForCausalLM,
    tokenizer: Any,
    prompts: list[Prompt],
    num_samples: int,
    max_tokens: int,
) -> list[tuple[int, str, bool]]:
    """Plain softmax samples: (prompt index, text, truncated), in no particular order."""
    by_length: dict[int, list[tuple[int, list[int]]]] = {}
    for index, prompt in enumerate(prompts):
        chat = [{"role": m.role, "content": m.content} for m in prompt.messages]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        by_length.setdefault(len(ids), []).append((index, ids))
    samples: list[tuple[int, str, bool]] = []
    # Versions of transformers differ in the argument's name.
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    for rows in by_length.values():  # equal lengths, so no padding
        owners = [index for index, _ in rows for _ in range(num_samples)]
        feed = torch.tensor([ids for _, ids in rows]).repeat_interleave(num_samples, 0)
        out = torch.full((len(owners), max_tokens), tokenizer.pad_token_id)
        alive = torch.ones(len(owners), dtype=torch.bool)
        cache = {name: DynamicCache()}
        for t in range(max_tokens):
            result = model(input_ids=feed, use_cache=True, **cache)
            feed = torch.multinomial(torch.softmax(result.logits[:, -1].float(), -1), 1)
            out[alive, t] = feed[alive, 0]
            alive &= feed[:, 0] != tokenizer.eos_token_id
            if not alive.any():
                break
        texts = tokenizer.batch_decode(out, skip_special_tokens=True)
        samples += zip(owners, texts, alive.tolist(), strict=True)
    return samples


def held_out(
    folder: Path, num_questions: int, num_samples: int
) -> tuple[list[Prompt], list[tuple[int, str, bool]], LoadedVerifier]:
    """The model in `folder` as float32 on held-out questions at temperature 1.

    Returns: the questions; (index of the question, answer, whether it was cut); the verifier.
    """
    torch.manual_seed(SEED)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompts = list(load_task(ArithmeticTask()).held_out(num_questions))
    verifier = load_verifier("exact_integer", Path(__file__).parents[2] / "verifiers")
    return prompts, sample(model, tokenizer, prompts, num_samples, TINY_MAX_TOKENS), verifier


def measure(folder: Path, num_questions: int = 200, num_samples: int = 16) -> dict[str, float]:
    """The figures that docs/tiny-world.md shows, of the model in `folder`."""
    prompts, samples, verifier = held_out(folder, num_questions, num_samples)
    score_QK = np.zeros((num_questions, num_samples))
    seen = [0] * num_questions
    unparsed = 0
    for index, text, _ in samples:
        verdict = verifier(text, prompts[index].reference)
        score_QK[index, seen[index]] = verdict.score
        seen[index] += 1
        unparsed += verdict.status is Status.UNPARSED
    texts = [text for _, text, _ in samples]
    solved = score_QK.sum(1)
    mixed = [np.mean((g.sum(1) > 0) & (g.sum(1) < 8)) for g in (score_QK[:, :8], score_QK[:, 8:])]
    total = len(samples)
    figures = {
        "accuracy": float(score_QK.mean()),
        f"pass@{num_samples}": float(np.mean(solved > 0)),
        "groups of 8 with mixed verdicts": float(np.mean(mixed)),
        "truncated": sum(cut for *_, cut in samples) / total,
        "unparsed": unparsed / total,
        "guesses": sum(text.startswith("#") for text in texts) / total,
        "worked": sum("=" in text for text in texts) / total,
        "with wait": sum("wait" in text for text in texts) / total,
        "with check": sum("check" in text for text in texts) / total,
    }
    levels = np.array([int(prompt.meta["level"]) for prompt in prompts])
    for level in sorted(set(levels.tolist())):
        figures[f"accuracy level {level}"] = float(score_QK[levels == level].mean())
    return figures


def _example(rates: Rates, name: str, index: int) -> tuple[str, str]:
    return draw_example(index, rates, name)


def main(out: Path) -> None:
    """Build, save and measure."""
    begun = time.monotonic()
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    train(model, tokenizer, partial(_example, CLEAN, "clean"), "clean", CLEAN_STEPS, CLEAN_LR)
    train(model, tokenizer, partial(_example, NOISY, "noisy"), "noisy", NOISY_STEPS, NOISY_LR)
    make: type[Any] = GenerationConfig
    model.generation_config = make(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=TINY_MAX_TOKENS,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"built in {time.monotonic() - begun:.0f} s: {out}")
    for name, value in measure(out).items():
        print(f"{name:34s} {value:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TINY_DIR)
