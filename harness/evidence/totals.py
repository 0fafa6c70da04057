"""Reads what sources state of whole trainings (``measured/totals.yaml``): hours, energy, goodput, interruptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.hardware import catalogue
from projector.hardware.yaml_file import Reader
from projector.intake import case as case_file
from projector.intake import detect
from projector.intake.loaded import Loaded
from projector.io.files import read_yaml

_MOST = 1e18
_KEYS = (
    *("id", "source", "notes", "tokens", "gpus", "gpu", "gpu_hours", "tgs", "goodput", "interruptions"),
    *("mwh", "of", "ideal", "case"),
)
_INTERRUPTIONS = {"count": 1e9, "days": 1e5, "gpus": 1e7}
SCOPES = ("gpu", "machines", "site")


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One training. ``tgs``: tokens/s/GPU of its steps as printed; ``goodput``: share of the time in which it trained;
    ``interruptions``: (how many, days, GPUs); ``mwh`` of ``of``: the GPUs, the machines or the site; ``ideal``: its hours
    are its tokens over its rate, nothing else; ``case``: its configuration, where known."""

    id: str
    source: str
    gpus: int
    gpu: str | None = None
    notes: str = ""
    tokens: float | None = None
    gpu_hours: float | None = None
    tgs: float | None = None
    goodput: float | None = None
    interruptions: tuple[float, float, float] | None = None
    mwh: float | None = None
    of: str = "site"
    ideal: bool = False
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
    read.known(_KEYS)

    def number(key: str, most: float = _MOST) -> float | None:
        return read.number(key, 1e-9, most) if key in entry else None

    gpu = read.text("gpu") if "gpu" in entry else None
    if gpu is not None and catalogue.find_gpu(gpu) is None:
        read.fail("gpu", gpu, "a GPU of the catalogue")
    total = Total(
        id=read.text("id"),
        source=read.text("source"),
        notes=read.text("notes") if "notes" in entry else "",
        gpus=read.integer("gpus", 1, 10_000_000),
        gpu=gpu,
        tokens=number("tokens"),
        gpu_hours=number("gpu_hours"),
        tgs=number("tgs"),
        goodput=number("goodput", 1.0),
        interruptions=_interruptions(read, entry),
        mwh=number("mwh"),
        of=read.choice("of", SCOPES, "site"),
        ideal=read.switch("ideal"),
        case=_case(entry.get("case"), path, problems),
    )
    problems += read.problems
    return total


def _interruptions(read: Reader, entry: Mapping[str, Any]) -> tuple[float, float, float] | None:
    if "interruptions" not in entry:
        return None
    inner = entry["interruptions"]
    if not isinstance(inner, Mapping) or set(inner) != set(_INTERRUPTIONS):
        read.fail("interruptions", inner, "exactly the keys count, days, gpus")
        return None
    cell = Reader(inner, read.where, f"{read.prefix}interruptions.")
    count, days, gpus = (cell.number(key, 1, most) for key, most in _INTERRUPTIONS.items())
    read.problems.extend(cell.problems)
    return count, days, gpus


def _case(stated: object, path: Path, problems: list[Problem]) -> Loaded | None:
    if stated is None:
        return None
    try:
        if isinstance(stated, Mapping):
            return case_file.from_mapping(stated, path)
        return detect.load(path.parent / str(stated))
    except InputError as error:
        problems += error.problems
        return None
