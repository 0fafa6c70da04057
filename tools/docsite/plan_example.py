"""The worked example of the page on plans, made by the command that the page shows."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from docsite.blocks import table

__all__ = ["figures", "sizes"]

ROOT = Path(__file__).resolve().parents[2]
WORDS = {
    "days": "days",
    "gpu_hours": "GPU-hours",
    "mwh": "MWh",
    "cost": "cost",
    "goodput": "goodput",
    "failures": "failures",
}


@cache
def _document() -> Any:
    from projector.cli import run

    example = str(ROOT / "examples" / "deepseek_v3_h800.yaml")
    with redirect_stdout(io.StringIO()) as out:
        run(["plan", "--config", example, "--tokens", "14.8T", "--price", "2", "--json"])
    return json.loads(out.getvalue())


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name == "goodput" else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def figures() -> str:
    """The figures of the whole run with their intervals."""
    found = _document()["figures"]
    ends = ("middle", "low", "high")
    rows = [[words, *(_shown(name, found[end][name]) for end in ends)] for name, words in WORDS.items()]
    return table(["", "middle", "from", "to"], rows)


def sizes() -> str:
    """The same run on more GPUs."""
    names = ("goodput", "days", "gpu_hours", "mwh", "cost")
    rows = []
    for each in _document()["sizes"]:
        if each["figures"]:
            middle = each["figures"]["middle"]
            cells = (_shown(name, middle[name]) for name in names)
            rows.append([f"{each['gpus']:,}", f"{each['global_batch_size']:,}", *cells])
    return table(["GPUs", "batch", *(WORDS[name] for name in names)], rows)
