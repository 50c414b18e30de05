"""A critic: a value head and a LoRA adapter of its own on the policy's base model.

Dims: T completion tokens laid end to end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_cli.forward import Forward, joined
from grpo_cli.objective.gae import ValueCritic, value_loss
from grpo_cli.policy.policy import Policy
from grpo_cli.policy.state import copy_into, load_optimizer, save_optimizer
from grpo_cli.recipe.schema import Recipe
from grpo_cli.types import Batch, Metric


class Critic:
    """The expected return before every token. It starts at 0 everywhere."""

    def __init__(
        self, policy: Policy, adapter: str, recipe: Recipe, settings: ValueCritic, run_seed: int
    ) -> None:
        self.settings = settings
        self._recipe = recipe
        self._policy = policy
        self._adapter = f"{adapter}critic"
        policy.add_adapter(self._adapter, recipe.lora, run_seed)
        self._head = torch.nn.Linear(policy.head.weight.shape[1], 1).to(policy.device)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        self._parameters = {
            **policy.parameters(self._adapter),
            **{f"value_head.{name}": p for name, p in self._head.named_parameters()},
        }
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=settings.lr, weight_decay=0.0
        )

    def trains_alone(self, step: int) -> bool:
        """Whether the policy still waits in `step`, counted from 1."""
        return step <= self.settings.pretrain_steps

    def values(self, forward: Forward, rows: Sequence[int]) -> dict[int, Tensor]:
        """Sequence -> the value before each of its tokens, without gradient."""
        found: dict[int, Tensor] = {}
        with torch.no_grad():
            for some in forward.micro_batches(rows):
                found |= forward.by_sequence(some, self._values(forward, some))
        return found

    def _values(self, forward: Forward, rows: Sequence[int]) -> Tensor:
        hidden_TD = self._policy.hidden(
            self._adapter,
            [forward.batch.prompt_ids_N[n] for n in rows],
            [forward.batch.completion_ids_N[n] for n in rows],
        )
        values: Tensor = self._head(hidden_TD.float())[:, 0]
        return values

    def update(self, batch: Batch, parts: Sequence[Sequence[int]]) -> dict[str, Metric]:
        """One optimizer step per minibatch and epoch, on the batch's returns; its metrics.

        A step whose loss or gradient is not finite is not taken.
        """
        assert batch.value_N is not None
        assert batch.return_N is not None
        forward = Forward(self._policy, batch, self._recipe)
        metrics: dict[str, Metric] = {}

        def add(name: str, metric: Metric) -> None:
            metrics[name] = metrics[name] + metric if name in metrics else metric

        for epoch in range(self._recipe.optim.epochs_per_batch):
            for part in parts:
                rows_in = [n for n in part if batch.length_N[n]]
                num_tokens = int(batch.length_N[rows_in].sum())
                if not num_tokens:
                    continue
                self._optimizer.zero_grad(set_to_none=True)
                total, clipped = 0.0, 0
                for rows in forward.micro_batches(rows_in):
                    value_T = self._values(forward, rows)
                    loss_T, stopped_T = value_loss(
                        value_T,
                        joined(batch.value_N, rows).to(value_T),
                        joined(batch.return_N, rows).to(value_T),
                        self.settings.clip,
                    )
                    share = loss_T.sum() / num_tokens
                    share.backward()
                    total += float(share.detach())
                    clipped += int(stopped_T.sum())
                norm = float(
                    torch.nn.utils.clip_grad_norm_(
                        self._parameters.values(), self._recipe.optim.max_grad_norm
                    )
                )
                add("value/clipped_frac", Metric(clipped, num_tokens))
                finite = math.isfinite(total) and math.isfinite(norm)
                add("value/nonfinite_frac", Metric(not finite, 1))
                if not finite:
                    continue
                if epoch == 0:
                    add("value/loss", Metric(total * num_tokens, num_tokens))
                add("value/grad_norm", Metric(norm, 1))
                self._optimizer.step()
        return metrics

    def save(self, folder: Path) -> None:
        """Write adapter, head and optimizer into a new folder."""
        folder.mkdir(parents=True)
        tensors = {k: p.detach().contiguous().cpu() for k, p in self._parameters.items()}
        save_file(tensors, folder / "critic.safetensors")
        save_optimizer(folder / "optimizer.safetensors", self._optimizer, self._parameters)

    def load(self, folder: Path) -> None:
        """Take back what `save` wrote.

        Raises:
            GrpoError: GR204 when the tensors are not those of this critic.
        """
        copy_into(load_file(folder / "critic.safetensors"), self._parameters, folder)
        load_optimizer(folder / "optimizer.safetensors", self._optimizer, self._parameters)


def value_scalars(batch: Batch) -> dict[str, float]:
    """The `value/*` metrics of a batch, with the critic before its update; none without one."""
    if not batch.value_N or batch.return_N is None or batch.right_N is None:
        return {}
    right = batch.right_N.tolist()
    rows = sorted(batch.value_N)
    return_T, value_T = joined(batch.return_N, rows).double(), joined(batch.value_N, rows).double()
    spread = float(return_T.var(correction=0))
    left = float((return_T - value_T).var(correction=0))
    found = {"value/explained_variance": 1 - left / spread if spread > 1e-12 else math.nan}
    for name, wanted in (("right", True), ("wrong", False)):
        some = [batch.value_N[n] for n in rows if right[n] is wanted]
        for place, index in (("first", 0), ("last", -1)):
            values = [float(value[index]) for value in some]
            found[f"value/{place}_{name}"] = sum(values) / len(values) if values else math.nan
    return found
