"""MLPerf Training logs: lines ``:::MLLOG {json}`` behind any prefix (mlcommons/logging, mlperf_logging/mllog).

Step times, by what the submitter logs: ``tracked_stats`` with ``train_step_time`` (``train_step_timing``), else their
``throughput``, else the counts and times of the marks (see :mod:`harness.evidence.ingest.logs.mllog_readings`, which
decides the units). Evaluations are timed apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from harness.evidence.ingest.logs.dialect import WORDS
from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Failure, Lines, Mark, Step
from harness.evidence.ingest.logs.jsonstream import mapping_of
from harness.evidence.ingest.logs.mllog_readings import Rate, Readings, decide, numbers_of
from harness.evidence.ingest.logs.numbers import positive, real, whole
from projector.dataclass import dataclass
from projector.hardware import catalogue

SYSTEM = ":::SYSJSON"
LAUNCH = ":::DLPAL"
#: A configuration by NVIDIA's launchers: ``_<nodes>x<GPUs of a node>x<samples of a rank>xtp<n>pp<n>cp<n>``.
_CONFIGURATION = re.compile(
    r"_([0-9]{1,5})x([0-9]{1,3})x([0-9]{1,5})xtp([0-9]{1,3})pp([0-9]{1,3})cp([0-9]{1,3})(?![0-9])"
)
_GPU = re.compile(
    r"(?<![A-WYZa-wyz])(?:GB?[23]00|[ABH][123]00|H800|V100|L40S?|MI[0-9]{3}[A-Z]?)"
    r"(?:[-_ ](?:SXM[0-9]?|PCIE|PCIe|NVL))?(?![0-9])"
)
#: ``[nodes x] host x GPUs of a node``: a count right before the GPU's name, behind the name of a host.
_NODE = re.compile(r"^(?:([0-9]{1,6})x)?(?=[^0-9])\S{1,60}?[x_-]([0-9]{1,3})x?(?:GB|[ABH]|MI|V|L)[0-9]{2,3}")
_DGX = re.compile(r"^([0-9]{1,6})xNVIDIA DGX [ABH][0-9]00\b")
_PER_DGX = 8  # GPUs of a DGX A100, H100, H200 or B200 (NVIDIA's data sheets)
_CHIPS = re.compile(r"^(?:gaudi|tpu-v[0-9][a-z]{0,3})-([0-9]{1,6})$")


def system(line: str) -> Iterator[Fact]:
    """Yields the facts of the system record about the GPUs: their number and their name."""
    start, end = line.find("{"), line.rfind("}")
    record = (mapping_of(line[start : end + 1]) if 0 <= start < end < _LONGEST else None) or {}
    name = record.get("accelerator_model_name")
    if not isinstance(name, str) or "No devices" in name:
        return  # taken on a machine without its GPUs: its counts are none of theirs
    if catalogue.find_gpu(bare := name.replace("Dell ", "").replace("HGX ", "")):
        yield Fact("gpu", bare)
    counts = [whole(str(record.get(key, ""))) for key in ("number_of_nodes", "accelerators_per_node")]
    if all(counts):
        yield Fact("gpus", (counts[0] or 0) * (counts[1] or 0))


def platform(text: str) -> Iterator[Fact]:
    """Yields the GPU and the number of GPUs that the platform's name tells; a placeholder or a product name tells nothing.

    The count before a GPU's name (``2xMI300X``) is of nodes: alone it does not give the GPUs.
    """
    for match in _GPU.finditer(text[:200]):
        if catalogue.find_gpu(match[0].replace("_", "-")):
            yield Fact("gpu", match[0].replace("_", "-"))
            break
    if dgx := _DGX.match(text):
        yield Fact("gpus", int(dgx[1]) * _PER_DGX)
    elif node := _NODE.match(text):
        yield Fact("gpus", int(node[1] or 1) * int(node[2]))
    elif chips := _CHIPS.match(text):
        yield Fact("gpus", int(chips[1]))


def layout(line: str) -> Mapping[str, int]:
    """Returns Megatron-LM's sizes, with ``samples`` of a rank, from the configuration name that a launcher prints."""
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


NAME = "mllog"

_MARK = ":::MLLOG"
_TIMES = ("train_step_time", "train_step_timing", "train_step_timing in s")
_LONGEST = 100_000  # characters of one entry or record
_MOST = 200_000  # readings kept of one kind


def events(lines: Lines) -> Iterator[Event]:
    run = _Run()
    before = ""
    for number, line in lines:
        if SYSTEM in line:
            yield from run.machines(system(line))
            continue
        if LAUNCH in line:
            run.layout = layout(line)
            continue
        start = line.find(_MARK)
        if start < 0 or (text := line[start + len(_MARK) :].strip()) == before:
            continue  # another rank's print of the same entry
        before = text
        entry = mapping_of(text) if len(text) <= _LONGEST else None
        if entry is not None and isinstance(entry.get("key"), str):
            yield from run.feed(entry, number)
    yield from run.end()


