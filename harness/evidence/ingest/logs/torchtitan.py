"""Logs of torchtitan: its own metrics line (a rate, no time), and Megatron's line where Primus patches it in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.dumps import DottedDump
from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Event, Fact, Restart, Step
from harness.evidence.ingest.logs.iteration_line import is_step, step
from harness.evidence.ingest.logs.numbers import NUMBER, group, loss, measure
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared
from harness.evidence.ingest.logs.titan_model import Printed, architecture, built
from harness.evidence.ingest.logs.words import TORCHTITAN_WORDS
from projector.workload import zoo

NAME = "torchtitan"

_STEP = re.compile(r"(?<!validate )\bstep:\s{0,9}([0-9]{1,15})\s")  # a validation has a rate, too
_RATE = re.compile(rf"\b[tw]ps:\s{{0,9}}{NUMBER}(?=\s)")
_TFLOPS = re.compile(rf"\btflops:\s{{0,9}}{NUMBER}")
_MEMORY = re.compile(rf"\bmemory:\s{{0,9}}{NUMBER}GiB\(")
_MESH = re.compile(r"device mesh with parallelism: (.{0,200})")
_DEGREE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep|etp)=(\d{1,7})")
_STARTS = re.compile(
    r"local batch size:? ([0-9]{1,9}), global batch size:? ([0-9]{1,9}),.{0,40}?"
    r"sequence length:? ([0-9]{1,9})(?!,?[0-9])"
)
_RECOMPUTE = re.compile(r"Applied (full|selective) activation checkpointing")
_PARAMETERS = re.compile(r"Total parameter count: (.{1,80})|size: ([0-9,]{1,20}) total parameters")
_MESH_WORDS = {
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "tp": "tensor_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
}


def weigh(line: str) -> int:
    if ("tps:" in line or "wps:" in line) and _STEP.search(line) and _RATE.search(line):
        return STEP
    if "memory usage/free/total:" in line and is_step(line):
        return STEP
    return int("[titan]" in line or "torchtitan" in line or "training.local_batch_size" in line)


def events(lines: Lines) -> Iterator[Event]:
    """Of a rate only, the time of a step follows from the batch, the sequence and the GPUs (see ``build``)."""
    stated: dict[str, object] = {}
    dump = DottedDump(least=3)
    model = Printed()
    seen: set[str] = set()
    for number, line in lines:
        found = _step(line, number)
        if found is not None:
            if "framework" not in seen and (fact := shared(line[:200], number, seen)) is not None:
                yield fact
            yield from _start(stated, dump, seen, number)
            yield found
        elif model.feed(line):
            stated.update(model.take())
        elif dump.feed(line, number):
            continue
        elif "Building " in line and model.begin(line):
            _setting(line, stated)
        elif _mesh(line, stated):
            yield Restart("a new start", number)
        elif "Saving the checkpoint" in line or "Finished saving the checkpoint" in line:
            yield Checkpoint(number)
        elif not _setting(line, stated) and (event := shared(line, number, seen)) is not None:
            yield event
    yield from _start(stated, dump, seen, 0)


def _start(stated: dict[str, object], dump: DottedDump, seen: set[str], number: int) -> Iterator[Event]:
    """The arguments gathered since the last step."""
    if "framework" not in seen:
        seen.add("framework")
        yield Fact("framework", NAME, number)
    printed = dump.take()
    if printed is not None:
        known = {TORCHTITAN_WORDS[k]: v for k, v in printed.values.items() if k in TORCHTITAN_WORDS}
        stated.update({k: v for k, v in known.items() if k not in stated})
    if stated:
        yield Arguments(dict(stated), number, printed.stated if printed else len(stated))
        stated.clear()


def _mesh(line: str, stated: dict[str, object]) -> bool:
    if "parallelism:" not in line or not (mesh := _MESH.search(line)):
        return False
    degrees = {name: int(size) for name, size in _DEGREE.findall(mesh[1])}
    stated.update({_MESH_WORDS[name]: size for name, size in degrees.items() if name in _MESH_WORDS})
    world = 1
    for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        world *= degrees.get(name, 1)
    stated["world_size"] = world
    return True


def _setting(line: str, stated: dict[str, object]) -> bool:
    if "batch size" in line and (starts := _STARTS.search(line)):
        names = ("micro_batch_size", "global_batch_size", "seq_length")
        stated.update({name: int(value) for name, value in zip(names, starts.groups(), strict=True)})
    elif "Building " in line and (name := built(line)) is not None:
        stated["model_name"] = name
        if zoo.find(name) is None:
            stated.update(architecture(line))
    elif "activation checkpointing" in line and (recompute := _RECOMPUTE.search(line)):
        stated["activation_checkpoint_mode"] = recompute[1]
    elif "parameter" in line and (count := _PARAMETERS.search(line)):
        stated["parameter_count"] = count[1] or count[2]
    elif "with torch.compile" in line:
        stated["torch_compile"] = True
    else:
        return False
    return True


def _step(line: str, number: int) -> Step | None:
    if "elapsed time per iteration" in line:
        return step(line, number)
    if "tps:" not in line and "wps:" not in line:
        return None
    index, rate = _STEP.search(line), group(_RATE.search(line))
    if index is None or not rate:
        return None
    memory = measure(_MEMORY.search(line))
    return Step(
        iteration=int(index[1]),
        seconds=None,
        line=number,
        tokens_per_s=rate,
        tflops=group(_TFLOPS.search(line)),
        memory_gib=memory,
        memory_kind="reserved" if memory else None,
        loss=loss(line),
    )
