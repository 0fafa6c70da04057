"""Does what a rank does with its gradients once a step: norm and clipping, Adam, fp32 copies of narrow weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

CLIP = 1.0  # Megatron-LM --clip-grad
_RATE = 1e-5  # small: weights must stay what they are, however often a step is timed
ADAM: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}  # Megatron-LM --adam-beta1, --adam-beta2, --adam-eps


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that ranks share."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Update:
    """Clip and fused Adam on this rank's parts of ``parameters``; ``masters``: weights of 16 bits have fp32 copies that
    Adam updates. ``apart``: the norm is that of this rank alone, not of all (nobody else updates at the same time)."""

    def __init__(self, parameters: Iterable[nn.Parameter], masters: bool = True, apart: bool = False) -> None:
        self.parameters = list(parameters)
        self.own = [nn.Parameter(local(p.detach())) for p in self.parameters]
        narrow = (torch.bfloat16, torch.float16) if masters else ()
        self.masters = [nn.Parameter(p.detach().float()) if p.dtype in narrow else p for p in self.own]
        self._sums = not apart and dist.is_initialized() and dist.get_world_size() > 1
        self.optimizer = torch.optim.Adam(self.masters, lr=_RATE, fused=True, **ADAM)

    def __call__(self) -> None:
        """Updates once and drops the gradients."""
        self.step()
        for parameter, own in zip(self.parameters, self.own, strict=True):
            parameter.grad = own.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Updates once and keeps the gradients."""
        for parameter, own in zip(self.parameters, self.own, strict=True):
            own.grad = gradient(parameter)
        gradients = [own.grad for own in self.own if own.grad is not None]
        self._clip(gradients)
        copies = [(m, p) for m, p in zip(self.masters, self.own, strict=True) if m is not p]
        for master, own in copies:
            master.grad = None if own.grad is None else own.grad.float()
        self.optimizer.step()
        for master, own in copies:
            own.copy_(master)
            master.grad = None

    def _clip(self, gradients: list[Tensor]) -> None:
        norms = torch._foreach_norm(gradients)
        square = torch.stack([norm.float() for norm in norms]).square().sum()
        if self._sums:
            dist.all_reduce(square)
        torch._foreach_mul_(gradients, (CLIP / (square.sqrt() + 1e-6)).clamp(max=1.0))


def gradient(parameter: nn.Parameter) -> Tensor | None:
    """Returns the gradient of this rank's part: it comes out whole where the weight is a shard (embeddings by rows)."""
    whole_or_part = parameter.grad
    if isinstance(whole_or_part, DTensor) and isinstance(parameter, DTensor):
        return whole_or_part.redistribute(placements=parameter.placements).to_local()
    return whole_or_part
