"""What a training log says, line by line, whatever its dialect.

Events are tuples: a log of a gigabyte holds millions, and a frozen dataclass takes five times as long to make.
Times are seconds, memory is GiB, rates are per second and per GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from harness.evidence.ingest.logs.source import Source


class Step(NamedTuple):
    """One logged optimizer step (or the mean of several since the line before), never a running average.

    ``seconds`` is None where the log prints only a rate. ``tokens_per_s``: of one GPU; ``samples_per_s``: of the whole
    job. ``memory_kind``: ``allocated``, ``reserved`` or ``device``; ``memory_ratio``: share of the device. ``loss``: that of
    the language model, as printed. ``mean``: of many steps, and not the first one alone.
    """

    iteration: int
    seconds: float | None
    line: int
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    tflops: float | None = None
    global_batch_size: int | None = None
    memory_gib: float | None = None
    memory_kind: str | None = None
    memory_ratio: float | None = None
    seq_length: int | None = None
    skipped: bool = False
    loss: float | None = None
    mean: bool = False


class Arguments(NamedTuple):
    """The arguments of a run as printed (texts, or values where the log is JSON), under Megatron-LM's names.

    ``stated``: how many there are under the names of the framework itself, for the report; ``unread``: (name, value) of
    those that have no name here.
    """

    values: Mapping[str, object]
    line: int
    stated: int = 0
    unread: tuple[tuple[str, str], ...] = ()


class Mark(Enum):
    """What happened between two steps, which no figure goes with."""

    RESTART = "the job starts (again): what follows has its own warm-up"
    CHECKPOINT = "a checkpoint was written; the step after it is not steady"
    EVALUATION = "an evaluation ran; the step after it is not steady"


class Memory(NamedTuple):
    """The peak memory of one rank."""

    gib: float
    kind: str


class Timers(NamedTuple):
    """The timers of one logged step, in seconds."""

    seconds: Mapping[str, float]


class Curve(NamedTuple):
    """A value a step of something other than its time that a document holds: ``learning rate``, ``memory`` (GiB)."""

    name: str
    values: tuple[float, ...]


class Fact(NamedTuple):
    """Something said once: ``gpu`` (any spelling), ``gpus``, ``gpus_per_node``, ``model``, ``framework``, ``version``,
    ``date`` (YYYY-MM), ``run`` (a label of the steps that follow), ``strategy`` (the name of its parallel sizes) or
    ``note`` (what the log leaves open)."""

    key: str
    value: str | int


class Failure(NamedTuple):
    """The job failed: ``out-of-memory``, or ``error`` with the line's text."""

    kind: str
    text: str
    line: int


class Kernels(NamedTuple):
    """What one rank's device did, from a trace: ``top`` is (name, seconds, calls), largest first.

    ``busy_s``: seconds with any kernel on the device; ``communication_s``: with a collective; ``exposed_s``: with a
    collective and no other kernel; ``span_s``: first kernel's start to last kernel's end.
    """

    top: tuple[tuple[str, float, int], ...]
    span_s: float
    busy_s: float
    communication_s: float
    exposed_s: float


Event: TypeAlias = Step | Arguments | Mark | Memory | Timers | Curve | Fact | Failure | Kernels


Lines: TypeAlias = Iterable[tuple[int, str]]


class DocumentDialect(Protocol):
    NAME: str

    def recognises(self, head: str) -> bool:
        """Returns whether the first 64 KiB of a file open such a document."""
        ...

    def read(self, source: Source) -> Iterator[Event]: ...
