"""Implementations of tensor parallelism: autograd functions around local products, or sharded tensors that redistribute."""

from __future__ import annotations

from typing import ClassVar

from projector.dataclass import dataclass
from projector.mechanisms.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Strategy):
    """How collectives run beside products. ``quantised_gather``: cast recipes whose gathers carry 8 bits (``all`` or
    ``tensorwise``). ``backward_overlap``: the input is gathered again beside dgrad, its gradient summed beside wgrad.
    ``gathers_logits``: every rank computes the loss of the whole vocabulary."""

    sharded_tensors: ClassVar[bool]
    """Whether products see whole tensors that are sharded underneath."""
    quantised_gather: str = "all"
    backward_overlap: bool = True
    gathers_logits: bool = False

    def copies(self, kind: str, batch: int) -> bool:
        """Returns whether a collective along the sequence copies the whole tensor, because it joins another dimension."""
        return False


@dataclass(frozen=True, kw_only=True)
class AutogradFunctions(TensorParallel):
    """Megatron-LM core/tensor_parallel, and what compilers make of annotated products."""

    name: ClassVar[str] = "autograd_functions"
    sharded_tensors: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class DTensor(TensorParallel):
    """torch distributed/tensor: weights are sharded tensors that redistribute on the spot, and the wait follows the
    collective; symmetric memory moves it by copy engines (torch distributed/_symmetric_memory). 8-bit gathers are for
    tensor-wise scaling only (torchtitan models/llama3/infra/parallelize.py)."""

    name: ClassVar[str] = "dtensor"
    sharded_tensors: ClassVar[bool] = True
    quantised_gather: str = "tensorwise"
    backward_overlap: bool = False

    def copies(self, kind: str, batch: int) -> bool:
        """Returns True for a scatter, and for a gather unless the batch is one: the sequence is the second dimension
        and collectives join the first, so chunks are concatenated before or after (torch
        distributed/_functional_collectives.py, ``_chunk_or_narrow_cat``, ``_maybe_view_chunk_cat``)."""
        return kind == "reduce_scatter" or batch > 1
