r"""The byte-prefix reward of reinforcement pre-training (RPT, arXiv:2506.08007, Eq. 3).

The score is 1.0 when the prediction equals the first l bytes of the gold continuation and l is the
end of one of its tokens, else 0.0. So one right token is enough, several are as good, and half a
token is wrong. Bytes are compared as they are: case, spaces and Unicode forms count, nothing is
stripped. An empty prediction scores 0.

The reference is JSON: `{"text": continuation, "ends": [bytes up to the end of its first token,
of its second, ...]}`, as the task `next_token` writes it.

The prediction is the content of the last complete `\boxed{}` with balanced braces, after the last
`</think>` when there is one; `\{` and `\}` are plain characters of it. Where the reference also has
`"marker": "#"`, it is everything after the last such marker, for the tiny model; a text that holds
the marker cannot be asked about that way.

UNPARSED with score 0 when there is no such box or marker.
"""

from __future__ import annotations

import json
import re

from grpo_cli.types import Status, Verdict

KIND = "format"  # no number: the audit must make no other spellings of a gold

_BOX, _CLOSED = "\\boxed{", "</think>"
_BRACE = re.compile(r"\\boxed\{|\\[{}\\]|[{}]")


def verify(text: str, reference: str) -> Verdict:
    """Score 1.0 when the prediction of `text` is a whole number of gold tokens, else 0.0.

    Raises ValueError when `reference` is not such JSON.
    """
    gold, ends, marker = _read(reference)
    predicted = _last_box(text) if marker is None else _after(marker, text)
    if predicted is None:
        where = "closed box" if marker is None else f"marker {marker}"
        return Verdict(score=0.0, status=Status.UNPARSED, detail=f"no {where}")
    said = predicted.encode("utf-8", "surrogatepass")
    right = len(said) in ends and gold.startswith(said)
    return Verdict(score=float(right), status=Status.OK, parsed=predicted[:200])


def answer(reference: str) -> str:
    r"""The gold's first tokens in a box or after the marker, as few as can be stated there.

    Raises ValueError when `reference` is not the task's JSON, or when no start of it can be stated:
    its braces do not balance, or it holds the marker.
    """
    gold, ends, marker = _read(reference)
    for end in sorted(ends):
        said = gold[:end].decode("utf-8", "surrogatepass")
        text = f"{_BOX}{said}}}" if marker is None else f"{marker}{said}"
        if (_last_box(text) if marker is None else _after(marker, text)) == said:
            return text
    raise ValueError("no start of the continuation has balanced braces, or none is free of markers")


def _read(reference: str) -> tuple[bytes, frozenset[int], str | None]:
    """The gold bytes, where tokens end in them, and the marker, if one is asked for."""
    try:
        fields = json.loads(reference)
    except (TypeError, RecursionError) as problem:
        raise ValueError(f"the reference is not JSON: {problem}") from None
    known = fields if isinstance(fields, dict) else {}
    text, ends, marker = (known.get(key) for key in ("text", "ends", "marker"))
    if not isinstance(text, str) or not text or not isinstance(ends, list) or not ends:
        raise ValueError("the reference is not {'text': ..., 'ends': [...]}")
    if marker is not None and (not isinstance(marker, str) or not marker):
        raise ValueError("the marker of the reference is not text")
    gold = text.encode("utf-8", "surrogatepass")
    if not all(type(end) is int and 0 < end <= len(gold) for end in ends):
        raise ValueError(f"an end of the reference is not a whole number in 1..{len(gold)}")
    return gold, frozenset(ends), marker


def _after(marker: str, text: str) -> str | None:
    _, found, predicted = text.rpartition(marker)
    return predicted if found else None


def _last_box(text: str) -> str | None:
    """The content of the last box that is closed; one scan, whatever the nesting."""
    start = text.rfind(_CLOSED)
    scan = _BRACE.finditer(text, start + len(_CLOSED) if start >= 0 else 0)
    opened: list[tuple[int, bool]] = []  # where the content of each open brace begins; is it a box?
    content = None
    for brace in scan:
        if brace[0] == _BOX or (brace[0] == "{" and opened):
            opened.append((brace.end(), brace[0] == _BOX))
        elif brace[0] == "}" and opened:
            begin, is_box = opened.pop()
            if is_box:
                content = text[begin : brace.start()]
    return content
