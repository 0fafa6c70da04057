"""What the forward of each part leaves for its backward: counted while layers run, beside what the book of a layer says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from projector.benchmark.insitu import Strip

_FORWARD = "forward "


class _Count:
    """Takes the place of stamps: at each seam what was saved since the one before it."""

    def __init__(self, weights: frozenset[int]) -> None:
        self._seen = set(weights)
        self._since = 0.0
        self.found: dict[str, float] = {}

    def take(self, name: str) -> None:
        if name.startswith(_FORWARD):  # of parts that are alike the first
            self.found.setdefault(name.removeprefix(_FORWARD), self._since)
        self._since = 0.0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        for storage in _storages(tensor):
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self._since += storage.nbytes()
        return tensor


def saved(strip: Strip, draw: Callable[[], tuple[Any, Any]]) -> Mapping[str, float]:
    """Bytes by part of one micro-batch, each storage once where it is first saved, weights and buffers left out."""
    own = (*strip.parameters(), *strip.buffers())
    count: Any = _Count(frozenset(storage.data_ptr() for each in own for storage in _storages(each)))
    with torch.autograd.graph.saved_tensors_hooks(count.pack, lambda tensor: tensor):
        loss = strip(*draw(), count)
    del loss
    found: Mapping[str, float] = count.found
    return found


def _storages(tensor: Any) -> Iterator[torch.UntypedStorage]:
    """Of a tensor's data; of one that wraps others (a shard, the result of a collective under way) theirs."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor.untyped_storage()
        return
    for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
        if isinstance(part, torch.Tensor):  # and no mesh
            yield from _storages(part)
