"""A framework as its file states it, and a workload with nothing left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from projector.dataclass import dataclass
from projector.mechanisms import Execution
from projector.memo import HashedOnce
from projector.parameter import Parameter, parameter
from projector.workload.workload import Workload

_HOST = parameter(
    {"host_bandwidth": 55e9, "host_copies": 61e9, "host_optimizer": 32e9},
    unit="B/s",
    kind="derived",
    source="one of eight ranks of a DGX H100 host, where no cluster is stated (projector.hardware.host_link)",
)


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework file: names, defaults of recipe fields, strategies, FLOP formula, each with its source in the file.

    ``rules`` change defaults or strategies when all words of their ``when`` hold, in order. ``uncertain``: recipe
    fields whose default is a guess for published figures (they are reported as assumed when a source leaves them out).
    ``published``: values that published runs are assumed to have where they differ from the framework's default.
    ``constants``: the numbers of this file's strategies with their sources, those of a rule under its ``when``.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    defaults: Mapping[str, object]
    execution: Mapping[str, Mapping[str, object]]
    flop_formula: str
    rules: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    uncertain: tuple[str, ...] = ()
    published: Mapping[str, object] = field(default_factory=dict)
    sources: tuple[str, ...] = field(default=())
    constants: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Resolved(HashedOnce):
    """A workload with nothing left open: every recipe field stated, the execution chosen, and what was assumed.

    ``node_ranks``, ``pod_ranks``: ranks of the run in one node (NVLink domain) of its cluster, and in one pod where the
    network has a third level. For each rank, ``host_bandwidth``: bytes/s from the host's memory to the device alone;
    ``host_copies``: its share of host memory when all copy; ``host_optimizer``: the rate that an optimizer there sustains.
    """

    workload: Workload
    execution: Execution
    assumed: tuple[str, ...] = ()
    node_ranks: int = 8
    pod_ranks: int | None = None
    host_bandwidth: float = _HOST["host_bandwidth"]
    host_copies: float = _HOST["host_copies"]
    host_optimizer: float = _HOST["host_optimizer"]

    @property
    def autograd_sums(self) -> int:
        """Returns the micro-batches of a step whose weight gradients a pass of their own adds to kept ones: all but the
        first, where no kernel of the framework adds them."""
        run = self.execution
        kept = run.fusion.wgrad_accumulation == "none" and not run.runtime.whole_step
        return self.workload.num_microbatches - 1 if kept else 0

    __hash__ = HashedOnce.__hash__
