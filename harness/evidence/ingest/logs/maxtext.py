"""Logs of MaxText: ``completed step: …`` lines and the ``Config param`` lines before them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.evidence.ingest.logs.events import Checkpoint, Evaluation, Event, Fact
from harness.evidence.ingest.logs.numbers import NUMBER
from harness.evidence.ingest.logs.trainer import Trainer
from harness.evidence.ingest.logs.words import MAXTEXT_WORDS

__all__ = ["MaxText"]

_PARAMETER = "Config param "
_DEVICES = re.compile(r"[Nn]um_devices[:=]?\s{0,3}([0-9]{1,7})")


class MaxText(Trainer):
    NAME = "maxtext"
    steps = {
        "completed step:": re.compile(
            rf"completed step: (?P<step>[0-9]{{1,15}}), seconds:\s{{0,9}}(?P<s>{NUMBER})(?=,)"
        )
    }
    hints = (_PARAMETER,)
    figures = {
        "tokens_per_s": re.compile(rf"Tokens/s/device:\s{{0,9}}{NUMBER}"),
        "tflops": re.compile(rf"TFLOP/s(?:/device)?:\s{{0,9}}{NUMBER}"),
        "loss": re.compile(rf", loss:\s{{0,9}}{NUMBER}"),
    }
    settings = re.compile(r"Config param (\w{1,60}):\s?(.{0,200})")
    words = MAXTEXT_WORDS
    said = {"eval metrics": Evaluation, "saved a checkpoint at step": Checkpoint}

    def other(self, line: str, number: int) -> Iterable[Event] | None:
        devices = _DEVICES.search(line) if "evices" in line and _PARAMETER not in line else None
        return [Fact("gpus", int(devices[1]), number)] if devices else None
