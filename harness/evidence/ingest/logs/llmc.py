"""Logs of llm.c: ``step   61/74 | loss 3.2 (+1.1z)| norm 1.48 (+nanz)| lr 3e-04 | 44.57 ms | 29.5% bf16 MFU | 91886 tok/s``.

The time is of the step, evaluation and sampling left out. ``tok/s`` and MFU are not taken: the first is a running average
over all GPUs. The head is a table ``| name | value |``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.ingest.logs.events import Arguments
from harness.evidence.ingest.logs.numbers import NUMBER
from harness.evidence.ingest.logs.trainer import Trainer

__all__ = ["LlmC"]


class LlmC(Trainer):
    NAME = "llm.c"
    steps = {
        "tok/s": re.compile(
            rf"^\s{{0,9}}step\s{{1,9}}(?P<step>[0-9]{{1,15}})/[0-9]{{1,15}} \| (?:train )?loss "
            rf"(?:(?P<loss>{NUMBER})|-?nan|-?inf)\b.{{0,160}}?\| (?P<ms>{NUMBER}) ms \|.{{0,80}}? tok/s"
        ),
        # its trainer for CPUs
        "(took ": re.compile(
            rf"^step (?P<step>[0-9]{{1,15}}): train loss (?P<loss>{NUMBER}) \(took (?P<ms>{NUMBER}) ms"
        ),
    }
    hints = ("| micro batch size B ",)
    settings = re.compile(
        r"^\|\s(micro batch size B|sequence length T|total batch size|num_processes)\s{1,40}\|\s([0-9]{1,12})\s{1,60}\|"
    )
    words = {
        "micro batch size B": "micro_batch_size",
        "sequence length T": "seq_length",
        "total batch size": "tokens",
        "num_processes": "world_size",
    }

    def arguments(self, number: int) -> Iterator[Arguments]:
        """The batch is stated in tokens."""
        for found in super().arguments(number):
            values = {name: int(str(value)) for name, value in found.values.items()}
            tokens, length = values.pop("tokens", 0), values.get("seq_length", 0)
            if length and tokens and tokens % length == 0:
                values["global_batch_size"] = tokens // length
            yield found._replace(values=values)
