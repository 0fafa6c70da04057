"""What the lines of some trainers say that no pattern does: each class reads the lines of one, after its description under
``dialects/``."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.evidence.ingest.logs.clock import taken
from harness.evidence.ingest.logs.dialect import LLAMA, WORDS, Dialect, one_of
from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Lines, Mark, Step
from harness.evidence.ingest.logs.numbers import (
    NUMBER,
    SCALED,
    counted,
    finite,
    group,
    loss,
    measure,
    measured,
    scaled,
    whole,
)
from harness.evidence.ingest.logs.trainer import Trainer

_RATE = re.compile(rf"tgs \(tokens/gpu/second\)={NUMBER}(?=[\s,]{{1,9}}\S)")
_CONSUMED = re.compile(r"\bnum_consumed_tokens=([0-9,]{1,24})")
_LAYOUT = re.compile(
    r"data parallel size: ([0-9]{1,7}), pipeline parallel size: ([0-9]{1,7}), tensor parallel size: ([0-9]{1,7})"
)


class InternEvo(Trainer):
    def __init__(self, of: Dialect) -> None:
        """``ranks`` is 0 until the layout is printed; ``consumed`` counts the tokens up to the last line."""
        super().__init__(of)
        self.ranks, self.last, self.consumed = 0, -1, 0

    def step(self, match: re.Match[str], line: str, number: int) -> Iterable[Event]:
        rate = group(_RATE.search(line))
        if not rate:
            return ()
        tokens = self._tokens(int(match[1]), line)
        if self.ranks and self.consumed and tokens is None:
            return ()  # the first line of an excerpt: the others have times
        seconds = tokens / rate / self.ranks if tokens and self.ranks else None
        return (self.made(line, number, match[1], seconds),)

    def _tokens(self, step: int, line: str) -> int | None:
        """Returns the tokens of this step; None where the line of the step before is missing."""
        match = _CONSUMED.search(line)
        if match is None:
            return None
        now, before = whole(match[1]) or 0, self.consumed if self.last + 1 == step else None
        self.last, self.consumed = step, now
        return now - before if before is not None and now > before else None

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        if "parallel size:" in line and (layout := _LAYOUT.search(line)):
            return self._layout(list(map(int, layout.groups())), number) if self.once("layout") else ()
        return (Mark.RESTART,) if "===New Run " in line and self.once("run") else None

    def _layout(self, sizes: list[int], number: int) -> Iterable[Event]:
        self.ranks = math.prod(sizes)
        names = ("data_parallel_size", "pipeline_model_parallel_size", "tensor_model_parallel_size", "world_size")
        values = dict(zip(names, (*sizes, self.ranks), strict=True))
        return (Fact("gpus", self.ranks), Arguments(values, number))


_TOTAL = re.compile(rf"\| consumed tokens: {NUMBER} \|")


class Modalities(Trainer):
    """Reads lines of Modalities: the tokens consumed are those of one step times the steps done."""

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        done, consumed = int(match["step"]), measure(_TOTAL.search(line))
        if done and consumed and self.once(f"{consumed / done:.5g} tokens"):
            yield Arguments({"tokens": round(consumed / done)}, number)
        yield from super().step(match, line, number)


_LATE = 64  # iterations after which none is printed again
_SOON = 8  # iterations after which the first one is a new start's


class LitGpt(Trainer):
    def __init__(self, of: Dialect) -> None:
        """``seconds`` sums the iterations since the last optimizer step; ``complete``: none of them is missing."""
        super().__init__(of)
        self.seconds, self.last, self.complete = 0.0, -2, False
        self.recent: deque[int] = deque(maxlen=_LATE)

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        index, step, seconds = int(match[1]), int(match[2]), (measured(match[3]) or 0.0) / 1000
        if index in self.recent and (index > 1 or self.last < _SOON):
            return  # another rank's print
        self.recent.append(index)
        if index != self.last + 1:
            self.seconds, self.complete = 0.0, index <= 1
        self.last = index
        self.seconds += seconds
        if match[4] is None or not step or not seconds:
            return
        pieces = 1 if self.complete else max(round(index / step), 1)
        if pieces > 1 and self.once("pieces"):
            yield Fact("note", f"times are of one micro-batch of {pieces} a step: the others are not printed")
        yield self.made(line, number, step, self.seconds if self.complete else seconds * pieces)
        self.seconds, self.complete = 0.0, True


class NanoGpt(Trainer):
    """Reads lines of nanoGPT; a loss that is no number is noted once."""

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        if "train_time:" not in line and match["loss"] is None and self.once("broken"):
            yield Fact("note", f"line {number}: the loss is no number from step {match['step']} on")
        yield from super().step(match, line, number)


#: Where a line ends a number may be broken off, but for one with its unit.
_FIELD = re.compile(rf"\b([a-z_]{{2,40}}):\s?{SCALED}(?=\s{{1,40}}\S|(?<=[KMGBT])\s{{0,9}}$)")
_STARTS = re.compile(
    r"\[Start training\].{0,60}? mbs: ([0-9]{1,9}) \| grad_accum: ([0-9]{1,9}) \| global_batch_size: ([0-9]{1,9}) \| "
    r"sequence_length: ([0-9]{1,9})(?![0-9,])"
)
_STARTED = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "seq_length")
_AXES, _SIZES = WORDS["nanotron"], WORDS["nanotron-llama"]
_PARALLEL = re.compile(rf"(?:\]:\s{{1,60}}|ParallelismArgs\(){one_of(_AXES)}=([0-9]{{1,9}}),(?![0-9])")
_LLAMA = re.compile(rf"\]:\s{{1,60}}{one_of((*_SIZES, 'tie_word_embeddings'))}=(\w{{1,12}})[,)](?![0-9])")
_FIGURES = {"tokens_per_s": "tokens_per_sec_per_gpu", "tflops": "model_tflops_per_gpu", "loss": "lm_loss"}
_GIB = 2**30


class Nanotron(Trainer):
    def __init__(self, of: Dialect) -> None:
        super().__init__(of)
        self.stated: dict[str, object] = {}

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        settings = ((setting[1], scaled(setting[2])) for setting in _FIELD.finditer(line, 0, 4000))
        fields = {name: value for name, value in settings if value is not None}
        elapsed, batch = fields.get("elapsed_time_per_iteration_ms"), fields.get("global_batch_size")
        if not elapsed:
            return
        figures: dict[str, Any] = {ours: fields.get(theirs) for ours, theirs in _FIGURES.items()}
        if reserved := fields.get("cuda_max_memory_reserved"):
            figures |= {"memory_gib": reserved / _GIB, "memory_kind": "reserved"}
        if batch and batch < 1000:  # shortened from there on: then it is no exact count
            figures["global_batch_size"] = int(batch)
        yield self.made(line, number, match[1], elapsed / 1000, **figures)

    def other(self, line: str, number: int) -> Iterable[Event] | None:  # noqa: ARG002
        """Reads a start, sizes of the layout and, where the model is a Llama, sizes of the model."""
        if "[Start training]" in line:
            if starts := _STARTS.search(line):
                self.stated.update(zip(_STARTED, map(int, starts.groups()), strict=True))
            return (Mark.RESTART,)
        if "LlamaConfig(" in line:
            self.stated.update(LLAMA, bf16=True)
        elif "=" in line and (parallel := _PARALLEL.search(line)):
            self.stated.setdefault(_AXES[parallel[1]], int(parallel[2]))
        elif "=" in line and "swiglu" in self.stated and (size := _LLAMA.search(line)):
            if size[1] == "tie_word_embeddings":
                self.stated["untie_embeddings_and_output_weights"] = size[2] == "False"
            elif size[2].isdecimal():
                self.stated.setdefault(_SIZES[size[1]], int(size[2]))
        else:
            return None
        return ()

    def arguments(self, number: int) -> Iterator[Arguments]:
        """Yields the arguments gathered so far, with the number of GPUs that the layout makes up."""
        values, self.stated = self.stated, {}
        sizes = [values.get(f"{axis}_parallel_size") for axis in ("data", "pipeline_model", "tensor_model")]
        sizes.append(values.get("context_parallel_size", 1))
        counts = [size for size in sizes if isinstance(size, int)]
        if len(counts) == len(sizes):
            values["world_size"] = math.prod(counts)
        if values.get("num_query_groups") != values.get("num_attention_heads"):
            values["group_query_attention"] = True
        if values:
            yield Arguments(values, number)


_NEMO_STEP = re.compile(rf"global_step[:=]\s?{NUMBER}")
_ITERATION = re.compile(r"iteration ([0-9]{1,18})/")
_BAR = re.compile(r"\|\s{0,3}([0-9]{1,15})/[0-9]{1,15} \[")
_NEMO_BATCH = re.compile(rf"global_batch_size[:=]\s?{NUMBER}")


class NeMo(Trainer):
    """Reads lines of NeMo. Progress bars repeat a step until the next is done: the first print of a step counts."""

    timed = False
    last = -1

    def __init__(self, of: Dialect) -> None:
        super().__init__(of)
        self.origin: tuple[int, int] | None = None  # step and batch that the batches of a step are counted from

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        # The step's number. The bar rounds its counts to three digits from 1000 on (``global_step=1.01e+3``): there
        # the bar's own position, else the line's ``iteration``, is the number.
        step = _NEMO_STEP.search(line)
        exact = step is not None and not any(mark in step[1] for mark in "eE")
        position = step if exact else _BAR.search(line) or _ITERATION.search(line) or step
        index = counted(position[1]) if position else None
        self.timed = self.timed or match.re is not self.of.step_patterns["reduced_train_loss="]
        if index is None:
            return
        if match.re is self.of.step_patterns["reduced_train_loss="]:
            yield from () if self.timed else self._mean_since(match, index, line, number)
        elif (seconds := measured(match[1])) and index != self.last:
            self.last, batch = index, _NEMO_BATCH.search(line)
            if (pieces := self._batches_a_step(index, line)) > 1:
                seconds *= pieces
                if self.once("pieces"):
                    yield Fact("note", f"times are of one batch of {pieces} that accumulate to a step")
            size = counted(batch[1]) if batch else None
            yield self.made(line, number, index, seconds, global_batch_size=size, loss=loss(line))

    def _batches_a_step(self, index: int, line: str) -> int:
        """Counts the batches of a step by how far the bar and the step number have advanced."""
        bar = _BAR.search(line)
        batch = int(bar[1]) if bar else index
        if self.origin is None or index <= self.origin[0] or batch < self.origin[1]:
            self.origin = (index, batch)
            return 1
        return round((batch - self.origin[1]) / (index - self.origin[0])) or 1

    def _mean_since(self, match: re.Match[str], index: int, line: str, number: int) -> Iterator[Event]:
        """Yields the mean step since the last print. A bar counts batches: one a step, more where gradients accumulate."""
        bar, now = _BAR.search(line), taken(match.groupdict())
        if now is not None and (mean_step := self.clock.since(index, now, int(bar[1]) if bar else None)):
            yield self.made(line, number, index, mean_step[0], loss=loss(line), mean=mean_step[1] > 1)


_RUNTIME = re.compile(rf"\binterval_runtime: {NUMBER}")
_PER_SECOND = re.compile(rf"\binterval_steps_per_second: {NUMBER}")
_AGREE = 0.05  # relative: steps a second are printed to three or four digits


class PaddleNlp(Trainer):
    last = -1

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        if "s" in match.groupdict():
            yield from super().step(match, line, number)
            return
        iteration, runtime, rate = int(match[1]), measure(_RUNTIME.search(line)), measure(_PER_SECOND.search(line))
        if not runtime:
            return
        steps = iteration - self.last if 0 <= self.last < iteration else round(runtime * rate) if rate else 0
        if rate and steps and abs(steps / (runtime * rate) - 1) > max(_AGREE, 0.5 / steps):
            steps = round(runtime * rate)  # a restart, or lines that are missing
        if steps >= 1:
            self.last = iteration
            yield self.made(line, number, iteration, runtime / steps, mean=steps > 1)


_OLD = "Iter(train) ["
_PIECES = "times of one micro-batch: how many make a step (`accumulative_counts`) is not printed"
_RANK = re.compile(r"\[RANK ([0-9]{1,7})\]")


class XTuner(Trainer):
    def __init__(self, of: Dialect) -> None:
        super().__init__(of)
        self.pieces, self.rank = 0, ""

    def arguments(self, number: int) -> Iterator[Arguments]:
        for arguments in super().arguments(number):
            self.pieces = int(str(arguments.values.get("gradient_accumulation_steps", self.pieces)))
            yield arguments

    def step(self, match: re.Match[str], line: str, number: int) -> Iterator[Event]:
        """Yields the step of one rank's lines: from version 1.0 on every rank prints its own."""
        rank = _RANK.search(line)
        if rank is not None and _OLD not in line:
            self.rank = self.rank or rank[1]
            if rank[1] != self.rank:
                return
        if not (seconds := measure(match, 2)):
            return
        if _OLD not in line:
            yield self.made(line, number, match[1], seconds)
        elif self.pieces:
            yield self.made(line, number, match[1], seconds * self.pieces)
        elif self.once("pieces"):
            yield Fact("note", _PIECES)


