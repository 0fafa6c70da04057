"""Muon: the matrix products by which a momentum is made orthogonal before it updates its weight.

Each Newton-Schulz iteration of a matrix X of m × n, m ≤ n, is three products: A = X·Xᵀ, A·A and (bA + cA²)·X, together 4m²n
+ 2m³ FLOP, in bf16 (Jordan et al. 2024; Megatron-LM core/optimizer/emerging_optimizers.py). Queries, keys and values are
matrices of their own; embeddings, output layer and vectors stay with Adam. Where the state is sharded, whole matrices are
spread over the ranks that share it, as evenly as whole matrices can be; elsewhere every rank does all of its own. Tensor
parallelism: ``duplicated`` repeats the whole matrix on every rank, ``distributed`` splits its longer side, ``blockwise``
treats the local part as a matrix of its own. Gathers and Gram reductions over tensor parallelism, once a step, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from projector.frameworks.types import Resolved
from projector.layers.optimizers import MATRICES, MUON
from projector.mechanism import mechanism
from projector.operators.types import Gemm
from projector.operators.weights import WeightSet
from projector.parameter import parameter
from projector.step.timing import Clock

_ITERATIONS = parameter(5, kind="published", source="muon_num_ns_steps of Megatron-LM: Newton-Schulz iterations")
_LAUNCHES = parameter(5, unit="launches", kind="derived", source="of an iteration: its three products and two sums")


def products(resolved: Resolved, part: WeightSet) -> tuple[tuple[Gemm, float], ...]:
    """Returns every product of a rank's step with how often it runs (a share where ranks divide the matrices)."""
    recipe = resolved.workload.recipe
    if recipe.optimizer not in MUON or recipe.lora is not None:
        return ()
    dense, expert = resolved.execution.data_parallel.shards(resolved.workload)
    times = recipe.muon_num_ns_steps or _ITERATIONS
    counted: list[tuple[Gemm, float]] = []
    for rows, columns, count, routed in _matrices(resolved, part):
        short, long = sorted((rows, columns))
        share = times * count / (expert if routed else dense)
        counted += [(op, share) for op in _iteration(short, long)]
    return tuple(counted)


@mechanism(off=0.0)
def seconds(resolved: Resolved, part: WeightSet, clock: Clock) -> float:
    """Returns the seconds of a rank's products: at least those of its costliest matrix and of the host that issues them."""
    counted = products(resolved, part)
    if not counted:
        return 0.0
    times = resolved.workload.recipe.muon_num_ns_steps or _ITERATIONS
    device = sum(share * clock.kernels[op] for op, share in counted)
    costliest = max(times * sum(clock.kernels[op] for op, _ in counted[i : i + 3]) for i in range(0, len(counted), 3))
    issued = sum(share for _, share in counted) / 3.0 * _LAUNCHES * resolved.execution.runtime.launch_us * 1e-6
    return max(device, costliest, issued)


def _iteration(m: int, n: int) -> tuple[Gemm, Gemm, Gemm]:
    return (
        Gemm(name="muon.gram", m=m, n=m, k=n, layout="TN"),
        Gemm(name="muon.square", m=m, n=m, k=m, layout="TN"),
        Gemm(name="muon.update", m=m, n=n, k=m, layout="NN"),
    )


def _matrices(resolved: Resolved, part: WeightSet) -> Iterator[tuple[int, int, float, bool]]:
    """Yields (rows, columns, how many on this rank, whether of routed experts) for every kind of matrix."""
    recipe = resolved.workload.recipe
    for weight, number in part.only(*MATRICES).weights.items():
        repeats = recipe.tp if recipe.muon_tp_mode == "duplicated" and weight.split and not weight.expert else 1
        rows, columns = (repeats if weight.split == side else 1 for side in ("rows", "columns"))
        for part_rows in weight.parts or (weight.rows,):
            yield part_rows * rows, weight.columns * columns, float(number * weight.count), weight.expert
