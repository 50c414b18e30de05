"""Which questions a filter finds: golds that cannot be scored, ambiguous, given away, guessable."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from grpo_cli.tasks.rows import Row
from grpo_cli.tasks.wording import content_key, question_text
from grpo_cli.types import Status, Verdict

_YES_NO = frozenset({"yes", "no", "true", "false"})
_OPTION_LINE = re.compile(r"(?m)^[ \t]*[(\[]?([A-Z])[)\].:][ \t]")


class GoldVerifier(Protocol):
    """What the filters need of a verifier. `answer(reference)` is the shortest completion that
    states a reference as its answer, or None when the verifier does not say."""

    @property
    def answer(self) -> Callable[[str], str] | None: ...

    def __call__(self, text: str, reference: str) -> Verdict: ...


def gold_problem(verifier: GoldVerifier, gold: str) -> str | None:
    """Why the verifier does not accept a gold as an answer to itself; None when it does.

    A verifier without `answer` is tried with the gold in a box, after a `#` and alone.
    """
    if verifier.answer is not None:
        try:
            texts = [verifier.answer(gold)]
        except ValueError as bad:
            return str(bad)
    else:
        texts = [f"\\boxed{{{gold}}}", f"#{gold}", gold]
    verdicts = [verifier(text, gold) for text in texts]
    if any(v.status is Status.OK and v.score >= 1 for v in verdicts):
        return None
    verdict = verdicts[0]
    return verdict.detail or f"{verdict.status.value}, score {verdict.score:g}"


def ambiguous(rows: Sequence[Row]) -> frozenset[str]:
    """Content keys of the questions that stand in `rows` with different golds."""
    golds: dict[str, set[str]] = {}
    for row in rows:
        golds.setdefault(content_key(row.question), set()).add(_plain(row.gold))
    return frozenset(key for key, found in golds.items() if len(found) > 1)


def contains_gold(row: Row) -> bool:
    """Whether the question's text holds the gold as a word, number or formula of its own.

    Never true of a choice: its letter has to stand there.
    """
    if guess_rate(row) > 0:
        return False
    gold, text = _plain(row.gold), _plain(question_text(row.question))
    before = r"(?<![\w.\-])" if gold[:1].isdigit() else r"(?<!\w)"
    return re.search(rf"{before}{re.escape(gold)}(?!\w|\.\d)", text) is not None


def guess_rate(row: Row) -> float:
    """How often a blind guess is right: 1 / number of choices, 0.5 for yes/no, else 0.

    Choices are the row's own options, or lettered lines (`A: ...`) in the question when the gold is
    one of their letters.
    """
    if row.num_options:
        return 1 / row.num_options
    if row.gold.strip().casefold() in _YES_NO:
        return 0.5
    letter = re.fullmatch(r"\(?([A-Z])\)?\.?", row.gold.strip())
    if letter is None:
        return 0.0
    shown = _OPTION_LINE.findall(question_text(row.question))
    count = len(set(shown))
    wanted = [chr(ord("A") + i) for i in range(count)]
    return 1 / count if count > 1 and sorted(set(shown)) == wanted and letter[1] in shown else 0.0


def _plain(text: str) -> str:
    """Without case, spacing, currency signs and the commas of thousands."""
    return " ".join(re.sub(r"(?<=\d),(?=\d{3})", "", text.casefold().replace("$", " ")).split())
