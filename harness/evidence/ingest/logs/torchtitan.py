"""Logs of torchtitan: its own metrics line (a rate, no time), and Megatron's line where Primus patches it in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.evidence.ingest.logs.dumps import DottedDump, renamed
from harness.evidence.ingest.logs.events import Arguments, Checkpoint, Event, Fact, Restart, Step
from harness.evidence.ingest.logs.iteration_line import step
from harness.evidence.ingest.logs.numbers import NUMBER, group, loss, measure
from harness.evidence.ingest.logs.protocol import Lines
from harness.evidence.ingest.logs.shared_lines import shared
from harness.evidence.ingest.logs.titan_model import Printed, a_llama, architecture, built, llama
from harness.evidence.ingest.logs.words import WORDS
from projector.intake import named_models
from projector.intake.values import literal
from projector.workload import zoo

_LINE = re.compile(r"Running with (?:args|configs): (\{.{2,100000}\})\s*$")
_HEAD = "Running with configs: {"


def opens(line: str) -> bool:
    """Whether a line opens the JSON."""
    return _HEAD in line


def in_line(line: str) -> Mapping[str, object]:
    """The settings of the one-line form under dotted names; empty for any other line."""
    found = _LINE.search(line) if "Running with " in line else None
    return flat(literal(found[1])) if found else {}


def flat(config: Any) -> Mapping[str, object]:
    """Settings by ``section.name`` of a nested configuration; empty for what is none."""
    return named_models.flat(config) if isinstance(config, Mapping) else {}


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
#: What converts linear layers, 0.1 to 2026 (torchtitan/components/quantization/float8.py, mx.py, nvfp4.py): before recipes
#: had names they were tensorwise.
_QUANTISED = re.compile(
    r"(?:Float8|MX) (?:tensorwise scaled )?training active(?: with recipe (\w{1,40}))?|Swapped to (MXLinear) layers|"
    r"Converted Linear layers to (MXFP8Linear|NVFP4Linear)"
)
_GATHERED = "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True"
#: What else is said to be done to the model that no argument of Megatron-LM stands for.
_DONE = re.compile(
    r"INFO - (Converted (?:MoE layers|GroupedExperts) .{1,200}|MXFP8 MoE training enabled"
    r"|Applied .{0,60}Async Tensor Parallelism.{0,60}|Applied CPU Offloading.{0,60})$"
)
_DONE_AS = "said"  # key of :func:`_setting` for these
_PARAMETERS = re.compile(r"Total parameter count: (.{1,80})|size: ([0-9,]{1,20}) total parameters")
_MESH_WORDS = WORDS["torchtitan-mesh"]


def events(lines: Lines) -> Iterator[Event]:
    """Of a rate only, the time of a step follows from the batch, the sequence and the GPUs (see ``build``)."""
    stated: dict[str, object] = {}
    dump = DottedDump(least=3)
    model, config = Printed(a_llama, llama), Printed(opens, flat)
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
        elif config.feed(line):
            dump.add(config.take(), number)
        elif dump.feed(line, number) or config.begin(line):
            continue
        elif "Building " in line and model.begin(line):
            _setting(line, stated)
        elif settings := in_line(line):
            dump.add(settings, number)
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
    unread = tuple(("log", said) for said in str(stated.pop(_DONE_AS, "")).splitlines())
    count = printed.stated if printed else len(stated)
    if printed is not None:
        known = renamed(printed, WORDS[NAME])
        stated.update({k: v for k, v in known.values.items() if k not in stated})
        unread += known.unread
    if stated:
        yield Arguments(dict(stated), number, count, unread)
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
        if "loss function" not in line:
            stated["torch_compile"] = True
    elif quantised := _quantised(line):
        stated.update(quantised)
    elif ("Converted " in line or "Applied " in line or "MoE training" in line) and (
        done := _DONE.search(line.rstrip())
    ):
        before = str(stated.get(_DONE_AS, ""))
        stated[_DONE_AS] = before if done[1] in before else f"{before}\n{done[1]}".strip()
    else:
        return False
    return True


def _quantised(line: str) -> dict[str, object]:
    """The precision of the linear layers, where a line says that they are converted."""
    if _GATHERED in line:
        return {"fp8_param_gather": True}
    if "training active" not in line and "MX" not in line and "NVFP4Linear" not in line:
        return {}
    if not (match := _QUANTISED.search(line)):
        return {}
    word = (match[1] or match[2] or match[3] or "tensorwise").lower()
    if "fp4" in word:
        return {"fp4": word.removesuffix("linear")}
    return {"fp8": "hybrid", "fp8_recipe": "mxfp8" if "mx" in word else word.removesuffix("_with_gw_hp")}


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
