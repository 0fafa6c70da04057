"""The gradients of one rank between backward and update: reduced over the groups of its parameters, then clipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.measure.model import Ranks, Stage
from projector.benchmark.exchange import BUCKET
from projector.benchmark.layers_moe import Experts
from projector.benchmark.update import CLIP, gradient, local
from projector.dataclass import dataclass
from projector.workload.workload import Workload


@dataclass(frozen=True)
class Weight:
    """A parameter as its rank holds it: ``own`` shares the storage of the local part of ``whole``. ``copies``: ranks of
    the job that hold the same elements; ``group``: the ranks among which gradients are averaged."""

    whole: nn.Parameter
    own: nn.Parameter
    copies: int
    group: Any

    def take(self, scale: float) -> None:
        """Hands the gradient of ``whole`` to ``own``, times ``scale``."""
        grad = gradient(self.whole)
        self.own.grad = None if grad is None else grad if scale == 1.0 else grad.mul_(scale)


class Gradients:
    """The gradients of the ``stages`` of one rank. ``partial``: parameters of whose gradients each tensor-parallel rank
    holds a part; ``sharded``: FSDP2 reduces them itself."""

    def __init__(
        self, workload: Workload, stages: Sequence[Stage], ranks: Ranks, partial: Sequence[nn.Parameter], sharded: bool
    ) -> None:
        self.workload, self.ranks, self.partial, self.sharded = workload, ranks, partial, sharded
        tables = [stage.embedding.table for stage in stages if stage.embedding is not None]
        modules = [*tables, *(stage.head.output for stage in stages if stage.head is not None)]
        two_copies = not workload.model.untie_embeddings_and_output_weights and ranks.ends is not None
        self._tied = {id(module.weight) for module in modules} if two_copies else set()
        self.weights = self._weights(stages)

    def reduce(self) -> None:
        """Reduces gradients: sums them over tensor-parallel ranks where each saw its heads alone, and over the two
        copies of a tied embedding; averages them over data-parallel ranks (of an expert, over the batch of all)."""
        for parameter in self.partial:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.ranks.tp)
        for weight in self.weights:
            weight.take(1.0 if self.sharded or self.ranks.dp_size == 1 else 1.0 / self.ranks.dp_size)
        for weight in self.weights:
            if id(weight.whole) in self._tied:
                dist.all_reduce(weight.own.grad, group=self.ranks.ends)
        if not self.sharded:
            for group in dict.fromkeys(weight.group for weight in self.weights):
                if group is not None:
                    _all_reduce(
                        [w.own.grad for w in self.weights if w.group is group and w.own.grad is not None], group
                    )

    def clip(self) -> Tensor:
        """Scales the gradient to a norm of at most :data:`CLIP`, and returns the norm before."""
        held = [(weight.own.grad, weight.copies) for weight in self.weights if weight.own.grad is not None]
        gradients = [gradient for gradient, _ in held]
        norms = torch.stack(torch._foreach_norm(gradients))
        square = (norms.square() / norms.new_tensor([copies for _, copies in held])).sum()
        if self.workload.gpus > 1:
            dist.all_reduce(square)
        norm = square.sqrt()
        torch._foreach_mul_(gradients, (CLIP / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def clear(self) -> None:
        """Frees the gradients' memory."""
        for weight in self.weights:
            weight.whole.grad = weight.own.grad = None

    def _weights(self, stages: Iterable[Stage]) -> list[Weight]:
        """Returns every parameter of this rank once."""
        by_id: dict[int, Weight] = {}
        dp, tp, edp = self.ranks.dp_size, self.workload.recipe.tp, self.workload.edp
        for stage in stages:
            experts = {id(p) for m in stage.modules() if isinstance(m, Experts) for p in m.parameters()}
            for parameter in stage.parameters():
                if id(parameter) in by_id:
                    continue
                expert = id(parameter) in experts
                cut = isinstance(parameter, DTensor) and any(place.is_shard() for place in parameter.placements)
                copies = 1 if self.sharded else edp if expert else dp if cut or tp == 1 else dp * tp
                copies *= 2 if id(parameter) in self._tied else 1
                local_part = nn.Parameter(local(parameter.detach()))
                group = self.ranks.edp if expert else self.ranks.dp
                by_id[id(parameter)] = Weight(parameter, local_part, copies, group)
        return list(by_id.values())


def _all_reduce(gradients: Sequence[Tensor], group: Any) -> None:
    """Sums over ``group`` in place, as many gradients at once as a bucket holds."""
    bucket: list[Tensor] = []
    for i, grad in enumerate(gradients):
        bucket.append(grad)
        if i == len(gradients) - 1 or sum(g.numel() * g.element_size() for g in bucket) >= BUCKET:
            flat = torch.cat([g.flatten() for g in bucket])
            dist.all_reduce(flat, group=group)
            for g, part in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                g.copy_(part.view_as(g))
            bucket = []
