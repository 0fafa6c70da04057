"""Calculon (Apache-2.0, github.com/calculon-ai/calculon; Isaev et al., SC'23) as a predictor.

It models the decoder blocks of a GPT: linears, unfused attention, element-wise work, tensor-, pipeline- and
data-parallel communication on a network tier each, 1F1B and interleaved pipelines, three kinds of recompute, sharded
and off-loaded optimizer state. Embedding, output layer and loss are not in its step.

It is not on the Python package index: the package called ``calculon`` there is an unrelated one. The checkout goes on
``PYTHONPATH``, and its folder ``systems`` gives the devices: its own file for A100 and H100 80 GB, and for any other GPU
that file with peak, memory and network of our data sheets and every efficiency as it stands.
"""

from __future__ import annotations

from typing import Any

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors import calculon_inputs as inputs
from harness.predictors import calculon_package as package
from harness.predictors import peer
from harness.predictors.calculon_package import NAME
from harness.predictors.refusal import Guarded
from projector.dataclass import dataclass
from projector.errors import Unsupported

__all__ = ["NAME", "Calculon"]


@dataclass(frozen=True)
class Calculon(Guarded):
    """Raises :class:`InputError` when made where Calculon is not installed, or where its inputs are other ones."""

    name: str = NAME

    def __post_init__(self) -> None:
        package.tool()

    def project(self, run: MeasuredRun) -> Prediction:
        resolved, cluster = peer.state(run)
        work = resolved.workload
        peer.stated_refusal(NAME, inputs.limits(work))
        tool = package.tool()
        system, described = inputs.system(cluster, package.system_file)
        try:
            said = peer.refused(
                NAME,
                lambda: tool.stats(inputs.application(work), inputs.execution(work, cluster.gpus_per_node), system),
            )
        except tool.error as error:
            return _unfit(str(error))
        return Prediction(
            status="ok",
            step_seconds=said["total_time"],
            memory_gib=said["proc_mem_tier1_cap_req"] / peer.GIB,
            measured_share=0.0,
            breakdown=_breakdown(said),
            assumed=(*resolved.assumed, *described, *inputs.simplified(work)),
        )


def _unfit(said: str) -> Prediction:
    """A configuration that it rejects while it runs: out of memory (it then gives no time), or not supported."""
    if said.startswith("Mem tier"):
        return Prediction(status="out-of-memory", reason=f"{NAME}: {said}")
    raise Unsupported(f"refused by {NAME}: {said}")


def _breakdown(said: dict[str, Any]) -> dict[str, float]:
    """Its parts of ``total_time`` under the names of our result rows; they sum to it."""
    return {
        "compute_s": said["fw_time"] + said["bw_time"] + said["recompute_time"],
        "bubble_s": said["bubble_time"],
        "tp_s": said["tp_comm_exposed_time"] + said["recomm_exposed_time"],
        "pp_s": said["pp_comm_exposed_time"],
        "dp_s": said["dp_comm_exposed_time"],
        "optimizer_s": said["optim_step_time"],
        "other_s": said["fw_offload_exposed_time"] + said["bw_offload_exposed_time"],
    }
