"""The machines of an MLPerf submission: its system record (``:::SYSJSON``) or the name of its platform."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from harness.evidence.ingest.logs.events import Fact
from harness.evidence.ingest.logs.numbers import whole
from projector.hardware import catalogue

SYSTEM = ":::SYSJSON"
LAUNCH = ":::DLPAL"
#: A configuration by NVIDIA's launchers: ``_<nodes>x<GPUs of a node>x<samples of a rank>xtp<n>pp<n>cp<n>``.
_CONFIGURATION = re.compile(
    r"_([0-9]{1,5})x([0-9]{1,3})x([0-9]{1,5})xtp([0-9]{1,3})pp([0-9]{1,3})cp([0-9]{1,3})(?![0-9])"
)
_LONGEST = 100_000  # characters of a record
_GPU = re.compile(
    r"(?<![A-WYZa-wyz])(?:GB?[23]00|[ABH][123]00|H800|V100|L40S?|MI[0-9]{3}[A-Z]?)"
    r"(?:[-_ ](?:SXM[0-9]?|PCIE|PCIe|NVL))?(?![0-9])"
)
#: ``[nodes x] host x GPUs of a node``: a count right before the GPU's name, behind the name of a host.
_NODE = re.compile(r"^(?:([0-9]{1,6})x)?(?=[^0-9])\S{1,60}?[x_-]([0-9]{1,3})x?(?:GB|[ABH]|MI|V|L)[0-9]{2,3}")
_DGX = re.compile(r"^([0-9]{1,6})xNVIDIA DGX [ABH][0-9]00\b")
_PER_DGX = 8  # GPUs of a DGX A100, H100, H200 or B200 (NVIDIA's data sheets)
_CHIPS = re.compile(r"^(?:gaudi|tpu-v[0-9][a-z]{0,3})-([0-9]{1,6})$")


def system(line: str, number: int) -> Iterator[Fact]:
    """What the system record says of the GPUs: nodes, GPUs of a node, their name."""
    start, end = line.find("{"), line.rfind("}")
    if not 0 <= start < end < _LONGEST:
        return
    try:
        record = json.loads(line[start : end + 1])
    except (ValueError, RecursionError):
        return
    if not isinstance(record, Mapping):
        return
    name = record.get("accelerator_model_name")
    if not isinstance(name, str) or "No devices" in name:
        return  # taken on a machine without its GPUs: its counts are none of theirs
    if catalogue.find_gpu(bare := name.replace("Dell ", "").replace("HGX ", "")):
        yield Fact("gpu", bare, number)
    counts = [whole(str(record.get(key, ""))) for key in ("number_of_nodes", "accelerators_per_node")]
    if all(counts):
        yield Fact("gpus", (counts[0] or 0) * (counts[1] or 0), number)


def platform(text: str, number: int) -> Iterator[Fact]:
    """What the platform's name says; a placeholder or a product name says nothing.

    The count before a GPU's name (``2xMI300X``) is of nodes: alone it does not give the GPUs.
    """
    for found in _GPU.finditer(text[:200]):
        if catalogue.find_gpu(found[0].replace("_", "-")):
            yield Fact("gpu", found[0].replace("_", "-"), number)
            break
    if dgx := _DGX.match(text):
        yield Fact("gpus", int(dgx[1]) * _PER_DGX, number)
    elif node := _NODE.match(text):
        yield Fact("gpus", int(node[1] or 1) * int(node[2]), number)
    elif chips := _CHIPS.match(text):
        yield Fact("gpus", int(chips[1]), number)


def layout(line: str) -> Mapping[str, int]:
    """Megatron-LM's sizes by the name of the configuration that a launcher prints, ``samples`` of a rank among them."""
    match = _CONFIGURATION.search(line[-400:])
    if match is None:
        return {}
    nodes, gpus, samples, tensor, pipeline, context = map(int, match.groups())
    return {
        "world_size": nodes * gpus,
        "samples": samples,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "context_parallel_size": context,
    }
