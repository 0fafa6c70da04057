"""Calculon (Apache-2.0, github.com/calculon-ai/calculon; Isaev et al., SC'23) as a predictor.

It models the decoder blocks of a GPT: linears, unfused attention, element-wise work, tensor-, pipeline- and
data-parallel communication on a network tier each, 1F1B and interleaved pipelines, three kinds of recompute, sharded and
off-loaded optimizer state. Embedding, output layer and loss are not in its step.

It is not on the Python package index: the package called ``calculon`` there is an unrelated one. The checkout goes on
``PYTHONPATH``, and its folder ``systems`` gives the devices: its own file for A100 and H100 80 GB, and for any other GPU
that file with peak, memory and network of our data sheets and every efficiency as it stands.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors import calculon_inputs as inputs
from harness.predictors import peer
from harness.predictors.calculon_inputs import EXECUTION_FIELDS
from harness.predictors.protocol import Guarded
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported

NAME = "calculon"
_HOW = (
    "put a checkout of github.com/calculon-ai/calculon on PYTHONPATH. It is not on the package index, so the extra 'peers'"
    " cannot bring it: the package named calculon there is another program"
)
_LOG = logging.getLogger("harness.calculon")


def _stats(application: Mapping[str, Any], execution: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Calculon's statistics of one training step (seconds, bytes), as ``calculon llm`` writes them. Raises its
    ``Llm.Error`` and AssertionError where Calculon rejects the input."""
    llm, make = tool()
    device, model = make(dict(system)), llm(llm.Application(dict(application)), _LOG)
    model.compile(device, llm.Execution.from_json(dict(execution)))
    model.run(device)
    statistics: dict[str, Any] = model.get_stats_json(False)
    return statistics


@cache
def tool() -> tuple[Any, Any]:
    """Returns the two classes of Calculon that a run needs (``Llm`` and ``System``), imported. Raises :class:`InputError`
    where it is absent or takes other inputs than these."""
    error = peer.absent(NAME, "Calculon", _HOW)
    _folder()
    llm, system = peer.require("calculon.llm.llm", error).Llm, peer.require("calculon.system", error).System
    fields = set(llm.Execution.fields())
    if fields != EXECUTION_FIELDS:
        other = ", ".join(sorted(fields ^ EXECUTION_FIELDS))
        raise InputError([Problem("command line", "--with", NAME, f"a Calculon that does not differ in {other}")])
    return llm, system


@cache
def system_file(name: str) -> Mapping[str, Any]:
    """Returns one of the system descriptions that come with Calculon (``systems/<name>.json`` of the checkout)."""
    path = _folder().parent / "systems" / f"{name}.json"
    if not path.is_file():
        raise InputError([Problem("command line", "--with", NAME, f"its folder systems, with {name}.json")])
    content: Mapping[str, Any] = json.loads(path.read_text())
    return content


def _folder() -> Path:
    folder = peer.located("calculon", "llm/llm.py", "system.py")
    if folder is None:
        raise peer.absent(NAME, "Calculon", _HOW)
    return folder


@dataclass(frozen=True)
class Calculon(Guarded):
    """Calculon as a predictor. Raises :class:`InputError` when made where Calculon is not installed or has other inputs."""

    name: str = NAME

    def __post_init__(self) -> None:
        tool()

    def project(self, run: MeasuredRun) -> Prediction:
        resolved, cluster = peer.state(run)
        work = resolved.workload
        peer.stated_refusal(NAME, inputs.limits(work))
        system, described = inputs.system(cluster, system_file)
        stated = inputs.application(work), inputs.execution(work, cluster.gpus_per_node), system
        try:
            stats = peer.refused(NAME, lambda: _stats(*stated))
        except tool()[0].Error as error:
            if str(error).startswith("Mem tier"):  # Calculon gives no time then
                return Prediction(status="out-of-memory", reason=f"{NAME}: {error}")
            raise Unsupported(f"refused by {NAME}: {error}") from None
        return Prediction(
            status="ok",
            step_seconds=stats["total_time"],
            memory_gib=stats["proc_mem_tier1_cap_req"] / peer.GIB,
            measured_share=0.0,
            breakdown=_breakdown(stats),
            assumed=(*resolved.assumed, *described, *inputs.simplified(work)),
        )


def _breakdown(stats: dict[str, Any]) -> dict[str, float]:
    """Returns the parts of ``total_time`` under the names of our result rows; they sum to it."""
    return {
        "compute_s": stats["fw_time"] + stats["bw_time"] + stats["recompute_time"],
        "bubble_s": stats["bubble_time"],
        "tp_s": stats["tp_comm_exposed_time"] + stats["recomm_exposed_time"],
        "pp_s": stats["pp_comm_exposed_time"],
        "dp_s": stats["dp_comm_exposed_time"],
        "optimizer_s": stats["optim_step_time"],
        "other_s": stats["fw_offload_exposed_time"] + stats["bw_offload_exposed_time"],
    }
