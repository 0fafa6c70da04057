"""The rows as the page's script reads them: columns of few digits, repeated words written once. The script is
:mod:`harness.report.page`'s ``data.js``; the two change together."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.contracts import frame
from harness.contracts.results import FITS, Evaluation, Row, RunFacts
from harness.contracts.runs import BREAKDOWN
from harness.report.parallelism import DEGREES, degrees
from harness.score import accuracy, ranking
from projector.errors import truncate

#: Significant digits: they show a hundredth of a point of error, and keep the page small.
DIGITS = 5

# Configuration keys of a label inside a group, and letters of one value: more does not fit beside a chart.
MOST_KEYS, MOST_LETTERS = 3, 36


# Options of `harness run` that decide which rows are made, and how.
_KEPT = frozenset(
    {"--runs", "--measured", "--mode", "--with", "--gemm-backend", "--gpu-clock-mhz", "--power-cap-watts"}
)


def build(evaluation: Evaluation, provenance: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Returns the JSON-ready columns of an evaluation: ``runs``, one entry a run; ``predictors``, their figures by fit;
    ``groups``; ``recipes``: the configuration that each run states, as ``key=value``; ``again``: :func:`again`."""
    rows = evaluation.unique_rows
    facts = evaluation.facts
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.run_id, row)
    names = list(dict.fromkeys(r.predictor for r in rows))
    fits = [f for f in FITS if any(r.fit == f for r in rows)]
    return {
        "parts": [name.removesuffix("_s") for name in BREAKDOWN],
        "fits": fits,
        "runs": _runs(list(first.values()), facts),
        "predictors": {name: _predictor(rows, name, fits, list(first)) for name in names},
        "groups": {name: _groups(rows, facts, name) for name in names},
        "recipes": _recipes([facts[i] for i in first]),
        "again": again(provenance),
    }


def again(provenance: Mapping[str, Any]) -> str:
    """Returns the command that projects one of the rows once more: the recorded one without the options of outputs and
    gates; the id of the run is to stand behind it. Without a recorded ``harness run`` the run is sought among all
    measured ones."""
    command, inputs = list(provenance.get("command", ())), provenance.get("inputs", {})
    words, option = [], ""
    for word in command[2:] if command[1:2] == ["run"] else ["--mode", "both"]:
        if word.startswith("--"):
            option = word.partition("=")[0]
        if option in _KEPT or word in inputs:
            words.append(str(word))
    return shlex.join(["python", "-m", "harness", "run", *words, "--id"])


def _recipes(facts: Sequence[RunFacts]) -> dict[str, Any]:
    """Returns ``words``: every ``key=value`` once; ``at``: for every run the places of its words."""
    places: dict[str, int] = {}
    at = [[places.setdefault(f"{k}={v}", len(places)) for k, v in f.differs.items() if v] for f in facts]
    return {"words": list(places), "at": at}


