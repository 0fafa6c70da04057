"""Looks: the first projection of a run that nobody here has seen, kept as it came out, which is what a user with a new
source meets. A look is made once. What was projected before the file of looks began stands in the checked-in results and
counts as looked at; later changes of a model or of a profile never change a look."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from harness.contracts.estimates import Observation, publisher
from harness.contracts.runs import MeasuredRun, Prediction
from harness.evaluation.observations import observation
from harness.evidence import csvcell
from harness.predictors.protocol import Predictor
from projector import posterior
from projector.dataclass import dataclass
from projector.effects import Facts
from projector.errors import InputError, Problem
from projector.io import csv_file
from projector.io.files import read_text, write_whole
from projector.io.table import values

#: Where looks are kept, from the root of a checkout.
FILE = Path("reports/first_look.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One first look. Throughputs in tokens/s/GPU; ``error`` = projected / measured − 1, before any correction;
    ``expected``, ``low`` and ``high``: what the posterior of that time made of the projection, None where it said
    nothing. ``status``, ``reason``: as in :class:`Row`. ``revision``: of the checkout that looked. ``model``,
    ``assumed``, ``law``, ``shares``: as :class:`projector.effects.Facts` has them, of the projection that was looked at;
    for looks at revisions before d7e0288, which kept none, of the projection by d7e0288."""

    run_id: str
    publisher: str
    gpu: str
    framework: str
    family: str
    doubt: str = ""
    measured: float
    projected: float
    error: float
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    status: str = "ok"
    reason: str = ""
    revision: str = ""
    model: str = ""
    assumed: str = ""
    law: float = 0.0
    shares: str = ""

    @property
    def observation(self) -> Observation | None:
        """Returns what a calibration learns from the look; None where its shares are missing or it is doubted."""
        if not self.shares or self.doubt:
            return None
        pairs = (word.rsplit(" ", 1) for word in self.shares.split("|"))
        facts = Facts(
            **values(self, "gpu framework family model source=publisher law"),
            step_seconds=1.0 / self.projected,
            shares={part: float(share) for part, share in pairs},
            assumed=frozenset(filter(None, self.assumed.split("|"))),
        )
        return Observation(run_id=self.run_id, facts=facts, log_ratio=math.log1p(self.error))

    @property
    def inside(self) -> bool | None:
        """Tells whether the measurement lies in the interval; None where there is no interval."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


_COLUMNS = tuple(f.name for f in fields(Look))
DIGITS = 6


def due(runs: Iterable[MeasuredRun], seen: Iterable[str]) -> list[MeasuredRun]:
    """Returns the runs with a whole configuration and a measured throughput that are not among the ids ``seen``."""
    known = frozenset(seen)
    return [run for run in runs if not run.problem and run.measured.tgs and run.id not in known]


def look(
    runs: Sequence[MeasuredRun], tool: Predictor, revision: str, progress: Callable[[int, int], None] | None = None
) -> list[Look]:
    """Returns one look for each run that can be projected, in order; a run that is refused is looked at when it no
    longer is. ``progress(done, total)`` is called after each run."""
    looks = []
    for done, run in enumerate(runs, start=1):
        p = tool.predict(run)
        if p.step_seconds is not None:
            looks.append(_look(run, p, p.step_seconds, revision))
        if progress:
            progress(done, len(runs))
    return looks


def _look(run: MeasuredRun, p: Prediction, step_seconds: float, revision: str) -> Look:
    measured = run.measured.tgs or math.nan
    rate = run.workload.tokens_per_step / run.gpus
    known_posterior = posterior.load()
    facts = observation(run, "own", p, known_posterior.law).facts
    expected = known_posterior.expect(facts)
    projected = rate / step_seconds
    return Look(
        **values(run, "run_id=id gpu framework=stack.framework family=model.family doubt"),
        **values(p, "status reason"),
        **values(facts, "model law"),
        publisher=publisher(run.source.title),
        measured=measured,
        projected=projected,
        expected=rate / expected.middle,
        low=rate / expected.high,
        high=rate / expected.low,
        error=projected / measured - 1.0,
        revision=revision,
        assumed="|".join(sorted(facts.assumed)),
        shares="|".join(f"{part} {share:.{DIGITS}g}" for part, share in facts.shares.items()),
    )


def read(path: Path) -> list[Look]:
    """Returns the looks in a file, none where there is no file. Raises :class:`InputError` with every mistake."""
    if not path.exists():
        return []
    columns, rows = csv_file.read(path, "a file that `harness first-look` wrote")
    if columns != _COLUMNS:
        raise InputError([Problem(str(path), "", ",".join(columns), ",".join(_COLUMNS))])
    return csvcell.parsed(Look, rows, str(path))


def append(path: Path, looks: Sequence[Look]) -> None:
    """Writes ``looks`` behind those that the file ``path`` holds, whose text stays as it is."""
    before = read_text(path, "a file of looks") if path.exists() else csv_file.text(_COLUMNS)
    write_whole(path, before + csv_file.text(*([_cell(getattr(look, name)) for name in _COLUMNS] for look in looks)))


def _cell(value: object) -> object:
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else csvcell.shielded(value)
