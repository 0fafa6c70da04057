"""The usual values of a run where nobody states them: samples of a step, tokens of a sample and of the whole run."""

from __future__ import annotations

import math

from projector.parameter import parameter
from projector.workload.model import Model
from projector.workload.parameters import count

BUDGET = 8.0  # CPU seconds of a search
SEQ_LENGTH = parameter(8192, kind="published", source="pre-training of Llama 3, arXiv 2407.21783", unit="tokens")
PER_PARAMETER = parameter(
    20, kind="published", source="compute-optimal training, Hoffmann et al. 2022, arXiv 2203.15556", unit="tokens"
)
_SMALL, _USUAL, _LARGE = parameter(
    (2**20, 2**22, 2**24),
    unit="tokens",
    kind="published",
    source="tokens of a step: GPT-3 1.3B 1M (arXiv 2005.14165, table 2.1), Llama 2 7B to 70B 4M (arXiv 2307.09288), Llama 3 "
    "405B 16M (arXiv 2407.21783)",
)
_FEW, _MANY = parameter((3e9, 1e11), kind="assumed", source="parameters that tell these three apart")
_GPUS = parameter(8, kind="assumed", source="GPUs that share a sample at the most where a job is large: a node")


def tokens_per_step(model: Model) -> int:
    """Returns the usual tokens of a step for models of this size."""
    size = count(model).main
    return int(_SMALL if size < _FEW else _LARGE if size > _MANY else _USUAL)


def samples_per_step(model: Model, seq_length: int, gpus: int) -> int:
    """Returns a global batch of about :func:`tokens_per_step` tokens: a power of two times the odd part of ``gpus``, so
    that it can be divided among ranks, and no fewer samples than there are nodes."""
    odd = gpus // (gpus & -gpus)
    wanted = max(tokens_per_step(model) / seq_length, gpus / _GPUS)
    return odd << max(0, round(math.log2(wanted / odd)))


def tokens_of_a_run(model: Model) -> float:
    """Returns the tokens on which a model of this size is trained at least: :data:`PER_PARAMETER` for each parameter
    (of experts, those in use)."""
    return PER_PARAMETER * float(count(model).active)