@dataclass
class _Run:
    """What was logged of a run so far. ``count``: steps given."""

    stated: dict[str, object] = field(default_factory=dict)
    readings: Readings = field(default_factory=Readings)
    kept: list[Event] = field(default_factory=list)
    count: int = 0
    starts: int = 0
    per_step: bool = False
    noted: bool = False
    line: int = 0
    gpus: int = 0
    layout: Mapping[str, int] = field(default_factory=dict)

    def feed(self, entry: Mapping[str, Any], number: int) -> Iterator[Event]:
        key, value = entry["key"], entry.get("value")
        now = real(entry.get("time_ms"))
        if key in WORDS[NAME] and self.count == 0:
            self.stated.setdefault(WORDS[NAME][key], value)
            self.line = self.line or number
        elif key == "submission_platform" and isinstance(value, str):
            yield from self.machines(platform(value.strip()))
        elif key == "submission_benchmark" and isinstance(value, str):
            yield Fact("model", value)
        elif key == "run_start" and now is not None:
            yield from self._begin_run()
        elif key == "tracked_stats" and isinstance(value, Mapping):
            yield from self._read_stats(value, number)
        if now is not None:
            self.readings.progress.feed(key, numbers_of(entry.get("metadata")), now / 1000, number)
        ended = entry.get("metadata")
        if key == "run_stop" and isinstance(ended, Mapping) and ended.get("status") == "aborted":
            self.kept.append(Failure("error", "the run was aborted", number))

    def machines(self, facts: Iterator[Fact]) -> Iterator[Event]:
        """Yields facts of the system record and of the platform's name; of two GPU counts the first stands, with a doubt."""
        for fact in facts:
            if fact.key == "gpus":
                self.gpus = self.gpus or int(fact.value)
            denied = fact.key == "gpus" and fact.value != self.gpus
            doubt = f"{self.gpus} GPUs by the system record, {fact.value} by the platform's name"
            yield Fact("note", doubt) if denied else fact

    def _begin_run(self) -> Iterator[Event]:
        """Starts a new count at a second run in the file, whose steps are cut like a restart's."""
        self.starts += 1
        if self.starts > 1 and (self.count or self.readings.progress.rates or self.readings.throughput):
            yield from self._derived_steps()
            self.readings = Readings()
            self.count = 0
            yield Mark.RESTART

    def _read_stats(self, value: Mapping[str, Any], number: int) -> Iterator[Event]:
        """Reads statistics: a line with a loss is of one step (or a few); one without averages a block of these steps."""
        seconds = next((found for name in _TIMES if (found := real(value.get(name)))), None)
        rate = real(value.get("throughput"))
        losses = [found for name, found in value.items() if isinstance(name, str) and name.endswith("train_loss")]
        self.per_step = self.per_step or (bool(losses) and seconds is not None)
        if "max_memory_usage" in value and not self.noted:
            self.noted = True
            yield Fact("note", f"max_memory_usage {value['max_memory_usage']} (no unit stated)")
        if not seconds:
            if rate and rate > 0 and len(self.readings.throughput) < _MOST:
                self.readings.throughput.append(Rate(rate, number))
        elif losses or not self.per_step:
            if len(self.readings.stated) < _MOST:
                self.readings.stated.append(seconds)
            yield from self._step(number, seconds, loss=real(losses[0]) if losses else None)

    def _step(self, number: int, seconds: float | None, **more: Any) -> Iterator[Event]:
        yield from self.arguments()
        self.count += 1
        batch = int(real(self.stated.get("global_batch_size")) or 0)
        yield Step(self.count, seconds, number, global_batch_size=batch or None, **more)

    def arguments(self) -> Iterator[Event]:
        """Yields the arguments, before the first step or at the end."""
        if self.stated and self.count == 0 and self.line >= 0:
            yield Arguments({**self.stated, **self._parallel_sizes()}, self.line)
            self.line = -1

    def _parallel_sizes(self) -> dict[str, object]:
        """Returns the sizes of the configuration's name, where they make up the logged batch."""
        sizes = dict(self.layout)
        samples = sizes.pop("samples", 0)
        model = math.prod(value for name, value in sizes.items() if name != "world_size")
        batch = self.stated.get("global_batch_size")
        fits = model > 0 and samples > 0 and batch == samples * sizes.get("world_size", 0) / model
        return {**sizes} if fits else {}

    def _derived_steps(self) -> Iterator[Event]:
        """Yields the steps of a run that states no step time, from its counts and throughputs."""
        batch, length = real(self.stated.get("global_batch_size")), real(self.stated.get("seq_length"))
        rates, doubts = decide(self.readings, positive(batch), positive(length))
        for doubt in doubts:
            yield Fact("note", doubt)
        for rate in rates:
            yield from self._step(rate.line, None, samples_per_s=rate.value, mean=True)

    def end(self) -> Iterator[Event]:
        yield from self._derived_steps()
        yield from self.arguments()
        yield from self.kept
