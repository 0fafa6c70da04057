"""Reads what sources state of whole trainings (``measured/totals.yaml``): hours, energy, goodput, interruptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, collecting_into, raise_all
from projector.hardware import catalogue
from projector.hardware.types import stated
from projector.hardware.yaml_file import Reader, keys_of
from projector.intake import case as case_file
from projector.intake import detect
from projector.intake.loaded import Loaded
from projector.io.documents import as_mapping
from projector.io.files import read_yaml

_amount = partial(stated, 1e-9, 1e18, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How often a training of ``gpus`` was interrupted in so many ``days``."""

    count: float = stated(1, 1e9)
    days: float = stated(1, 1e5)
    gpus: float = stated(1, 1e7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One training. ``tgs``: tokens/s/GPU of its steps as printed; ``goodput``: share of the time in which it trained;
    ``mwh`` of ``of``: the GPUs, the machines or the site; ``ideal``: its hours are its tokens over its rate, nothing else;
    ``case``: its configuration, where known."""

    id: str = stated()
    source: str = stated()
    gpus: int = stated(1, 10_000_000)
    gpu: str | None = stated(default=None)
    notes: str = stated(default="")
    tokens: float | None = _amount()
    gpu_hours: float | None = _amount()
    tgs: float | None = _amount()
    goodput: float | None = stated(1e-9, 1.0, default=None)
    mwh: float | None = _amount()
    of: str = stated(words=("gpu", "machines", "site"), default="site")
    ideal: bool = stated(default=False)
    interruptions: Interruptions | None = None
    case: Loaded | None = None


def read(path: Path) -> tuple[Total, ...]:
    """Reads every entry of the file at ``path``. Raises :class:`InputError` with every mistake of the file."""
    entries = read_yaml(path)
    if not isinstance(entries, list) or not entries or not all(isinstance(each, Mapping) for each in entries):
        raise InputError([Problem(str(path), "", type(entries).__name__, "a list of runs, each a mapping")])
    problems: list[Problem] = []
    totals = [_total(entry, path, problems) for entry in entries]
    counts = Counter(each.id for each in totals)
    problems += [Problem(str(path), name, "a duplicate id", "one entry a run") for name, n in counts.items() if n > 1]
    raise_all(problems)
    return tuple(totals)


def _total(entry: Mapping[str, Any], path: Path, problems: list[Problem]) -> Total:
    read = Reader(entry, str(path), f"{entry.get('id', '?')}.")
    read.known((*keys_of(Total), "interruptions", "case"))
    values = read.fields(Total)
    if "gpu" in entry and catalogue.find_gpu(values["gpu"]) is None:
        read.fail("gpu", values["gpu"], "a GPU of the catalogue")
    with collecting_into(problems):
        if "interruptions" in entry:
            inner = Reader(as_mapping(entry["interruptions"], str(path)), str(path), f"{read.prefix}interruptions.")
            inner.known(keys_of(Interruptions))
            values["interruptions"] = Interruptions(**inner.fields(Interruptions))
            problems += inner.problems
    with collecting_into(problems):
        values["case"] = _case(entry.get("case"), path)
    problems += read.problems
    return Total(**values)


def _case(value: object, path: Path) -> Loaded | None:
    if isinstance(value, Mapping):
        return case_file.from_mapping(value, path)
    return None if value is None else detect.load(path.parent / str(value))
