"""Randomness as a function of what it is for, never a state that runs along.

Resuming, reordering and restarting an engine then change nothing, and arms share random numbers.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def seed63(*parts: int | str) -> int:
    """A 63-bit seed from what the randomness is for; different parts give unrelated seeds.

    Example:
        seed63(0, "train", 12, "3f1c", 5)  # run seed, use, step, prompt id, sample index
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & (2**63 - 1)


def sample_seed(run_seed: int, step: int, prompt_id: str, index: int) -> int:
    """Seed of one training completion."""
    return seed63(run_seed, "train", step, prompt_id, index)


def eval_seed(run_seed: int, prompt_id: str, index: int) -> int:
    """Seed of one held-out completion: the same at every step, so before and after are paired."""
    return seed63(run_seed, "eval", prompt_id, index)


def coin_seed(run_seed: int, step: int, prompt_id: str, index: int) -> int:
    """Seed of the coin that a `random_reward` arm tosses for one completion."""
    return seed63(run_seed, "coin", step, prompt_id, index)


@lru_cache(maxsize=4)
def _permutation(run_seed: int, stream: str, epoch: int, size: int) -> np.ndarray:
    import numpy as np

    bits = np.random.PCG64(seed63(run_seed, stream, epoch))
    return np.random.Generator(bits).permutation(size)


def data_index(run_seed: int, stream: str, position: int, size: int) -> int:
    """Which training prompt stands at `position` of a stream that reshuffles every epoch."""
    epoch, offset = divmod(position, size)
    return int(_permutation(run_seed, stream, epoch, size)[offset])
