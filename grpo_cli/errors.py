"""The one error type of the project, and the table of its codes.

Every problem a person can cause is a `Problem` (what, where, what to do). A `GrpoError` carries
one or more of them and the process exit code: 2 for a usage, recipe or environment error, 3 for a
run that failed at run time. `grpo_cli.cli.main` renders it; nothing else prints a traceback.
"""

from __future__ import annotations

from dataclasses import dataclass

CODES: dict[str, str] = {
    "GR101": "unknown key in a recipe",
    "GR102": "a recipe value has the wrong type or is out of range",
    "GR103": "a required recipe key is missing",
    "GR104": "a recipe is not readable YAML",
    "GR105": "the same key twice in one mapping",
    "GR106": "a recipe file is too large, too deep or uses too many aliases",
    "GR107": "no such recipe, setup or file",
    "GR108": "`extends` goes in a circle",
    "GR109": "a key in the wrong kind of file",
    "GR110": "recipe values that do not fit together",
    "GR111": "a `--set` that cannot be read",
    "GR112": "a plug-in cannot be used",
    "GR201": "the model cannot be loaded",
    "GR202": "the runs folder cannot be used",
    "GR203": "the run folder is in use by another process",
    "GR204": "a checkpoint or a run file is damaged",
    "GR205": "the verifier or the task cannot be loaded",
    "GR206": "no such run",
    "GR207": "the tracker cannot be reached",
    "GR208": "a run folder belongs to another recipe or environment",
    "GR209": "a command-line value cannot be used",
    "GR211": "an audit of a verifier cannot be made as asked",
    "GR212": "no sandbox in which programs of a model may run",
    "GR213": "the verifier has no audit that can be used",
    "GR221": "two arms of an ablation are the same recipe",
    "GR222": "two arms of an ablation cannot differ",
    "GR223": "an ablation of this name has another plan",
    "GR224": "no such ablation, or its plan is damaged",
    "GR231": "arms that differ outside the declared axis",
    "GR232": "runs that cannot be sorted into arms",
    "GR233": "nothing to compare: no score",
    "GR241": "the sampling engine cannot be used",
    "GR301": "training stopped: loss or gradient was not finite",
    "GR303": "the run could not be written",
    "GR304": "the verifier gave no verdict at all",
    "GR305": "out of memory",
    "GR306": "sampler and learner are not the same policy",
    "GW401": "the policy ratio is always 1, so bounds on it do nothing",
    "GW402": "a sequence-level objective with token weighting",
    "GW403": "a sequence-level weight on long completions",
    "GW421": "arms of an ablation that differ by rounding alone",
    "GW422": "arms of an ablation that are measured differently",
    "GW423": "a test that cannot reach its level with so few seeds",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file that a person wrote. Line and column start at 1.

    Example:
        Span(path="recipes/bad.yaml", line=3, column=3, length=9, text="  clip_hgih: 0.3")
    """

    path: str
    line: int
    column: int
    length: int
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: its code, what it is, where it is and what to do about it."""

    code: str
    message: str
    span: Span | None = None
    hint: str | None = None


class GrpoError(Exception):
    """One or more problems that end the command with `exit_code` and no traceback."""

    def __init__(self, *problems: Problem, exit_code: int = 2) -> None:
        assert problems, "a GrpoError needs at least one problem"
        super().__init__("; ".join(f"[{p.code}] {p.message}" for p in problems))
        self.problems = problems
        self.exit_code = exit_code


def error(
    code: str,
    message: str,
    *,
    hint: str | None = None,
    span: Span | None = None,
    exit_code: int = 2,
) -> GrpoError:
    """A `GrpoError` with a single problem: `raise error("GR201", "...", hint="...")`."""
    assert code in CODES, code
    return GrpoError(Problem(code, message, span, hint), exit_code=exit_code)
