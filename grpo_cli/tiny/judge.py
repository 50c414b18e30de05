"""Teach the tiny model to judge: `python -m grpo_cli.tiny.judge [OUT]`, a minute on 2 idle cores.

The shipped tiny model reads its corpus again, with a verdict at the end of every answer: `?y` or
`?n` from a coin. So `tiny-judge` answers as `tiny` does and judges by chance; what its verdicts say
about its answers, reinforcement learning has to teach. All weights train and are saved as float16,
which halves the file; an adapter would be smaller, but every place that loads a model by its folder
would have to merge it. Seeded; the same thread count and library versions give the same weights. At
the end the saved folder is loaded again and measured on held-out questions.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_cli.tiny import TINY_DIR, TINY_JUDGE_DIR
from grpo_cli.tiny.build import SEED, THREADS, held_out, train
from grpo_cli.tiny.corpus import NOISY, draw_example

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
STEPS, LR = 300, 1e-3


def judged_example(index: int) -> tuple[str, str]:
    """Question and answer number `index` of the tiny model's second corpus, and a coin's verdict.

    Other draws than those it has read: the corpus has another name.
    """
    question, answer = draw_example(index, NOISY, "judge")
    return question, answer + random.Random(f"judge/coin/{index}").choice(("?y", "?n"))


def measure(folder: Path, num_questions: int = 200, num_samples: int = 16) -> dict[str, float]:
    """The figures that docs/tiny-world.md shows, of the model in `folder`."""
    prompts, samples, verifier = held_out(folder, num_questions, num_samples)
    cut = [(text.partition("?"), prompts[index].reference) for index, text, _ in samples]
    right = np.array([verifier(answer, gold).score for (answer, *_), gold in cut])
    says = np.array([verdict for (_, _, verdict), _ in cut])
    judged = np.isin(says, ["y", "n"])
    return {
        "accuracy": float(right.mean()),
        "truncated": float(np.mean([cut for *_, cut in samples])),
        "judged": float(judged.mean()),
        "says right, of right answers": float((says[judged & (right == 1)] == "y").mean()),
        "says right, of wrong answers": float((says[judged & (right == 0)] == "y").mean()),
    }


def main(out: Path) -> None:
    """Teach, save and measure."""
    begun = time.monotonic()
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    tokenizer: Any = AutoTokenizer.from_pretrained(TINY_DIR)
    model: Any = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
    train(model, tokenizer, judged_example, "judge", STEPS, LR)
    model.half().save_pretrained(out)
    for name in TOKENIZER_FILES:
        shutil.copyfile(TINY_DIR / name, out / name)
    print(f"built in {time.monotonic() - begun:.0f} s: {out}")
    for name, value in measure(out).items():
        print(f"{name:34s} {value:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TINY_JUDGE_DIR)