_HEADER = re.compile(r"^\s{0,9}\|\s{0,9}(?:iter|iteration|step)s?\s{0,9}\|", re.IGNORECASE)
_ROW = re.compile(r"^\s{0,9}\|\s{0,9}([0-9]{1,15})\b[^|]{0,30}\|")
_CELL = re.compile(r"(?<!\\)\|")
#: A cell: a time, with thousands apart by a comma or a blank and perhaps a spread, and a rate behind a bar.
_VALUE = re.compile(
    r"([0-9][0-9,]*(?:[ \u00a0\u202f][0-9]{3})*(?:\.[0-9]+)?)(?: ?ms)?(?:\s*±[^|]*)?"
    r"(?:\s*\\\|\s*([0-9][0-9,]*(?:\.[0-9]+)?))?\W*"
)
_APART = re.compile(r"[ \u00a0\u202f]")
_MILLISECONDS = re.compile(r"(?<![a-z])ms(?![a-z])|millisecond", re.IGNORECASE)
#: What a column of another quantity is called.
_OTHERS = re.compile(
    r"loss|norm|(?<![a-z])(?:lr|acc(?:uracy)?|gi?b|mfu)(?![a-z])|rate|mem|elapsed|tok|flop|epoch|util|%|speed|throughput",
    re.IGNORECASE,
)
_MOST_COLUMNS = 64


