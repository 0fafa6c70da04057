"""Terms that a user's hardware file adds to every algorithm; a catalogue cluster states none of them.

The terms are those of Primus' collective model (AMD-AGI/Primus@739a329b ``core/projection/module_profilers``): phases
that overlap only in part, adapters that warm up, a reduction with a rate of its own. All are functions of the bytes,
zero where the file does not state them, and leave the time monotone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from projector.collectives.algorithms.tree import levels
from projector.collectives.network import Network
from projector.parameter import parameter
from projector.size import Floats

NAMES = ("phases.overlap", "phases.warmup_bytes", "adapter.setup_us", "adapter.warmup_bytes", "reduction.flops")
_ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
_WARMUP_BYTES = parameter(
    32.0 * 2**20, unit="B", kind="published", source="Primus: both ramps end at 32 MiB unless its file says otherwise"
)
_OVERLAP = parameter(
    0.9,
    kind="assumed",
    source="Primus' ar_overlap_factor where its file states the other terms of the phases and not this one",
    low=0.0,
    high=1.0,
)
_ELEMENT = 2.0  # bytes of a bf16 operand of the reduction


def added(kind: str, net: Network, wire: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """Returns seconds as a function of bytes, with the terms of the file; ``wire`` is that function without them."""
    if kind not in _ROUNDS or not any(net.constants.states(name) for name in NAMES):
        return wire

    def priced(sizes: Floats) -> Floats:
        return wire(sizes) + _phase_seconds(kind, net, sizes) + _reduction_seconds(kind, net, sizes)

    setup = net.constants.get("adapter.setup_us", 0.0) * 1e-6
    if net.nodes == 1 or setup <= 0.0:
        return priced
    depth = levels(net)[0]
    hidden = net.constants.get("adapter.warmup_bytes", _WARMUP_BYTES) * depth * net.fewest

    def warmed_up(sizes: Floats) -> Floats:
        """Adds an adapter's start-up for each level of the tree, until a message is long enough to hide it."""
        plain = priced(sizes)
        return np.minimum(plain + setup * depth, np.maximum(plain, priced(np.full_like(sizes, hidden))))

    return warmed_up


def _phase_seconds(kind: str, net: Network, sizes: Floats) -> Floats:
    """Returns what the shorter of node and network phase adds where the two do not run side by side all the time."""
    stated = net.constants.states("phases.overlap") or net.constants.states("phases.warmup_bytes")
    if net.nodes == 1 or net.local == 1 or not stated:
        return np.zeros_like(sizes)
    overlap = net.constants.get("phases.overlap", _OVERLAP)
    warm = net.constants.get("phases.warmup_bytes", _WARMUP_BYTES)
    inside = (net.local - 1) / net.local / net.link_rate(kind)
    between = (net.nodes - 1) / net.nodes / net.rail_rate()
    shorter = _ROUNDS[kind] * min(inside, between)
    return (1.0 - overlap * np.minimum(1.0, sizes / net.local / warm)) * shorter * sizes


def _reduction_seconds(kind: str, net: Network, sizes: Floats) -> Floats:
    if kind == "all_gather":
        return np.zeros_like(sizes)
    return sizes * (net.size - 1) / net.size / _ELEMENT / net.constants.get("reduction.flops", np.inf)
