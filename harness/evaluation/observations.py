"""What the runs of ``measured/`` teach of each predictor, as a file beside the reports: corrections and intervals of any run
come from all of it less what is held out, never from the runs that happen to be evaluated with it.

``harness figures --out`` writes it. One line a measured run and predictor: ln(measured / projected step time), and what
:class:`harness.contracts.estimates.Observation` says beside.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from harness.contracts.estimates import Observation
from harness.evidence import csvcell, shelf
from projector import experience
from projector.errors import InputError, Problem
from projector.io import csv_file
from projector.io.files import read_text

FILE = "observations.csv"
#: Of a checkout, and of an installed package (pyproject.toml, force-include).
_FOLDERS = (shelf.PACKAGED.parent / "reports", shelf.PACKAGED / "reports")
_BETWEEN = "|"  # levels
_WORDS = ("predictor", "run_id", "source", "family", "framework", "gpu", "levels")
_FIGURES = ("log_ratio", *experience.TRAITS)


def text(observed: Mapping[str, Sequence[Observation]]) -> str:
    """The file's text: of every predictor the observations that teach, figures to five significant digits."""
    rows: list[tuple[object, ...]] = [(*_WORDS, *_FIGURES)]
    for predictor, seen in observed.items():
        for o in seen:
            if math.isfinite(o.log_ratio):
                words = (predictor, o.run_id, o.source, o.family, o.framework, o.gpu, _BETWEEN.join(o.levels))
                figures = (f"{value:.5g}" for value in (o.log_ratio, *o.traits))
                rows.append((*map(csvcell.shielded, words), *figures))
    return csv_file.text(*rows)


def parse(content: str, where: str) -> dict[str, tuple[Observation, ...]]:
    """By predictor. Raises :class:`InputError` with every line that is none."""
    reader = csv.reader(io.StringIO(content))
    head = tuple(next(reader, ()))
    if head != (*_WORDS, *_FIGURES):
        raise InputError([Problem(where, "", ",".join(head), ",".join((*_WORDS, *_FIGURES)))])
    found: dict[str, list[Observation]] = {}
    problems: list[Problem] = []
    for number, cells in enumerate(reader, start=2):
        try:
            predictor, seen = _observation(cells)
        except ValueError:
            problems.append(Problem(where, f"line {number}", ",".join(cells), "words, then finite figures"))
        else:
            found.setdefault(predictor, []).append(seen)
    if problems:
        raise InputError(problems)
    return {predictor: tuple(rows) for predictor, rows in found.items()}


def _observation(cells: Sequence[str]) -> tuple[str, Observation]:
    predictor, run_id, source, family, framework, gpu, levels = map(csvcell.plain, cells[: len(_WORDS)])
    log_ratio, *traits = map(float, cells[len(_WORDS) :])
    if len(traits) != len(experience.TRAITS) or not all(map(math.isfinite, (log_ratio, *traits))):
        raise ValueError(cells)
    return predictor, Observation(
        run_id=run_id,
        family=family,
        framework=framework,
        levels=tuple(levels.split(_BETWEEN)),
        log_ratio=log_ratio,
        gpu=gpu,
        traits=tuple(traits),
        source=source,
    )


def packaged() -> dict[str, tuple[Observation, ...]] | None:
    """Those of the project's own measured runs, from a checkout or an installed package; None where there are none."""
    path = next((folder / FILE for folder in _FOLDERS if (folder / FILE).is_file()), None)
    return None if path is None else parse(read_text(path, "what measured runs teach"), str(path))
