"""Seconds that no stage can beat, known before anything is priced: its products at the peak of the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from projector.frameworks.scope import as_layers_see
from projector.frameworks.types import Resolved
from projector.hardware.types import Gpu
from projector.memo import Recent, Same
from projector.memory.holding import placement
from projector.operators.part import Block
from projector.operators.types import Attention, Gemm, GroupedGemm, Operator
from projector.pipeline.bounds import lower_bound
from projector.step.stages import counted_parts, splits
from projector.workload.composition import Composition, compositions

Floats = NDArray[np.float64]
#: Of every virtual stage ``[…, stages]``: forward, backward without and of the weight gradients where these are apart.
Seconds = tuple[Floats, Floats, Floats]

_LIMITS: Recent[tuple[float, float, float]] = Recent(4096)
_BLOCKS: Recent[tuple[float, float, float]] = Recent(2048)


def limits(resolved: Resolved, gpu: Gpu) -> Seconds:
    """Seconds of one micro-batch: FLOP of its products, by their operand type, over the dense peak of ``gpu``."""
    _, kinds = compositions(resolved.workload.model, resolved.workload.recipe)
    apart = splits(resolved.workload.recipe)
    key = as_layers_see(resolved), Same(gpu), apart, bool(resolved.workload.recipe.defer_embedding_wgrad_compute)
    known = {
        kind: _LIMITS.get((*key, kind), partial(_limit, resolved, gpu, kind, apart)) for kind in dict.fromkeys(kinds)
    }
    forward, inputs, weight = np.array([known[kind] for kind in kinds]).T
    return forward, inputs, weight


def _limit(resolved: Resolved, gpu: Gpu, chunk: Composition, apart: bool) -> tuple[float, float, float]:
    forward = inputs = weight = 0.0
    for part, number in counted_parts(resolved, chunk):
        key = Same(part.block), part.recomputed, Same(gpu)
        own = _BLOCKS.get(key, partial(_of_block, part.block, part.recomputed, gpu))
        forward += number * own[0]
        inputs += number * own[1]
        if part.layers or not resolved.workload.recipe.defer_embedding_wgrad_compute:
            weight += number * own[2]
    return (forward, inputs, weight) if apart else (forward, inputs + weight, 0.0)


def _of_block(block: Block, recomputed: bool, gpu: Gpu) -> tuple[float, float, float]:
    inputs = (*(block.recompute if recomputed else ()), *block.backward_input)
    return _seconds(block.forward, gpu), _seconds(inputs, gpu), _seconds(block.backward_weight, gpu)


def _seconds(operators: Iterable[Operator], gpu: Gpu) -> float:
    return sum(op.flops / gpu.peak_of(op.dtype) for op in operators if isinstance(op, Gemm | GroupedGemm | Attention))


def shortest(runs: Sequence[Resolved], stages: Sequence[Seconds]) -> Floats:
    """``[runs]``: seconds that a step takes at least, in whatever order, by the seconds of its ``stages``."""
    found = np.zeros(len(runs))
    alike: dict[tuple[object, bool], list[int]] = {}
    for i, run in enumerate(runs):
        alike.setdefault((placement(run), splits(run.workload.recipe)), []).append(i)
    for (where, split), rows in alike.items():
        forward, inputs, weight = (np.stack([stages[i][part] for i in rows]) for part in range(3))
        microbatches = np.array([runs[i].workload.num_microbatches for i in rows])
        found[rows] = lower_bound(where, microbatches, forward, inputs, weight, split=split)  # type: ignore[arg-type]
    return found
