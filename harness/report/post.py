"""The few tables that an author shows: headline, by GPU, by model; as Markdown made to be pasted, or for LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.contracts.results import BASELINE, Evaluation
from harness.report import markdown, view
from harness.report.table import Report, Table, without

__all__ = ["render", "tables"]


def tables(evaluation: Evaluation) -> tuple[Table, ...]:
    """Headline and ranking of every predictor, then error by GPU and by model of the first; main columns only."""
    rows = evaluation.unique_rows
    names = list(dict.fromkeys(r.predictor for r in rows))
    made = [view.headline(evaluation, rows, names), view.orders(evaluation, rows, names)]
    for name in [n for n in names if n != BASELINE][:1]:
        made += [view.by_gpu(evaluation, rows, name), view.by_model(evaluation, rows, name)]
    return tuple(_main(t) for t in made if t.rows)


def _main(table: Table) -> Table:
    return without(table, *(i for i, column in enumerate(table.columns) if column.minor))


def render(evaluation: Evaluation, title: str, gate: Sequence[str], provenance: Mapping[str, Any]) -> str:
    """A page of Markdown that stands alone: no pictures, no links, no more than a reader takes in."""
    failed = [line for line in gate if not line.startswith("PASS")]
    lines = list(view.sentences(evaluation))
    if gate:
        lines.append(f"gate: {len(gate) - len(failed)} of {len(gate)} checks hold")
    return markdown.render(
        Report(title=title, lines=(*lines, *failed, *_made_of(provenance)), tables=tables(evaluation))
    )


def _made_of(provenance: Mapping[str, Any]) -> list[str]:
    versions = [f"{name} {version}" for name, version in dict(provenance.get("versions", {})).items()]
    revision = str(provenance.get("revision", ""))
    inputs = len(provenance.get("inputs", {}))
    said = [f"made with {', '.join(versions)}"] if versions else []
    said += [f"revision {revision[:12]}{'+changes' if revision.endswith('+changes') else ''}"] if revision else []
    said += [f"{inputs} input files"] if inputs else []
    return [", ".join(said)] if said else []
