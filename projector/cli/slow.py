"""Shows what one slow rank or one slow kind of link does to the step: ``performance --slow-rank`` and ``--slow-link``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from projector.card import PARTS
from projector.cli.live import asked as timed_live
from projector.cli.tables import tabled
from projector.dataclass import dataclass
from projector.errors import InputError, Problem, raise_all
from projector.io.table import Line, Table, values

if TYPE_CHECKING:
    from projector.cli.inputs import Case
    from projector.projection import Projection
    from projector.step.run import Step
    from projector.step.straggler import Stragglers

_MOST = 1000.0
_RANK_KEYS = ("rank", "working_seconds", "waiting_seconds", "slow_working_seconds", "slow_waiting_seconds")
_LEAST = 1e-9  # share of a step below which a part has not moved


@dataclass(frozen=True)
class Slowed:
    """What is ``slow``, and the step ``before`` and ``after``."""

    slow: Stragglers
    before: Step
    after: Step

    def shown(self, projection: Projection) -> Projection:
        """Returns ``projection`` with the timeline of the slow step."""
        return replace(projection, timeline=self.after.timeline, spans=self.after.spans)

    @property
    def by_rank(self) -> list[tuple[float, ...]]:
        """Returns (rank, seconds in which it works and waits, the same of the slow step) of every pipeline rank."""
        lines = [self.before.timeline, self.after.timeline]
        found = [(busy, line.makespan - busy) for line in lines for busy in (line.rank_busy,)]
        return [(rank, *map(float, row)) for rank, row in enumerate(zip(*found[0], *found[1], strict=True))]


def of_flags(options: argparse.Namespace, projection: Projection, case: Case, mode: str) -> Slowed | None:
    """Returns the step with what the flags say is slow; None where they say nothing. Raises :class:`InputError` with
    every mistake."""
    if (slow := _stated(options)) is None:
        return None
    if timed_live(options):
        expected = "kernels from models or tables"
        raise InputError([Problem("--slow-rank, --slow-link", "", "layers timed live", expected)])
    from projector.step.straggler import with_stragglers

    return Slowed(slow, *with_stragglers(projection.resolved, case.cluster, mode, case.settings, slow))


def _stated(options: argparse.Namespace) -> Stragglers | None:
    """Returns what the flags say is slow; None where they say nothing. Raises :class:`InputError` with every mistake."""
    from projector.step.straggler import LINKS, Stragglers

    problems: list[Problem] = []
    ranks: dict[int, float] = {}
    links: dict[str, float] = {}
    for flag, words in (("--slow-rank", options.slow_rank), ("--slow-link", options.slow_link)):
        for word in words:
            name, factor = _name_and_factor(flag, word, problems)
            if flag == "--slow-link" and name in LINKS:
                links[name] = factor
            elif flag == "--slow-rank" and name.isascii() and name.isdecimal() and len(name) < 10:
                ranks[int(name)] = factor
            elif factor:
                expected = "a pipeline rank, from 0 on" if flag == "--slow-rank" else f"one of {', '.join(LINKS)}"
                problems.append(Problem(flag, "", name, expected))
    raise_all(problems)
    return Stragglers(ranks=ranks, links=links) if ranks or links else None


def _name_and_factor(flag: str, word: str, problems: list[Problem]) -> tuple[str, float]:
    """Returns a name and its factor; the factor is 0 where it is wrong, and ``problems`` say so."""
    name, _, factor = word.partition("=")
    try:
        number = float(factor)
    except ValueError:
        number = float("nan")
    if 1.0 <= number <= _MOST:
        return name.strip(), number
    problems.append(Problem(flag, name, factor or "nothing", f"a factor from 1 to {_MOST:g}"))
    return name, 0.0


def tables(slowed: Slowed) -> Iterator[Line | Table]:
    """Yields every part of the step that changes, what becomes of the run, and where the pipeline waits for it."""
    slow, before, after = slowed.slow, slowed.before, slowed.after
    slow_parts = [f"pipeline rank {rank} × {factor:g}" for rank, factor in slow.ranks.items()]
    slow_parts += [f"{name} links × {factor:g}" for name, factor in slow.links.items()]
    changed = [(PARTS[key], was, after.breakdown[key]) for key, was in before.breakdown.items()]
    changed = [row for row in changed if abs(row[2] - row[1]) > _LEAST * before.seconds]
    rows = [*changed, ("step", before.seconds, after.seconds)]
    words = {"slow": ", ".join(slow_parts), "sentence": _sentence(before, after)}
    yield tabled("slow", rows, share=lambda row: (row[2] - row[1]) / before.seconds, **words)
    ranks = slowed.by_rank
    if len(ranks) > 1 and after.seconds > before.seconds:
        yield tabled("slow_ranks", ranks)


def _sentence(before: Step, after: Step) -> str:
    times = after.seconds / before.seconds
    if times == 1.0:
        return "Nothing of this step waits for it: the run is as fast as before."
    wait = "all replicas wait for the slowest at every optimizer step."
    if before.rank != after.rank:
        wait += f" The parts are those of rank {after.rank}, which then works longest (before: {before.rank})."
    return f"The whole run takes {times:.3f} times as long while it lasts: {wait}"


def as_document(slowed: Slowed) -> dict[str, object]:
    before, after = slowed.before, slowed.after
    return {
        **values(slowed.slow, "ranks links"),
        "step_seconds": after.seconds,
        "slowdown": after.seconds / before.seconds,
        "breakdown": after.breakdown,
        "moved": {key: after.breakdown[key] - was for key, was in before.breakdown.items()},
        "longest_rank": after.rank,
        "by_rank": [dict(zip(_RANK_KEYS, row, strict=True)) for row in slowed.by_rank],
    }
