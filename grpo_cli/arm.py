"""An arm: one recipe and seed with its adapter, optimizer, run folder and place in the run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from grpo_cli import checkpoint
from grpo_cli.critic import Critic
from grpo_cli.errors import error
from grpo_cli.objective.gae import ValueCritic
from grpo_cli.policy.policy import Policy
from grpo_cli.policy.routing import require_routers
from grpo_cli.policy.state import load_adapter, load_optimizer, save_adapter, save_optimizer
from grpo_cli.recipe.control import RandomReward
from grpo_cli.recipe.schema import Recipe
from grpo_cli.rundir import RunDir, read_metrics


@dataclass(slots=True)
class Progress:
    """Where an arm stands. Everything but weights that the next step depends on; saved as JSON."""

    step: int = 0
    version: int = 0
    """Optimizer steps taken, which names the weights."""
    tokens_generated: int = 0
    prompts_seen: int = 0
    nonfinite: int = 0
    nonfinite_in_a_row: int = 0
    solved: list[str] = field(default_factory=list)
    """Prompts whose group last passed at `filter.pass_rate_ceiling` or above."""
    length_gaps: list[float | None] = field(default_factory=list)
    """`completion/length_gap` of the last steps, oldest first; None where there was none."""


class Arm:
    """One line of the experiment. Randomness comes from the run seed and the step, so nothing of
    it needs saving."""

    def __init__(
        self, recipe: Recipe, seed: int, run: RunDir, policy: Policy, adapter: str
    ) -> None:
        self.recipe = recipe
        self.seed = seed
        self.run = run
        self.adapter = adapter
        self.progress = Progress()
        self._base_rate: float | None = None
        require_routers(policy.routers, recipe.moe, recipe.model.id)
        policy.add_adapter(adapter, recipe.lora, seed)
        self._policy = policy
        self._parameters = policy.parameters(adapter)
        self.reference: str | None = None
        """The adapter of the reference policy; None is the base model."""
        if recipe.kl.beta and recipe.kl.refresh_every:
            self.reference = f"{adapter}ref"
            policy.add_adapter(self.reference, recipe.lora, seed)
        self.critic: Critic | None = None
        if isinstance(recipe.critic, ValueCritic):
            self.critic = Critic(policy, adapter, recipe, recipe.critic, seed)
        # The step before which nothing is on record, so that a fresh run evaluates first.
        self.started = False
        self.optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=recipe.optim.lr,
            betas=recipe.optim.betas,
            weight_decay=recipe.optim.weight_decay,
        )

    @property
    def finished(self) -> bool:
        """Whether every step of the recipe is done."""
        return self.progress.step >= self.recipe.optim.steps

    def set_learning_rate(self) -> float:
        """The learning rate of the coming step, after linear warm-up; sets it."""
        optim = self.recipe.optim
        done = (self.progress.step + 1) / optim.warmup_steps if optim.warmup_steps else 1.0
        lr = 0.0 if self.recipe.control.kind == "no_op" else optim.lr * min(1.0, done)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def coin_rate(self) -> float | None:
        """How often the coin of a `random_reward` arm pays; None for every other arm."""
        control = self.recipe.control
        if not isinstance(control, RandomReward):
            return None
        if control.rate is not None:
            return control.rate
        if self._base_rate is None:
            accuracy = read_metrics(self.run.path)[0].scalars["eval/accuracy"]
            self._base_rate = 0.5 if math.isnan(accuracy) else accuracy
        return self._base_rate

    def refresh_reference(self) -> None:
        """Renew the reference policy when its step has come."""
        every = self.recipe.kl.refresh_every
        if self.reference and every and self.progress.step % every == 0:
            self._policy.copy_adapter(self.adapter, self.reference)

    def save(self) -> None:
        """Write a checkpoint of this step: adapter, optimizer, progress."""

        def write(folder: Path) -> None:
            save_adapter(folder / "adapter", self._policy, self.adapter, self.recipe.model.id)
            if self.reference:
                save_adapter(
                    folder / "reference", self._policy, self.reference, self.recipe.model.id
                )
            save_optimizer(folder / "optimizer.safetensors", self.optimizer, self._parameters)
            if self.critic:
                self.critic.save(folder / "critic")

        checkpoint.save(
            self.run.path,
            self.progress.step,
            write,
            asdict(self.progress),
            keep=self.recipe.checkpoint.keep,
        )

    def resume(self) -> int | None:
        """Take up the newest checkpoint; its step, or None when the run starts from nothing.

        Records after that step are set aside, because they will be made again.

        Raises:
            GrpoError: GR204 when the newest checkpoint is damaged.
        """
        found = checkpoint.latest(self.run.path)
        if found is None:
            self.run.truncate_after(-1)
            return None
        self.run.truncate_after(found.step)
        self.run.check_complete(found.step)
        load_adapter(found.path / "adapter", self._policy, self.adapter)
        load_optimizer(found.path / "optimizer.safetensors", self.optimizer, self._parameters)
        if self.reference:
            load_adapter(found.path / "reference", self._policy, self.reference)
        if self.critic:
            self.critic.load(found.path / "critic")
        try:
            self.progress = Progress(**found.state)
        except TypeError as problem:
            raise error(
                "GR204",
                f"the checkpoint of step {found.step} is of another version: {problem}",
                hint="use the version that made it, or pass --restart to begin a new run",
            ) from problem
        self.started = True
        return found.step
