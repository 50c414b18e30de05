r"""The one boxed or stated final answer of a mathematics completion, compared by meaning.

Where the answer is looked for, in this order:

1. behind the last `</think>`, and inside `<answer>...</answer>` when there is one;
2. in `\boxed{...}` (also `\fbox`, `\boxed 5`, `\beginboxed{...}`);
3. after "final answer is", "the answer is", "Answer:", "####";
4. the whole text, only when it is nothing but one line of mathematics;
5. in the last sentence, when it ends in its only `$...$` and asserts it ("so it is $5$", "we get
   $5$", "Total: $5$"). A task said back ("Simplify $2 + 3$.") asserts nothing.

No answer is ever picked out of running text. UNPARSED with score 0: no answer, an unfinished
`<think>`, a box that is empty or cut off, several final answers that differ, an answer that is
denied ("not \boxed{4}", "\boxed{4} is wrong"), an answer too large to be one (towers of powers,
thousands of brackets or digits).

What is the same: numbers in any notation (fractions, mixed numbers, decimals, repeating decimals,
thousands separators, scientific notation, another base with its subscript, full-width digits),
expressions equal at all points (never within an absolute tolerance), equations that are multiples
of one another, intervals and inequalities, `x = 5` and 5, f(t) = t + 1 and f(x) = x + 1, ± and its
two values, words without regard to case and markup. Rational numbers are compared exactly.

The verifier does not know the question: an expression that equals the reference is right in a box
also where the question asks for its value, so `\boxed{\binom{31}{28}}` states 4495.

What is policy (the first value of each option is the default):

- percent: `sign`: the sign is a unit that one side may leave out, 25% is 25 and never 0.25;
  `fraction`: 25% is 0.25 and never 25; `strict`: 25% is only 25%.
- order: `lists_free`: the order of `1, 2` does not count, that of `(1, 2)` does; `strict`: it
  counts in both; `free`: in neither. It never counts in `{1, 2}`.
- rounding: `reference`: a decimal reference of 3 or more significant digits is also met by a
  fraction or root that rounds to it, and an exact reference by a decimal of 6 or more; only values
  without a finite decimal can round. `strict`: 0.333333 is not 1/3.
- units: `optional`: a unit may be left out on one side, two different units never match (nor are
  they converted; 90 degrees is pi/2 and 90); `strict`: it may not; `ignore`: units do not count.

What the grammar cannot read (integrals, sums) goes to math-verify, as LaTeX that passed the size
limits, with its timers off. Nothing is passed to `eval` or to a parser built on it.

The parts, in the order of the work: `extract` finds the answer, `notation` and `grammar`
(`factors`, `tree`) read it, `equal` (`regions`, `values`, `exact`, `symbolic`) compares.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
import sys
import types
from pathlib import Path
from typing import Any

from grpo_cli.types import Status, Verdict

KIND = "math"
OPTIONS: dict[str, tuple[str, ...]] = {
    "percent": ("sign", "fraction", "strict"),
    "order": ("lists_free", "strict", "free"),
    "rounding": ("reference", "strict"),
    "units": ("optional", "strict", "ignore"),
}


def _sibling(name: str) -> Any:
    """A module of this folder. The package name holds the folder, so copies do not mix."""
    folder = Path(__file__).resolve().parent
    code = b"".join(p.read_bytes() for p in sorted(folder.glob("*.py")))
    package = f"grpo_math_{hashlib.sha256(str(folder).encode() + code).hexdigest()[:16]}"
    if package not in sys.modules:
        module = types.ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules.setdefault(package, module)
    return importlib.import_module(f"{package}.{name}")


extract = _sibling("extract")
grammar = _sibling("grammar")
notation = _sibling("notation")
regions = _sibling("regions")
equality = _sibling("equal")
symbolic = _sibling("symbolic")
values = _sibling("values")


def verify(
    text: str,
    reference: str,
    *,
    percent: str = "sign",
    order: str = "lists_free",
    rounding: str = "reference",
    units: str = "optional",
) -> Verdict:
    """Score 1.0 when the one final answer of `text` means what `reference` means, else 0.0.

    `reference` is an answer, with or without `$` or a box. Raises ValueError when it is empty or
    too large, or when an option has a value that OPTIONS does not list.
    """
    chosen = {"percent": percent, "order": order, "rounding": rounding, "units": units}
    for name, value in chosen.items():
        if value not in OPTIONS[name]:
            raise ValueError(f"{name} is {value!r}; it can be {', '.join(OPTIONS[name])}")
    policy = equality.Policy(**chosen)
    wanted = _gold(reference)
    try:
        found = extract.answers_in(text)
    except extract.Refused as refused:
        return _unparsed(str(refused))
    try:
        answer = _one(found, policy, joint=_members(wanted) > 1)
        if answer is None:
            return _unparsed(f"{len(set(found))} different final answers")
        right = _same(wanted, answer, policy)
    except notation.TooBig as big:
        return _unparsed(str(big))
    except RecursionError:
        return _unparsed("an answer nested too deep")
    return Verdict(score=float(right), status=Status.OK, parsed=_shown(answer))


def answer(reference: str) -> str:
    r"""The shortest completion that states `reference`: `\boxed{...}`."""
    return f"\\boxed{{{_gold(reference)}}}"


def _unparsed(detail: str) -> Verdict:
    return Verdict(score=0.0, status=Status.UNPARSED, detail=detail)


def _shown(answer: str) -> str:
    return answer if len(answer) <= 200 else answer[:200] + "..."


# --- the reference ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _gold(reference: str) -> str:
    """The reference's answer without box or delimiters around it."""
    if len(reference) > 20 * notation.MAX_CHARS:
        raise ValueError(f"the reference has {len(reference)} characters")
    try:
        found = extract.boxes_in(reference)
    except extract.Refused as refused:
        raise ValueError(f"the reference cannot be used: {refused}") from refused
    boxes = [b.body for b in found if b.body is not None and b.body.strip()]
    gold: str = ", ".join(dict.fromkeys(boxes)) if boxes else reference
    gold = extract.undelimited(gold)
    try:
        blank = grammar.read(gold) == grammar.Node("text", (), "")
    except (notation.TooBig, RecursionError) as big:
        raise ValueError(f"the reference cannot be used: {big}") from big
    if blank:
        raise ValueError(f"the reference {reference!r} holds no answer")
    return gold