def of_table(lines: Lines) -> Iterator[Event]:
    """Yields the steps of step-time tables in Markdown, as issues hold them: a row an iteration, a column a run.

    Cells are ``time`` or ``time \\| TFLOP/s``; a table holds times where its title or its header says milliseconds.
    """
    title = ""
    columns: Sequence[str] = ()
    steps: list[list[Step]] = []
    for number, line in lines:
        bare = line.strip()
        if not bare.startswith("|"):
            yield from _column_runs(columns, steps)
            columns, steps = (), []
            title = f"{title} {bare}"[-400:] if bare and not bare.startswith("**") else bare or title
        elif _HEADER.match(line):
            columns = _cells(line)[:_MOST_COLUMNS] if _MILLISECONDS.search(title + line) else ()
            steps = [[] for _ in columns]
        elif columns and (row := _ROW.match(line)):
            for name, run_steps, cell in zip(columns, steps, _cells(line), strict=False):
                if _OTHERS.search(name) or not (value := _VALUE.fullmatch(cell)):
                    continue
                if ms := finite(_APART.sub("", value[1])):
                    rate = finite(value[2]) if value[2] else None
                    run_steps.append(Step(int(row[1]), ms / 1000, number, tflops=rate, mean=True))
    yield from _column_runs(columns, steps)


def _column_runs(columns: Sequence[str], steps: Sequence[Sequence[Step]]) -> Iterator[Event]:
    for name, run_steps in zip(columns, steps, strict=True):
        if run_steps:
            yield Fact("run", name)
            yield from run_steps


def _cells(line: str) -> list[str]:
    """Splits a row into the cells after the first column, without their emphasis."""
    return [cell.strip().strip("*").strip() for cell in _CELL.split(line.strip().strip("|"))][1:]
