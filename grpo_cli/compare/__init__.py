"""Comparing arms of training runs over seeds. Must not import torch.

`read` and `mlflow_store` turn targets into `RunRecord`s, `arms` sorts them into arms and refuses
what is no fair comparison, `judge` does the statistics, `words` says it in sentences, `text` and
`html` draw it.
"""

from grpo_cli.compare.judge import compare
from grpo_cli.compare.model import Arm, Comparison, Plan, RunRecord

__all__ = ["Arm", "Comparison", "Plan", "RunRecord", "compare"]
