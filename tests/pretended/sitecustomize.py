"""GPUs that are pretended at the edge of the driver: with this folder on PYTHONPATH, torch of a CPU says that it sees some.

What is issued to ``cuda`` goes to the CPU; what reads or writes a large tensor is not computed, only given its shape (pages
that nobody touches cost nothing); collectives of large tensors return at once. The clock of measurements runs ahead, so
that their budgets end sooner. Flow and files are those of a device, figures are not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import torch._dynamo  # before anything is replaced, of which it keeps a list
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork, Work
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode

_LARGE, _FASTER = 2**18, 20.0  # bytes above which nothing is computed; seconds of the clock in one
_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CPU = torch.device("cpu")
_clock, _known = time.perf_counter, dict[str, Any]()


class _Device(TorchDispatchMode):
    """Every operator: on the CPU where it is small, else by shape alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would load the compiler into every process

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return func(*args, **(kwargs or {}))  # of DTensor, whose parts torch sees to beneath every mode
        kwargs = {name: _CPU if isinstance(word, torch.device) else word for name, word in (kwargs or {}).items()}
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        large = _large(tensors)
        made_of_none = not tensors and func.namespace == "aten"
        if func.is_view or not (large or made_of_none) or any(each.is_meta for each in tensors):
            return func(*args, **kwargs)
        if func.namespace == "c10d":
            return _sent(func, args)
        if func._schema.is_mutable:
            return _written(func, args, kwargs)
        made = _shaped(func, args, kwargs)
        return func(*args, **kwargs) if made is None or not (large or _large(_tensors((made,)))) else _each(made, _like)


def _tensors(values: Any) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


def _large(tensors: Iterable[Tensor]) -> bool:
    return any(each.numel() * each.element_size() > _LARGE for each in tensors)


def _each(value: Any, how: Callable[[Tensor], Any]) -> Any:
    """``how`` of every tensor in it."""
    if type(value) in (list, tuple):
        return type(value)(_each(part, how) for part in value)
    return how(value) if isinstance(value, Tensor) else value


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator returns that writes into its arguments, without doing it."""
    known = func._schema.arguments
    given = {**dict(zip((each.name for each in known), args, strict=False)), **kwargs}
    found = tuple(given[each.name] for each in known if each.is_write)[: len(func._schema.returns)]
    return found[0] if len(found) == 1 else found or None


def _shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on tensors without data; None where its shape depends on them."""
    given = (args, tuple(kwargs.items()))
    key = str((func, _each(given, lambda each: (tuple(each.shape), each.stride(), each.dtype))))
    if key not in _known:
        names = {each.name for each in func._schema.arguments}
        apart = {"device": torch.device("meta"), "generator": None}
        bare, named = _each(given, partial(_like, place="meta"))
        try:
            _known[key] = func(*bare, **{**dict(named), **{name: apart[name] for name in apart if name in names}})
        except (NotImplementedError, RuntimeError):
            _known[key] = None
    return _known[key]


def _like(tensor: Tensor, place: str = "cpu") -> Tensor:
    """Pages that nobody has written are no memory, and a small result is one that can be read."""
    if place == "cpu" and not _large([tensor]):
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)


def _sent(func: Any, args: Any) -> Any:
    """A collective that is done as it is called."""
    work = Work.boxed(FakeWork())
    return work if len(func._schema.returns) == 1 else (args[0], work)


class _Event:
    """A moment on the host, where everything is done as it is issued."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) * 1e3

    wait = synchronize = lambda *_: None


_STATED = {"multi_processor_count": 132, "clock_rate": 1_980_000, "L2_cache_size": 50 * 2**20}
_NOTHING = (
    *("_lazy_init", "init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "_sleep"),
    *("manual_seed", "manual_seed_all", "set_rng_state", "get_rng_state"),
)
_ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "current_device")
_SAID: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_current_stream_capturing": False,
    "device_count": int(os.environ.get("PRETENDED_GPUS", "2")),
    "get_device_name": "NVIDIA H100 80GB HBM3",
    "get_device_capability": (9, 0),
    "get_device_properties": SimpleNamespace(**_STATED),
    "mem_get_info": (80 * 2**30, 80 * 2**30),
    "stream": nullcontext(),
    "current_stream": MagicMock(),
    "default_stream": MagicMock(),
}


def _pretend() -> None:
    for name, answer in {**dict.fromkeys(_NOTHING), **dict.fromkeys(_ZERO, 0), **_SAID}.items():
        setattr(torch.cuda, name, partial(_answered, answer))
    torch.cuda.Event, torch.cuda.Stream = _Event, MagicMock
    torch.cuda.random.get_rng_state = torch.cuda.random.set_rng_state = partial(_answered, None)
    torch.cuda.default_generators = [MagicMock()] * _SAID["device_count"]
    torch.accelerator.current_stream = partial(_answered, SimpleNamespace(is_capturing=lambda: False))
    torch.version.cuda = "12.8"
    torch.backends.cuda.preferred_blas_library = partial(_answered, None)
    made, joins, makes, mesh = torch.tensor, dist.init_process_group, dist.new_group, DeviceMesh.__init__
    torch.tensor = lambda *a, device=None, **k: made(*a, **k)  # it moves what it made behind every mode
    dist.init_process_group = lambda backend=None, *a, **k: joins("gloo", *a, **k)
    dist.new_group = lambda *a, **k: makes(*a, **{**k, "backend": "gloo"})
    DeviceMesh.__init__ = lambda self, device_type, *a, **k: mesh(self, "cpu", *a, **k)
    time.perf_counter = lambda: _clock() * _FASTER
    _Device().__enter__()


def _answered(answer: Any, *_: Any, **__: Any) -> Any:
    return answer


_pretend()
