"""FLOP of one training step as frameworks count it in their TFLOP/s, and step seconds from reported TFLOP/s.

Every framework prints TFLOP/s/GPU with its own count (attention halved for causality or not, recompute included or not,
the vocabulary padded or not), and some changed it between releases. The formulas are therefore data of the log, not
physics: the projector's own FLOP count is in ``projector.layers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from projector.errors import Unsupported
from projector.frameworks.flops_formulas import FORMULAS
from projector.frameworks.profiles_io import load, names
from projector.io.files import read_yaml
from projector.workload.workload import Workload

#: (Month from which it holds, formula) in order, by the ``flop_formula`` of a framework file.
_HISTORIES: Mapping[str, tuple[tuple[str, str], ...]] = {
    family: tuple(told.items()) for family, told in read_yaml(Path(__file__).with_suffix(".yaml")).items()
}

#: Formulas that count every kind of layer: by kind, or by parameters.
_EVERY_KIND = frozenset(
    {"megatron-2025-04", "megatron-2026-05", "megatron-bridge-2025-09", "megatron-bridge-2026-04", "6p"}
)


def formulas() -> tuple[str, ...]:
    """Returns the names of all formulas."""
    return tuple(FORMULAS)


def formula_for(framework: str, date: str = "") -> str:
    """Returns the formula of a framework at a date (``YYYY-MM``; empty: the newest).

    Raises :class:`Unsupported` for a framework whose count is not known: then TFLOP/s cannot be turned into seconds.
    """
    family = load(framework).flop_formula if framework in names() else ""
    if not family:
        raise Unsupported(f"how {framework or 'this framework'} counts FLOP is not known")
    history = _HISTORIES.get(family, (("", family),))
    if not date:
        return history[-1][1]
    return [name for since, name in history if since <= date][-1]


@lru_cache(maxsize=1024)
def flops_per_token(workload: Workload, formula: str | None = None) -> float:
    """Returns the FLOP per token of a training step, counted by ``formula`` (None: the framework's own at its date).
    Raises :class:`Unsupported` for an unknown formula, and for layers that the formula does not count."""
    name = formula or formula_for(workload.framework, workload.framework_date)
    if name not in FORMULAS:
        raise Unsupported(f"no FLOP formula {name!r}")
    if name not in ("megatron-2025-04", "megatron-2026-05") and workload.model.tower_kinds:
        raise Unsupported(f"how {name} counts an encoder is not known")
    if name not in _EVERY_KIND and not workload.model.uniform:
        raise Unsupported(f"how {name} counts layers of several kinds is not known")
    return FORMULAS[name](workload)


def step_seconds(workload: Workload, tflops: float, formula: str | None = None) -> float:
    """Returns the seconds of a step that reports ``tflops`` TFLOP/s per GPU. Raises :class:`Unsupported` for a model
    with an encoder: a log's figure rests on its framework's count, which leaves the encoder out or takes one stack's
    sizes for both."""
    if workload.model.tower_kinds:
        raise Unsupported("how a framework counts FLOP of an encoder is not known")
    return flops_per_token(workload, formula) * workload.tokens_per_step / (tflops * 1e12 * workload.gpus)


def tflops_per_gpu(workload: Workload, seconds: float, formula: str | None = None) -> float:
    """Returns the TFLOP/s per GPU that the framework prints for a step of ``seconds``."""
    return flops_per_token(workload, formula) * workload.tokens_per_step / (seconds * 1e12 * workload.gpus)
