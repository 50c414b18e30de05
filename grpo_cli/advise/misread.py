"""Beliefs that circulate, each with what the source says. Every row names the source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Misreading:
    """A belief and the fact against it."""

    id: str
    belief: str
    fact: str
    source: str


_ROWS = (
    Misreading(
        "gspo-product",
        "GSPO's ratio is the product over tokens, with one symmetric bound.",
        "It is the product to the power 1/|o|; the bounds are 3e-4 and 4e-4.",
        "arXiv:2507.18071 Eq. 7",
    ),
    Misreading(
        "gspo-qwen3",
        "All of Qwen3 was trained with GSPO.",
        "The Qwen3 report names GRPO; GSPO belongs to later releases (secondary source).",
        "arXiv:2505.09388",
    ),
    Misreading(
        "gspo-code",
        "GSPO is worse than DAPO on code.",
        "There is no evidence; its paper reports LiveCodeBench and CodeForces favourably.",
        "arXiv:2507.18071 Section 5.1",
    ),
    Misreading(
        "dapo-half",
        "DAPO reaches R1-Zero's level in half of the steps.",
        "Only that of DeepSeek-R1-Zero-Qwen-32B: 47 to 50.",
        "arXiv:2503.14476 abstract",
    ),
    Misreading(
        "dapo-soft",
        "The soft length penalty acts from 12k to 16k tokens.",
        "From 16,384 to 20,480.",
        "arXiv:2503.14476 Eq. 13",
    ),
    Misreading(
        "clip-product",
        "The clip bounds ratio times advantage.",
        "It bounds the ratio, on one side for each sign of the advantage.",
        "arXiv:2402.03300 Eq. 3",
    ),
    Misreading(
        "dr-grpo-number",
        "Dr. GRPO is arXiv:2508.10355.",
        "It is 2503.20783; the other is an unrelated paper.",
        "arXiv",
    ),
    Misreading(
        "dr-grpo-std",
        "Dr. GRPO removes only the deviation, and groups of equal rewards were amplified.",
        "It removes both divisions; a group of equal rewards has advantage 0 with either.",
        "arXiv:2503.20783 Sections 3.1 and 3.2",
    ),
    Misreading(
        "dr-grpo-qwen",
        "Qwen adopted it.",
        "Unsupported: GSPO's paper keeps (R - mean)/std.",
        "arXiv:2507.18071",
    ),
    Misreading(
        "v32-dr-grpo",
        "DeepSeek-V3.2 is Dr. GRPO taken further.",
        "It drops the deviation and keeps 1/|o_i|.",
        "arXiv:2512.02556 Eq. 5",
    ),
    Misreading(
        "v32-kl",
        "DeepSeek-V3.2 turns KL off.",
        "The report is hedged and by domain: weak for some, or none.",
        "arXiv:2512.02556 Section 3.1",
    ),
    Misreading(
        "cispo-reversed",
        "CISPO's ratio is pi_old/pi_theta within [1-eps, 1+eps].",
        "It is pi_theta/pi_old, with no lower bound in MiniMax-M1.",
        "arXiv:2506.13585 Eq. 4",
    ),
    Misreading(
        "cispo-speed",
        "CISPO made MiniMax-M1 twice as fast as DAPO.",
        "The factor is steps on Qwen2.5-32B, not wall-clock nor that run.",
        "arXiv:2506.13585 Section 3",
    ),
    Misreading(
        "vapo-71",
        "R1-Zero's 71 beats VAPO's 60.",
        "71 is the model with 671 B parameters; on VAPO's base R1-Zero has 47.",
        "arXiv:2504.05118 Table 1",
    ),
    Misreading(
        "vapo-moved",
        "ByteDance moved from GRPO to VAPO.",
        "Seed1.5-Thinking says that it uses both VAPO and DAPO (secondary source).",
        "Seed1.5-Thinking abstract",
    ),
    Misreading(
        "rpt-loss",
        "RPT adds a likelihood term to the reward.",
        "There is none: it maximises the expected prefix-matching reward.",
        "arXiv:2506.08007 Eq. 2 and 3",
    ),
    Misreading(
        "rpt-scale",
        "RL in pre-training scales as pre-training does.",
        "What was fitted is accuracy against RL compute, from a distilled model on 4,428 items.",
        "arXiv:2506.08007",
    ),
)

MISREADINGS: dict[str, Misreading] = {row.id: row for row in _ROWS}
assert len(MISREADINGS) == len(_ROWS), "a misreading id twice"
