"""Backends that price dense matrix products: our own model, or another package's behind the same protocol.

A backend is a factory ``(gpu, efficiency) -> GemmBackend``. Other packages offer theirs in the entry-point group
``projector.gemm_backends``::

    [project.entry-points."projector.gemm_backends"]
    mine = "my_package.gemm:Backend"

Grouped products, attention and memory-bound kernels stay with our models whatever the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from projector.errors import InputError, Problem, Unsupported, nearest
from projector.hardware.types import Efficiency, Gpu
from projector.kernels.protocol import ComputeOp, FloatArray, KernelModel, Times
from projector.operators.types import Gemm

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "projector.gemm_backends"
BUILTIN = "builtin"

#: The backend of this package; known without its metadata too, as in a checkout that was never installed.
_OURS = ("origami", "projector.kernels.backends.origami:Origami")


class GemmBackend(Protocol):
    """Device seconds of dense matrix products, (n,), positive and finite; operators are those of our lowering.

    Raises :class:`~projector.errors.Unsupported` for a product that it cannot price.
    """

    def seconds(self, ops: Sequence[Gemm]) -> FloatArray: ...


Factory = Callable[[Gpu, Efficiency], GemmBackend]
"""Raises :class:`~projector.errors.InputError` where the backend cannot run here, ``Unsupported`` for a GPU it lacks."""


class WithBackend:
    """A kernel model whose dense products come from a backend and everything else from ``others``."""

    def __init__(self, name: str, backend: GemmBackend, others: KernelModel) -> None:
        self.name = name
        self._backend = backend
        self._others = others

    def times(self, ops: Sequence[ComputeOp]) -> Times:
        """Returns the seconds of each operator, (n,). Raises ``Unsupported`` with the backend's name where it gives no
        time."""
        dense = [(i, op) for i, op in enumerate(ops) if isinstance(op, Gemm)]
        rest = [i for i, op in enumerate(ops) if not isinstance(op, Gemm)]
        seconds, measured = np.zeros(len(ops)), np.zeros(len(ops), dtype=np.bool_)
        if rest:
            other = self._others.times([ops[i] for i in rest])
            seconds[rest], measured[rest] = other.seconds, other.measured
        if dense:
            seconds[[i for i, _ in dense]] = self._priced([op for _, op in dense])
        return Times(seconds, measured)

    def _priced(self, ops: Sequence[Gemm]) -> FloatArray:
        found = np.asarray(self._backend.seconds(ops), dtype=np.float64)
        if found.shape != (len(ops),):
            raise Unsupported(f"GEMM backend {self.name} gave {found.size} times for {len(ops)} products")
        wrong = np.flatnonzero(~(np.isfinite(found) & (found > 0.0)))
        if wrong.size:
            op = ops[int(wrong[0])]
            shape = f"{op.m}x{op.n}x{op.k} {op.dtype}"
            raise Unsupported(f"GEMM backend {self.name} gave {found[wrong[0]]:g} s for {shape}")
        return found


def _offered() -> Mapping[str, EntryPoint]:
    """Returns the backends by name, those of installed packages in alphabetical order, and this package's."""
    from importlib import metadata

    others = sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
    return {entry.name: entry for entry in (*others, metadata.EntryPoint(*_OURS, GROUP))}


def names() -> tuple[str, ...]:
    """Returns the names that :func:`factory` knows: our own model, this package's backends, those of other packages."""
    return tuple(dict.fromkeys((BUILTIN, _OURS[0], *_offered())))


def check(name: str, where: str = "--gemm-backend") -> None:
    """Raises :class:`InputError` where the backend is unknown, or known and cannot be imported here."""
    if name == BUILTIN:
        return
    importable = getattr(factory(name, where), "importable", None)
    if callable(importable):
        importable()


def factory(name: str, where: str = "--gemm-backend") -> Factory:
    """Returns the factory of a backend other than our own. Raises :class:`InputError` for an unknown or broken one."""
    entry = _offered().get(name)
    if entry is None:
        raise InputError([Problem(where, "", name, nearest(name, names()))])
    try:
        found: Factory = entry.load()
    except (ImportError, AttributeError) as error:
        expected = f"an importable {entry.value} ({error})"
        raise InputError([Problem(where, "", name, expected)]) from error
    return found


def over(name: str, gpu: Gpu, efficiency: Efficiency, others: KernelModel) -> KernelModel:
    """Returns ``others`` with dense products priced by the backend; ``others`` itself for our own model."""
    return others if name == BUILTIN else WithBackend(name, factory(name)(gpu, efficiency), others)
