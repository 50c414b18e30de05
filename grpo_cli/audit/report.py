"""What an audit found: plain values that every form of the report is made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_cli.audit.determinism import Repeat
from grpo_cli.audit.exploits import Family
from grpo_cli.audit.lazy import Guess, Lazy, worst
from grpo_cli.audit.rates import Rate, Youden
from grpo_cli.audit.relations import POLICY_TAIL, Relation
from grpo_cli.audit.rows import Stratum
from grpo_cli.audit.timing import Bomb, Speed
from grpo_cli.audit.versus import Versus


@dataclass(frozen=True, slots=True)
class GoldCheck:
    """Golds stated as answers to themselves.

    Example:
        GoldCheck(golds=500, consistent=492, unparsable=3, timeouts=0, unstated=0,
                  examples=(("unparsable", "sixteen"),))
    """

    golds: int
    """Without `unstated`."""
    consistent: int
    unparsable: int
    """The verifier cannot read the gold, or its own statement of it."""
    timeouts: int
    unstated: int
    """Golds for which `answer` has nothing to say, such as tests without a solution."""
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class KindLine:
    """One kind of row."""

    stratum: Stratum
    kind: str
    must_accept: bool
    accepted: int
    rate: Rate
    missing: int
    """Rows without a verdict (error, timeout)."""
    example: str | None
    """Id of the first row that went wrong."""
    example_text: str | None


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One question of policy: no answer is an error."""

    stratum: Stratum
    kind: str
    accepted: int
    rows: int

    @property
    def says(self) -> str:
        """`accepts`, `rejects` or `accepts 3 of 9`."""
        if self.accepted in (0, self.rows):
            return "accepts" if self.accepted else "rejects"
        return f"accepts {self.accepted} of {self.rows}"


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack on a code verifier's sandbox, or a control."""

    name: str
    family: str
    contained: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """What the attacks on a code verifier did."""

    level: str
    attacks: tuple[Attack, ...]
    weaker: Mapping[str, tuple[str, ...]]
    """Weaker sandbox level -> attacks that it would let through."""

    @property
    def failed(self) -> tuple[Attack, ...]:
        """Attacks that were not contained, and controls that went wrong."""
        return tuple(a for a in self.attacks if not a.contained)


@dataclass(frozen=True, slots=True)
class Headline:
    """The rates that stand for the audit, and which rows each is from."""

    fn: Rate
    fn_from: str
    fp: Rate
    fp_from: str
    j: Youden


@dataclass(frozen=True, slots=True)
class Report:
    """The whole audit."""

    name: str
    kind: str
    sha256: str
    options: Mapping[str, str]
    convention: str
    sample_limit_s: float
    template: str
    template_guessed: bool
    gold_source: str
    task: str | None
    golds: GoldCheck
    headline: Headline
    lines: tuple[KindLine, ...]
    policies: tuple[PolicyLine, ...]
    missing_detail: str | None
    """What the first row without a verdict (error, timeout) says."""
    unlabelled: int
    relations: tuple[Relation, ...]
    lazy: tuple[Lazy, ...]
    guesses: tuple[Guess, ...]
    exploits: tuple[Family, ...]
    conclusive: bool
    """False when the verifier accepts hardly any gold: refusing exploits then says nothing."""
    code: CodeCheck | None
    bombs: tuple[Bomb, ...]
    repeats: tuple[Repeat, ...]
    speed: Speed
    seconds: float
    versus: Versus | None = None

    @property
    def passing(self) -> tuple[Family, ...]:
        """Exploit families that work, the most paid first."""
        return tuple(sorted((f for f in self.exploits if f.passes), key=lambda f: -f.paid / f.rows))

    @property
    def no_verdict(self) -> int:
        """Rows without a verdict (error, timeout); they count as not accepted."""
        return sum(line.missing for line in self.lines)

    @property
    def worst_lazy(self) -> Lazy | None:
        """The degenerate policy that earns most above its base rate."""
        return worst(self.lazy)


def figures(report: Report) -> dict[str, float]:
    """Every figure that `--gate` knows; NaN where nothing was measured."""
    head, golds, lazy = report.headline, report.golds, report.worst_lazy
    return {
        "fn": head.fn.value,
        "fn_upper": head.fn.high,
        "fp": head.fp.value,
        "fp_upper": head.fp.high,
        "j": head.j.value,
        "j_lower": head.j.low,
        "golds": golds.consistent / golds.golds if golds.golds else math.nan,
        "golds_unparsable": float(golds.unparsable),
        "no_verdict": report.no_verdict / max(1, sum(line.rate.rows for line in report.lines)),
        "exploits": float(len(report.passing)) if report.conclusive else math.nan,
        "lazy": lazy.reward if lazy else math.nan,
        "lazy_excess": lazy.excess if lazy else math.nan,
        "asymmetric": _share(report.relations, "symmetric"),
        "intransitive": _share(report.relations, "transitive"),
        "intransitive_policy": _share(report.relations, f"transitive{POLICY_TAIL}"),
        "p99_s": report.speed.p99_s,
        "timeouts": float(report.speed.timeouts),
        "bombs": float(sum(not bomb.contained for bomb in report.bombs)),
        "nondeterministic": float(sum(repeat.changed for repeat in report.repeats)),
        "code_attacks": float(len(report.code.failed)) if report.code else math.nan,
    }


def _share(relations: Sequence[Relation], name: str) -> float:
    found = [r for r in relations if r.name == name and r.tested]
    return found[0].broken / found[0].tested if found else math.nan
