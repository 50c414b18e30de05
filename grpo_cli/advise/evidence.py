"""What is known, with its source and how strong it is. One row per claim.

A claim says what the source says and no more. `secondary` marks a number that was read in a summary
and not checked in the paper itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal[
    "paper, controlled ablation",
    "paper, one run",
    "several groups report it",
    "practice",
    "hearsay",
    "algebra",
]

GRADES: dict[Grade, str] = {
    "paper, controlled ablation": "one thing changed at a time by the authors; rarely with seeds",
    "paper, one run": "the authors' curves, or whole methods against each other, without seeds",
    "several groups report it": "independent papers report the same finding",
    "practice": "papers or frameworks do it so; that is no test of it",
    "hearsay": "told in a summary; no paper or code at hand says it",
    "algebra": "follows from the formula; says nothing about the size of the effect",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One claim.

    Example:
        Evidence("x", "A is above B", "arXiv:2503.14476 Table 1", "paper, one run")
    """

    id: str
    claim: str
    source: str
    grade: Grade
    secondary: bool = False


_ABLATION: Grade = "paper, controlled ablation"
_ONE_RUN: Grade = "paper, one run"

_ROWS = (
    # Mixture of experts.
    Evidence(
        "gspo-routing-drift",
        "In Qwen3-30B-A3B about 10 % of the active experts change with every gradient update, so "
        "ratios of single tokens are noise; one ratio per sequence trained without routing replay. "
        "Curves only.",
        "GSPO, arXiv:2507.18071 Section 5.3",
        _ONE_RUN,
    ),
    Evidence(
        "gspo-bounds",
        "The ratio is length-normalised, so its bounds are 3e-4 and 4e-4, with 4 minibatches per "
        "rollout batch; these belong to the paper's step size.",
        "GSPO, arXiv:2507.18071 Eq. 7 and Section 5.1",
        "practice",
    ),
    Evidence(
        "r3-table",
        "Routing replay is the alternative, and adds to GSPO. Qwen3-30B-A3B, several updates per "
        "batch: GRPO 48.84 (collapse at step 120), GSPO 66.76, GRPO+R3 68.05, GSPO+R3 69.00.",
        "R3, arXiv:2510.11370",
        _ABLATION,
        secondary=True,
    ),
    Evidence(
        "r3-tis",
        "Qwen3-30B-A3B, one update per batch: GRPO 62.23, with a truncated sampler weight 66.24, "
        "with routing replay 71.83: replay removes a cause that a weight only softens.",
        "R3, arXiv:2510.11370",
        _ABLATION,
        secondary=True,
    ),
    Evidence(
        "gspo-diverges",
        "ScaleRL needed bounds near 1e-3 and saw GSPO diverge; INTELLECT-3 saw a collapse with "
        "samples eight updates old.",
        "ScaleRL, arXiv:2510.13786; INTELLECT-3",
        "several groups report it",
    ),
    Evidence(
        "gspo-length",
        "GSPO keeps the weight 1/|o_i|, so tokens of long answers count less. LUSPO takes it away: "
        "up to +2.9 (7B) and +6.9 (30B-A3B) on AIME24 over GSPO.",
        "LUSPO, arXiv:2602.05261",
        _ONE_RUN,
        secondary=True,
    ),
    Evidence(
        "dppo-moe",
        "On Qwen3-30B-A3B-Base DPPO is reported above GRPO, even with routing replay.",
        "DPPO, arXiv:2602.04879",
        _ONE_RUN,
    ),
    Evidence(
        "minirl-onpolicy",
        "With one update per batch the plain policy gradient with a sampler weight was most "
        "stable; with several, clipping and routing replay were both needed (mixture of experts).",
        "MiniRL, arXiv:2512.01374",
        _ABLATION,
        secondary=True,
    ),
    # DAPO.
    Evidence(
        "dapo-ablation",
        "Qwen2.5-32B, AIME24 avg@32, added one after the other: GRPO 30, overlong filtering 36, "
        "clip-higher 38, soft overlong 41, token loss 42, dynamic sampling 50.",
        "DAPO, arXiv:2503.14476 Table 1",
        _ABLATION,
    ),
    Evidence(
        "dapo-verl",
        "verl's own run of it: 52 complete, 50 without dynamic sampling, 44 without token loss and "
        "dynamic sampling.",
        "verl, recipe `dapo`",
        _ONE_RUN,
    ),
    Evidence(
        "dapo-order",
        "The size of each of DAPO's steps depends on their order, and no seeds are given: dynamic "
        "sampling is 8 points in the paper and 2 in verl's run. The paper itself credits token "
        "loss with stability and length rather than accuracy.",
        "DAPO, arXiv:2503.14476 Table 1; verl",
        _ONE_RUN,
    ),
    Evidence(
        "dapo-cost",
        "Dynamic sampling draws more answers per step, so a comparison by steps flatters it.",
        "DAPO, arXiv:2503.14476 Eq. 11",
        "algebra",
    ),
    Evidence(
        "scalerl-dapo",
        "At large compute DAPO's loss reached a lower asymptote than CISPO's and GSPO's.",
        "ScaleRL, arXiv:2510.13786",
        _ABLATION,
    ),
    # Dr. GRPO and the standard deviation.
    Evidence(
        "length-bias",
        "The weight 1/|o_i| punishes each token of a long wrong answer less: wrong answers grow.",
        "Dr. GRPO, arXiv:2503.20783 Sections 3.1 and 3.2",
        "algebra",
    ),
    Evidence(
        "difficulty-bias",
        "Division by the group's deviation gives prompts that are nearly always or nearly never "
        "solved the largest weight.",
        "Dr. GRPO, arXiv:2503.20783 Sections 3.1 and 3.2",
        "algebra",
    ),
    Evidence(
        "no-std",
        "DeepSeek-V3.2, Olmo 3, MiniRL and prime-rl leave the deviation out.",
        "arXiv:2512.02556 Eq. 5, 2512.13961, 2512.01374; prime-rl",
        "practice",
    ),
    Evidence(
        "std-equal",
        "Scaling the advantage by group, by batch or not at all came out about equal.",
        "ScaleRL, arXiv:2510.13786",
        _ABLATION,
    ),
    Evidence(
        "dr-grpo-equal",
        "Qwen2.5-Math-7B, mean of five benchmarks: GRPO 51.2, Dr. GRPO 51.4, from different "
        "papers: far below the noise of one seed. It repairs a bias; that it scores more is not "
        "known.",
        "arXiv:2503.20783, 2507.20673",
        _ONE_RUN,
        secondary=True,
    ),
    # Off-policy and unstable runs.
    Evidence(
        "scalerl-loss",
        "In a study of 400,000 GPU-hours GSPO came near CISPO's asymptote, and CISPO was the more "
        "robust of the two; caps of 4, 5 and 8 did alike. Repeated runs differ by 0.02, a repeat "
        "error that few studies give.",
        "ScaleRL, arXiv:2510.13786",
        _ABLATION,
    ),
    Evidence(
        "cispo-async",
        "MiniMax-M1 makes 16 updates per batch with CISPO's capped, detached weight, and ScaleRL "
        "samples up to eight updates old.",
        "arXiv:2506.13585 Eq. 4 and 5, 2510.13786",
        "practice",
    ),
    Evidence(
        "dppo-sanity",
        "Without a trust region (plain weights, CISPO) runs drift and collapse in DPPO's sanity "
        "test.",
        "DPPO, arXiv:2602.04879",
        _ONE_RUN,
    ),
    Evidence(
        "scalerl-efficiency",
        "Most of its choices (aggregation, scale, curriculum) change how fast a run gets there, "
        "not where it ends. Its asynchronous pipeline is not here.",
        "ScaleRL, arXiv:2510.13786 abstract",
        _ABLATION,
    ),
    # Precision and the gap between sampler and learner.
    Evidence(
        "fp32-head",
        "Float32 logits on both sides moved the asymptote from 0.52 to 0.61, more than any choice "
        "of loss there.",
        "ScaleRL, arXiv:2510.13786",
        _ABLATION,
    ),
    Evidence(
        "fp32-head-m1",
        "A float32 head raised the correlation of sampler and learner probabilities from 0.987 to "
        "0.997.",
        "MiniMax-M1, arXiv:2506.13585 Section 3",
        _ONE_RUN,
    ),
    Evidence(
        "tis",
        "A capped weight learner / sampler, detached: Yao et al. propose it; verl, slime, OpenRLHF "
        "and open-instruct offer it with a cap near 2, and TRL corrects by default (with a "
        "sequence mask).",
        "Yao et al. 2025, fengyao.notion.site/off-policy-rl",
        "practice",
    ),
    Evidence(
        "seq-weights",
        "Weights over whole sequences fail on long answers. Computed for TRL's default mask at "
        "6.4e-4 nats per token: effective sample size 52 % at 512 tokens, 7 % at 2,048. Weights "
        "per token do not have this.",
        "docs/footguns.md 11 (log-normal model)",
        "algebra",
    ),
    Evidence(
        "tis-variance",
        "A weight takes bias away and adds variance: where the gap is small it can cost more than "
        "it gives (docs/engines.md has a case where it lost).",
        "importance sampling",
        "algebra",
    ),
    Evidence(
        "fp16",
        "Float16 on both sides is reported to lower the mismatch by up to 24 times, and then to "
        "beat the corrections made for bfloat16.",
        "arXiv:2510.26788",
        _ONE_RUN,
        secondary=True,
    ),
    # KL and mixed domains.
    Evidence(
        "kl-domain",
        "The weight of the KL is chosen by domain: for some, such as mathematics, a weak penalty "
        'or "even omitting it entirely" can do better; so a mixed task starts with a weak one.',
        "DeepSeek-V3.2, arXiv:2512.02556 Section 3.1",
        "practice",
    ),
    Evidence(
        "kl-weighted",
        "k3 as a loss has the gradient of the forward KL; weighted by the ratio it has that of "
        "KL(pi || ref), also off-policy.",
        "DeepSeek-V3.2, arXiv:2512.02556 Eq. 7",
        "algebra",
    ),
    Evidence(
        "kl-off",
        "DAPO, Dr. GRPO, GSPO, ScaleRL and Olmo 3 train verifiable tasks without KL.",
        "arXiv:2503.14476, 2503.20783, 2507.18071, 2510.13786, 2512.13961",
        "practice",
    ),
    Evidence(
        "k1-reward",
        "Another study finds the KL inside the reward best, with up to 15 to 20 % more out of "
        "distribution.",
        "arXiv:2512.21852",
        _ONE_RUN,
        secondary=True,
    ),
    Evidence(
        "v32-unpublished",
        "Clip bounds, beta and delta of DeepSeek-V3.2 are not published; 0.001 is R1-Zero's "
        "beta and 0.5 TRL's suggestion for delta. No ablation of the loss is published either.",
        "arXiv:2512.02556, 2501.12948; TRL",
        "practice",
    ),
    Evidence(
        "opsm",
        "A wrong answer that the policy has already left is masked instead of pushed down without "
        "limit.",
        "DeepSeek-V3.2, arXiv:2512.02556 Eq. 9",
        "practice",
    ),
    # Token rewards.
    Evidence(
        "critic-per-token",
        "The group mean gives one advantage for a whole answer. Advantages that differ within it "
        "need a value per token (GAE).",
        "VAPO, arXiv:2504.05118; PPO, arXiv:1707.06347",
        "algebra",
    ),
    Evidence(
        "vapo-table",
        "Same base Qwen2.5-32B, AIME24: R1-Zero-Qwen 47, DAPO 50, VAPO 60. Its reward is for the "
        "outcome, so this says what a good critic may add and nothing about token rewards.",
        "VAPO, arXiv:2504.05118 Table 1",
        _ONE_RUN,
    ),
    Evidence(
        "vapo-ablation",
        "Of VAPO's 60, without value pre-training 11, decoupled GAE 33, length-adaptive GAE 45, "
        "clip-higher 46, token loss 53, positive NLL 54, group sampling 55.",
        "VAPO, arXiv:2504.05118, ablation",
        _ABLATION,
        secondary=True,
    ),
    Evidence(
        "ppo-5",
        "A critic alone is no gain: plain PPO ends at 5 in the same table, and VAPO without value "
        "pre-training at 11.",
        "VAPO, arXiv:2504.05118 Table 1",
        _ABLATION,
        secondary=True,
    ),
    # Reinforcement pre-training.
    Evidence(
        "rpt-setup",
        "RPT is GRPO without KL on a reward of 0 or 1 for the next bytes; dynamic sampling starts "
        "at step 500.",
        "RPT, arXiv:2506.08007 Eq. 2 and 3",
        "practice",
    ),
    Evidence(
        "rpt-gain",
        "Next-token accuracy of R1-Distill-Qwen-14B, easy / medium / hard: 41.60 / 29.46 / 20.43 "
        "before, 45.11 / 33.56 / 23.75 after.",
        "RPT, arXiv:2506.08007",
        _ONE_RUN,
    ),
    Evidence(
        "rpt-narrow",
        "One experiment: a distilled reasoning model on 4,428 mathematics items. Training from "
        "scratch and broad text are future work.",
        "RPT, arXiv:2506.08007",
        _ONE_RUN,
        secondary=True,
    ),
)

EVIDENCE: dict[str, Evidence] = {row.id: row for row in _ROWS}
assert len(EVIDENCE) == len(_ROWS), "an evidence id twice"
