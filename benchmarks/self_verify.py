"""How well a policy judges its own answers, before and after training.

    python benchmarks/self_verify.py RUN...

RUN is the folder of a run with `task.self_check`. Per run, from its first and last held-out
answers: the accuracy of answers that the policy called right and wrong, honesty, and two kinds of
AUC, of the verdict itself (1 or 0) and of the probability behind it. An AUC compares a right with a
wrong answer: of any two questions, of two questions of one level, of one question. Who knows only
how hard a question is has more than 0.5 in the first and 0.5 in the last. 95 % percentile
intervals over resampled questions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from grpo_cli.recipe.schema import Recipe
from grpo_cli.runfiles import eval_steps, read_eval
from grpo_cli.self_metrics import Judged, self_scalars
from grpo_cli.self_verdict import SelfVerdict
from grpo_cli.stats import auc_interval
from grpo_cli.tasks import load_task
from grpo_cli.types import Status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    for run in parser.parse_args().runs:
        recipe = Recipe.model_validate_json((run / "recipe.json").read_text())
        assert recipe.task.self_check, f"{run}: its task asks for no verdict (task.self_check)"
        prompts = load_task(recipe.task, train=False).held_out(recipe.eval.num_questions)
        level = {prompt.id: str(prompt.meta.get("level", "all")) for prompt in prompts}
        print(run)
        steps = eval_steps(run)
        for step in dict.fromkeys((steps[0], steps[-1])):
            rows = [r for r in read_eval(run, step) if r.status in (Status.OK, Status.UNPARSED)]
            found = self_scalars(
                [Judged(r.score, r.self_verdict or "", r.p_right) for r in rows], ""
            )
            shares = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
            print(f"  step {step}  accuracy {np.mean([r.score for r in rows]):.3f}  {shares}")
            rows = [r for r in rows if r.self_verdict != SelfVerdict.UNREADABLE]
            for name, strata in (
                ("any two questions", ["all"] * len(rows)),
                ("one level", [level[r.question_id] for r in rows]),
                ("one question", [r.question_id for r in rows]),
            ):
                shown = []
                for p in (
                    [float(r.self_verdict == SelfVerdict.RIGHT) for r in rows],
                    [r.p_right for r in rows],
                ):
                    right = [r.score >= 1 for r in rows]
                    clusters = [r.question_id for r in rows]
                    found_auc = auc_interval(p, right, strata, clusters, np.random.default_rng(0))
                    shown.append(
                        f"{found_auc.mean:.3f} [{found_auc.low:.3f}, {found_auc.high:.3f}]"
                    )
                print(f"    AUC, {name:17}  verdict {shown[0]}  probability {shown[1]}")


if __name__ == "__main__":
    main()
