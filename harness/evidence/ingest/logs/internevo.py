"""Logs of InternEvo (InternLM): ``tflops=…,step=0,loss=…,tgs (tokens/gpu/second)=1424.64,…``, by commas or by spaces.

``tgs`` is of the step; ``tgs/tgs_avg`` and the like are running averages. A step's tokens are the difference of
``num_consumed_tokens``: with the ranks they give its time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Restart, Step
from harness.evidence.ingest.logs.numbers import NUMBER, group
from harness.evidence.ingest.logs.protocol import STEP, Lines
from harness.evidence.ingest.logs.shared_lines import shared

__all__ = ["NAME", "events", "weigh"]

NAME = "internevo"

_MARK = "tgs (tokens/gpu/second)="
_RATE = re.compile(rf"tgs \(tokens/gpu/second\)={NUMBER}(?=[\s,]|$)")
_STEP = re.compile(r"\bstep=([0-9]{1,15})")
_CONSUMED = re.compile(r"\bnum_consumed_tokens=([0-9]{1,18})\b")
_TFLOPS = re.compile(rf"\btflops={NUMBER}")
_LOSS = re.compile(rf"[\s,]loss={NUMBER}")
_LAYOUT = re.compile(
    r"data parallel size: ([0-9]{1,7}), pipeline parallel size: ([0-9]{1,7}), tensor parallel size: ([0-9]{1,7})"
)


def weigh(line: str) -> int:
    if _MARK in line and _STEP.search(line):
        return STEP
    return int("record_current_batch_training_metrics" in line)


def events(lines: Lines) -> Iterator[Event]:
    seen: set[str] = set()
    tokens = _Tokens()
    for number, line in lines:
        if _MARK in line:
            if (found := _step(line, number, tokens)) is not None:
                if "framework" not in seen:
                    seen.add("framework")
                    yield Fact("framework", NAME, number)
                yield found
        elif "parallel size:" in line and (layout := _LAYOUT.search(line)):
            if "layout" not in seen:
                seen.add("layout")
                tokens.ranks = math.prod(map(int, layout.groups()))
                yield from _layout([int(size) for size in layout.groups()], number)
        elif "===New Run " in line and "run" not in seen:
            seen.add("run")
            yield Restart("a new start", number)
        elif (event := shared(line, number, seen)) is not None:
            yield event


def _layout(sizes: list[int], number: int) -> Iterator[Event]:
    data, pipeline, tensor = sizes
    world = data * pipeline * tensor
    yield Fact("gpus", world, number)
    values = {
        "data_parallel_size": data,
        "pipeline_model_parallel_size": pipeline,
        "tensor_model_parallel_size": tensor,
        "world_size": world,
    }
    yield Arguments(values, number)


@dataclass
class _Tokens:
    """The count of tokens so far, by the last line; ``ranks``: 0 until the layout is printed."""

    ranks: int = 0
    step: int = -1
    consumed: int = 0

    def of(self, step: int, line: str) -> int | None:
        """Tokens of this step; None where the line before it is missing."""
        found = _CONSUMED.search(line)
        if found is None:
            return None
        now, before = int(found[1]), self.consumed if self.step + 1 == step else None
        self.step, self.consumed = step, now
        return now - before if before is not None and now > before else None


def _step(line: str, number: int, count: _Tokens) -> Step | None:
    index, rate = _STEP.search(line), group(_RATE.search(line))
    if index is None or not rate:
        return None
    tokens = count.of(int(index[1]), line)
    if count.ranks and count.consumed and tokens is None:
        return None  # the first line of an excerpt: the others have times
    return Step(
        iteration=int(index[1]),
        seconds=tokens / rate / count.ranks if tokens and count.ranks else None,
        line=number,
        tokens_per_s=rate,
        tflops=group(_TFLOPS.search(line)),
        loss=group(_LOSS.search(line)),
    )
