"""Logs of Megatron-LM with step times, losses and timers that a test chooses."""

import re
from collections.abc import Sequence
from pathlib import Path

from asked import LOGS, put


def write_log(path: Path, seconds: Sequence[float], *, timers: bool = False, batch: int | None = None) -> Path:
    """The arguments of a real shape (llama3_8b, 8 GPUs, tp 2, batch 128 x 8192), one line a step."""
    lines = (LOGS / "megatron_c.log").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if "elapsed time per iteration" in line)
    out = lines[:first]
    for i, value in enumerate(seconds, start=1):
        line = re.sub(r"iteration\s+\d+/\s+\d+", f"iteration {i:8d}/ {len(seconds):8d}", lines[first])
        line = re.sub(r"(\(ms\): )[\d.]+/[\d.]+", rf"\g<1>{1000 * value:.2f}", line)
        line = re.sub(r"(throughput|tokens) per GPU[^|]*\| ", "", line)
        line = re.sub(r"lm loss: [\dE.+-]+", f"lm loss: {2 + 9 / i:.6E}", line)
        if batch is not None:
            line = re.sub(r"(global batch size:\s+)\d+", rf"\g<1>{batch}", line)
        out.append(line)
        if timers:
            out.append(f"time (ms) | forward-backward: {800 * value:.2f} | optimizer: {100 * value:.2f}")
    return put(path, "\n".join(out) + "\n")
