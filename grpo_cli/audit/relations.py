"""Relations that a comparison of answers should have, whatever it thinks of each pair.

On a dozen golds every spelling is put against every other, as the completion and as the reference.
A pair that is judged one way and not the other is asymmetric; a = b and b = c without a = c is
intransitive. Spellings whose value is a matter of policy are tried apart: a verifier that lets a
unit be left out breaks transitivity there by design, one that takes 10 % both for 0.1 and for 10 by
mistake. On more golds, reasoning before an answer and polite words after it must change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from grpo_cli.audit.golds import spread
from grpo_cli.audit.oracle import answer_part, parse_value
from grpo_cli.audit.rows import Ask, Gold, accepted
from grpo_cli.audit.template import Template, Wrapper
from grpo_cli.audit.variants import positives
from grpo_cli.audit.wrong import negatives

_MATRIX_GOLDS, _SPELLINGS, _CHATTER_GOLDS = 12, 8, 40
POLICY_TAIL = ", with %, units and rounding"
_BEFORE = "Let me work through this step by step. I start with 3 and add 4, which gives 7. "
CHATTER = {
    "reasoning before": (_BEFORE, ""),
    "8,000 characters of reasoning before": (_BEFORE * 100, ""),
    "polite words after": ("", "\nI hope this helps."),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation.

    Example:
        Relation("symmetric", broken=3, tested=240, example="2 | 2.0")
    """

    name: str
    broken: int
    tested: int
    example: str | None = None


def relations(golds: Sequence[Gold], template: Template, kind: str, ask: Ask) -> list[Relation]:
    """Every relation that fits the verifier's KIND; none for programs."""
    if kind == "code":
        return []
    usable = [(g, w) for g in golds if (w := template.wrapper(g.reference)) is not None]
    found = []
    if kind != "format":
        few = _spread_values(usable)
        for exact in (True, False):
            found += _matrix(few, kind, ask, exact=exact)
    return found + _chatter(usable, kind, ask)


def _spread_values(usable: Sequence[tuple[Gold, Wrapper]]) -> list[tuple[Gold, Wrapper]]:
    """Golds of different answers, at even distances."""
    distinct = {answer_part(g.reference): (g, w) for g, w in reversed(usable)}
    places = spread([gold for gold, _ in reversed(distinct.values())], _MATRIX_GOLDS)
    wrappers = {gold.reference: wrapper for gold, wrapper in distinct.values()}
    return [(gold, wrappers[gold.reference]) for gold in places]


def _matrix(
    usable: Sequence[tuple[Gold, Wrapper]], kind: str, ask: Ask, *, exact: bool
) -> list[Relation]:
    """Symmetry and transitivity over a gold with its exact spellings, or with those of policy."""
    spellings = []
    for gold, wrapper in usable:
        answer = answer_part(gold.reference)
        value = parse_value(answer, letters=kind == "choice")
        made = [v.answer for v in positives(answer, value, kind)[1:] if v.exact is exact]
        wrong = [v.answer for v in negatives(answer, value, kind, ())[:2]]
        distinct = dict.fromkeys([answer, *made[: _SPELLINGS - 3], *wrong])
        spellings.append((wrapper, list(distinct)))
    pairs = [(wrapper.fill(a), b) for wrapper, texts in spellings for a in texts for b in texts]
    verdicts = iter(ask(pairs))
    symmetric: list[tuple[bool, str]] = []
    transitive: list[tuple[bool, str]] = []
    for _, texts in spellings:
        same = {(a, b): next(verdicts) for a in texts for b in texts}
        known = {pair: accepted(v) for pair, v in same.items() if not v.missing}
        for a, b in combinations(texts, 2):
            if (a, b) in known and (b, a) in known:
                symmetric.append((known[a, b] == known[b, a], f"{a} | {b}"))
        for a, b, c in permutations(texts, 3):
            if known.get((a, b)) and known.get((b, c)) and (a, c) in known:
                transitive.append((known[a, c], f"{a} | {b} | {c}"))
    tail = "" if exact else POLICY_TAIL
    return [
        _relation(f"symmetric{tail}", symmetric),
        _relation(f"transitive{tail}", transitive),
    ]


def _chatter(usable: Sequence[tuple[Gold, Wrapper]], kind: str, ask: Ask) -> list[Relation]:
    places = spread([gold for gold, _ in usable], _CHATTER_GOLDS)
    wrappers = {id(gold): wrapper for gold, wrapper in usable}
    texts: list[tuple[str, str]] = []
    for gold in places:
        answer = answer_part(gold.reference)
        value = parse_value(answer, letters=kind == "choice")
        wrong = negatives(answer, value, kind, ())[:1]
        fill = wrappers[id(gold)].fill
        texts += [(fill(a), gold.reference) for a in (answer, *(v.answer for v in wrong))]
    plain = [accepted(v) for v in ask(texts)]
    found = []
    for name, (before, after) in CHATTER.items():
        if after and kind == "format":
            continue  # words outside the tags are what a format verifier is there to refuse
        dressed = [(_insert(text, before) + after, reference) for text, reference in texts]
        outcomes = [
            (accepted(v) == was, text)
            for v, was, (text, _) in zip(ask(dressed), plain, texts, strict=True)
        ]
        found.append(_relation(f"unchanged by {name}", outcomes))
    return found


def _insert(text: str, before: str) -> str:
    """`before` put at the start of the reasoning: inside the think tag where there is one."""
    if text.startswith("<think>"):
        return f"<think>{before}{text.removeprefix('<think>')}"
    return f"{before}\n{text}" if before else text


def _relation(name: str, outcomes: Sequence[tuple[bool, str]]) -> Relation:
    broken = [example for holds, example in outcomes if not holds]
    return Relation(name, len(broken), len(outcomes), broken[0] if broken else None)
