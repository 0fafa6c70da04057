"""Logs of InternEvo (InternLM): ``tflops=…,step=0,loss=…,tgs (tokens/gpu/second)=1424.64,…``, by commas or by spaces.

``tgs`` is of the step; ``tgs/tgs_avg`` and the like are running averages. A step's tokens are the difference of
``num_consumed_tokens``: with the ranks they give its time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from harness.evidence.ingest.logs.events import Arguments, Event, Fact, Restart
from harness.evidence.ingest.logs.numbers import NUMBER, group, whole
from harness.evidence.ingest.logs.trainer import Trainer

_RATE = re.compile(rf"tgs \(tokens/gpu/second\)={NUMBER}(?=[\s,]{{1,9}}\S)")
_CONSUMED = re.compile(r"\bnum_consumed_tokens=([0-9,]{1,24})")
_LAYOUT = re.compile(
    r"data parallel size: ([0-9]{1,7}), pipeline parallel size: ([0-9]{1,7}), tensor parallel size: ([0-9]{1,7})"
)


class InternEvo(Trainer):
    NAME = "internevo"
    steps = {"tgs (tokens/gpu/second)=": re.compile(r"\bstep=([0-9]{1,15})")}
    hints = ("record_current_batch_training_metrics",)
    figures = {
        "tokens_per_s": _RATE,
        "tflops": re.compile(rf"\btflops={NUMBER}"),
        "loss": re.compile(rf"[\s,]loss={NUMBER}"),
    }

    def __init__(self) -> None:
        """``ranks``: 0 until the layout is printed; the count of tokens so far, by the last line."""
        super().__init__()
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
        """Tokens of this step; None where the line before it is missing."""
        found = _CONSUMED.search(line)
        if found is None:
            return None
        now, before = whole(found[1]) or 0, self.consumed if self.last + 1 == step else None
        self.last, self.consumed = step, now
        return now - before if before is not None and now > before else None

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        if "parallel size:" in line and (layout := _LAYOUT.search(line)):
            return self._layout(list(map(int, layout.groups())), number) if self.once("layout") else ()
        return (Restart("a new start", number),) if "===New Run " in line and self.once("run") else None

    def _layout(self, sizes: list[int], number: int) -> Iterable[Event]:
        self.ranks = math.prod(sizes)
        names = ("data_parallel_size", "pipeline_model_parallel_size", "tensor_model_parallel_size", "world_size")
        values = dict(zip(names, (*sizes, self.ranks), strict=True))
        return (Fact("gpus", self.ranks, number), Arguments(values, number))