def dumps(data: Mapping[str, Any]) -> str:
    """Returns JSON that can stand inside a ``script`` element whatever its texts hold."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _runs(rows: Sequence[Row], facts: Mapping[str, RunFacts]) -> dict[str, Any]:
    labels = {i: " · ".join(v) for _, members in _distinguishing(rows, facts).values() for i, v in members.items()}
    texts: dict[str, Callable[[Row], str]] = {
        "model": lambda r: r.model,
        "family": lambda r: r.family,
        "gpu": lambda r: r.gpu,
        "framework": lambda r: r.framework,
        "precision": lambda r: r.precision,
        "suite": lambda r: r.suite,
        "group": lambda r: r.group,
        "source": lambda r: facts[r.run_id].source,
        "memory_kind": lambda r: facts[r.run_id].memory_kind or "",
        "outcome": lambda r: facts[r.run_id].measured_status,
        "label": lambda r: labels.get(r.run_id, ""),
    }
    split = {r.run_id: degrees(facts[r.run_id]) for r in rows}
    return {
        "id": [r.run_id for r in rows],
        "gpus": [r.gpus for r in rows],
        "measured": [_rounded(r.measured_tgs) for r in rows],
        "measured_gib": [_rounded(r.measured_memory_gib) for r in rows],
        "noise": [_rounded(facts[r.run_id].rel_std) for r in rows],
        **{name: _coded(map(key, rows)) for name, key in texts.items()},
        **{k.removeprefix("data_parallel_"): _coded(split[r.run_id][k] for r in rows) for k in DEGREES},
    }


def _predictor(rows: Iterable[Row], name: str, fits: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
    by_fit_and_run = {(r.fit, r.run_id): r for r in rows if r.predictor == name}
    any_fit = [next((by_fit_and_run[f, i] for f in fits if (f, i) in by_fit_and_run), None) for i in ids]
    held = [by_fit_and_run.get(("heldout", i)) for i in ids]
    columns: dict[str, Any] = {
        "status": _coded(r.status if r else "" for r in any_fit),
        "reason": _coded(r.reason if r else "" for r in any_fit),
        "assumed": _coded(r.assumed if r else "" for r in any_fit),
        "gib": [_rounded(r.projected_memory_gib) if r else None for r in any_fit],
        "low": [_rounded(r.interval_low) if r else None for r in held],
        "high": [_rounded(r.interval_high) if r else None for r in held],
        "shares": [_shares(r) if r else None for r in any_fit],
    }
    for fit in fits:
        of_fit = [by_fit_and_run.get((fit, i)) for i in ids]
        columns[fit] = [_rounded(r.projected_tgs) if r else None for r in of_fit]
        columns["step " + fit] = [_rounded(r.projected_step_seconds) if r else None for r in of_fit]
    return columns


def _shares(row: Row) -> list[int] | None:
    """Returns the thousandths of the step by part; None where a predictor gives no parts."""
    parts, step = row.breakdown, row.projected_step_seconds
    if not parts or not step:
        return None
    return [round(1000 * parts.get(name, 0.0) / step) for name in BREAKDOWN]


def _groups(rows: Sequence[Row], facts: Mapping[str, RunFacts], name: str) -> list[dict[str, Any]]:
    selected = accuracy.select(rows, name, "heldout")
    rankings = ranking.group_rankings(frame.of(selected, facts))
    distinct = _distinguishing(selected, facts)
    return [
        {
            "name": g.group,
            "rows": g.rows,
            "tau": _rounded(g.tau),
            "regret": _rounded(g.regret),
            "keys": list(distinct[g.group][0]),
            "seen": g.stated,
        }
        for g in rankings
    ]


_Distinct = tuple[tuple[str, ...], dict[str, tuple[str, ...]]]


def _distinguishing(rows: Iterable[Row], facts: Mapping[str, RunFacts]) -> dict[str, _Distinct]:
    """Returns by group the keys that distinguish its runs (few; a version last), and their values by run."""
    by_group: dict[str, _Distinct] = {}
    for group, members in accuracy.by(rows, lambda r: r.group).items():
        if not group or len(members) < 2:
            continue
        configurations = {r.run_id: facts[r.run_id].differs for r in members}
        keys = dict.fromkeys(key for c in configurations.values() for key in c)
        differ = [k for k in keys if len({c.get(k, "") for c in configurations.values()}) > 1]
        shown = tuple(sorted(differ, key=lambda k: k == "version")[:MOST_KEYS])
        by_group[group] = shown, {i: tuple(_value(c, k) for k in shown) for i, c in configurations.items()}
    return by_group


def _value(configuration: Mapping[str, str], key: str) -> str:
    return truncate(configuration.get(key, "unset"), MOST_LETTERS)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _coded(values: Iterable[str]) -> dict[str, Any]:
    """Returns ``words`` once each, and for every value its place among them."""
    places: dict[str, int] = {}
    at = [places.setdefault(value, len(places)) for value in values]
    return {"words": list(places), "at": at}