def _members(gold: str) -> int:
    return len(regions.expand(_read(gold)))


def _one(found: list[str], policy: Any, *, joint: bool) -> str | None:
    """The one answer, or None when several differ. With a reference of several values, boxes may
    share the list between them."""
    distinct: list[str] = []
    for candidate in found:
        if not any(_same(candidate, kept, policy) for kept in distinct):
            distinct.append(candidate)
        if len(distinct) > 20:
            return None
    if len(distinct) == 1:
        return distinct[0]
    return ", ".join(distinct) if joint else None


# --- equality --------------------------------------------------------------------------------


# Three letters may be a product of variables; as a name they match without regard to case.
_WORD = re.compile(r"(?:\\text\w*\{)?[A-Za-z][a-z]{2,}\}?")


def _same(reference: str, answer: str, policy: Any) -> bool:
    if reference == answer:
        return True
    if notation.clean(reference) == notation.clean(answer):
        return True
    words = notation.plain(reference), notation.plain(answer)
    if words[0] == words[1] and _WORD.fullmatch(reference) and _WORD.fullmatch(answer):
        return True
    ref, ans = _read(reference), _worked(_read(answer), policy)
    if equality.same(ref, ans, policy):
        return True
    if "text" in (ref.op, ans.op) or _sums_matrices(ref) or _sums_matrices(ans):
        return bool(symbolic.same(reference, answer))
    return False


def _worked(node: Any, policy: Any) -> Any:
    """`41 + 1 = 42` states 42: the last of equal numbers. Any other node as it is."""
    if node.op != "rel" or set(node.value) != {"="} or not all(map(_number, node.args)):
        return node
    last = node.args[-1]
    return last if all(equality.same(last, side, policy) for side in node.args[:-1]) else node


def _number(node: Any) -> bool:
    return bool(regions.is_expression(node)) and not values.variables(node)


def _sums_matrices(node: Any) -> bool:
    inner = any(a.op == "matrix" or _sums_matrices(a) for a in node.args)
    return inner and node.op in ("add", "mul", "neg", "div", "pow")


@functools.lru_cache(maxsize=4096)
def _read(answer: str) -> Any:
    return grammar.read(answer)
