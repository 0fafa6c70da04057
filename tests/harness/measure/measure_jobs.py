"""Trainings that take milliseconds a step, for tests."""

from collections.abc import Mapping
from typing import Any

from tabled import tabled

LLAMA, GPT, QWEN, LATENT, DEEPSEEK = (
    tabled("trainings", name) for name in ("llama", "gpt", "qwen", "latent", "deepseek")
)
RECIPE: dict[str, Any] = {
    "precision": "fp32", "micro_batch_size": 1, "global_batch_size": 4, "seq_length": 32,
}  # fmt: skip


def job(name: str, model: Mapping[str, Any] = LLAMA, gpus: int = 1, steps: int = 4, **recipe: Any) -> dict[str, Any]:
    """One entry of ``measure``."""
    return {"id": name, "model": dict(model), "recipe": {**RECIPE, **recipe}, "gpus": gpus, "steps": steps}
