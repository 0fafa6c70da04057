"""Keys of a Primus hardware file that no collective of the run feels, each with the reason."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from projector.cli.inputs import Case, read_case
from projector.hardware import primus
from projector.hardware.types import Cluster
from projector.projection import project


def unfelt(case: Case, options: argparse.Namespace) -> Iterator[str]:
    """``FILE: without effect on this run: KEY (why)``: found by projecting the run without each key of the file."""
    file = options.hardware_config
    if not file:
        return
    plain = copy(options)
    plain.hardware_config = None
    before = read_case(plain).cluster
    whole = _told(case, case.cluster)
    same, unmet = [], []
    for key in primus.read(file, before).stated:
        without = primus.read(file, before, without=key).cluster
        if replace(without, sources=case.cluster.sources) == case.cluster:
            same.append(key)
        elif _told(case, without) == whole:
            unmet.append(f"{key} (felt by {primus.FELT_BY.get(key, 'collectives that this run has not')})")
    if same:
        yield f"{file}: without effect: {', '.join(same)}: as the cluster has it"
    if unmet:
        yield f"{file}: without effect on this run: {', '.join(unmet)}"


def _told(case: Case, cluster: Cluster) -> tuple[float, tuple[tuple[str, float], ...]]:
    """The step, and the seconds of every collective."""
    made = project(case.workload, cluster, settings=case.settings, communication=True)
    return made.step_seconds, tuple((row.name, row.seconds) for row in made.communication)
