"""Verifiers that run programs: the forging and escape attempts of `verify.attacks`."""

from __future__ import annotations

from grpo_cli.audit.bench import Bench
from grpo_cli.audit.report import Attack, CodeCheck
from grpo_cli.types import Verdict
from grpo_cli.verify.attacks import AttackResult, code_battery, escape_battery
from grpo_cli.verify.sandbox import LEVELS, available_level


def check_code(bench: Bench) -> CodeCheck:
    """Every attack at the level in force, and what the weaker levels would let through.

    Raises:
        GrpoError: GR212 when this machine offers no sandbox.
    """
    level = available_level().name

    def verify(text: str, reference: str) -> Verdict:
        return bench([(text, reference)])[0]

    attacks = tuple(_attack(result) for result in code_battery(verify, level))
    weaker = {
        below: tuple(r.name for r in escape_battery(below) if r.ran and not r.contained)
        for below in LEVELS[LEVELS.index(level) + 1 :]
    }
    return CodeCheck(level, attacks, weaker)


def _attack(result: AttackResult) -> Attack:
    detail = result.detail if result.ran else f"not run: {result.detail}"
    return Attack(result.name, result.family, result.contained, detail)
