"""What the filters would find in a list of rows, whether or not they are on."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_cli.seeds import seed63
from grpo_cli.tasks.filters import (
    GoldVerifier,
    ambiguous,
    contains_gold,
    gold_problem,
    guess_rate,
)
from grpo_cli.tasks.rows import Row
from grpo_cli.tasks.wording import content_key


def found_by_filters(rows: Sequence[Row], verifier: GoldVerifier, num_golds: int) -> dict[str, str]:
    """Filter -> how many rows it finds, in words. Only `num_golds` golds are checked, since that
    may be slow: a sample made from the content, spread over the whole set."""
    unclear = ambiguous(rows)
    rates = [guess_rate(row) for row in rows]
    guessable = [rate for rate in rates if rate > 0]
    order = sorted(range(len(rows)), key=lambda i: seed63("golds", rows[i].gold, i))
    golds = [rows[i].gold for i in order[:num_golds]]
    best = f", chance up to {max(guessable):.2f}" if guessable else ""
    return {
        "unparsable": f"{bad_golds(verifier, golds)} of {len(golds)} checked",
        "ambiguous": str(sum(content_key(row.question) in unclear for row in rows)),
        "contains_gold": str(sum(contains_gold(row) for row in rows)),
        "guessable": f"{len(guessable)}{best}",
    }


def bad_golds(verifier: GoldVerifier, golds: Sequence[str]) -> int:
    """How many golds the verifier does not accept as an answer to themselves."""
    return sum(gold_problem(verifier, gold) is not None for gold in golds)
