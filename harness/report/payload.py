"""The rows as the page's script reads them: columns of few digits, repeated words written once. The script is
:mod:`harness.report.page`'s ``data.js``; the two change together."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.contracts import frame
from harness.contracts.results import FITS, Evaluation
from harness.contracts.runs import BREAKDOWN
from harness.report.spec import DEGREES
from harness.score import ranking
from projector.errors import truncate
from projector.io.table import values

if TYPE_CHECKING:
    import pandas as pd

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
    rows = evaluation.once
    runs = rows.drop_duplicates("run_id")
    fits = [fit for fit in FITS if (rows["fit"] == fit).any()]
    distinct = _distinguishing(runs)
    by_predictor = [(name, of_one) for (name,), of_one in frame.parts(rows, ["predictor"])]
    return {
        "parts": [name.removesuffix("_s") for name in BREAKDOWN],
        "fits": fits,
        "runs": _runs(runs, distinct),
        "predictors": {name: _predictor(of_one, fits, runs["run_id"]) for name, of_one in by_predictor},
        "groups": {name: _groups(frame.part(of_one, fit="heldout"), distinct) for name, of_one in by_predictor},
        "recipes": _recipes(runs["differs"]),
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


def _recipes(configurations: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Returns ``words``: every ``key=value`` once; ``at``: for every run the places of its words."""
    places: dict[str, int] = {}
    at = [[places.setdefault(f"{k}={v}", len(places)) for k, v in differs.items() if v] for differs in configurations]
    return {"words": list(places), "at": at}


def dumps(data: Mapping[str, Any]) -> str:
    """Returns JSON that can stand inside a ``script`` element whatever its texts hold."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


#: Columns of text of the runs, by their names in the page.
_TEXTS = {name: name for name in ("model", "family", "gpu", "framework", "precision", "suite", "group", "source")}
_TEXTS |= {"memory_kind": "memory_kind", "outcome": "measured_status"}
#: Columns of figures.
_FIGURES = {"measured": "measured_tgs", "measured_gib": "measured_memory_gib", "noise": "rel_std"}


def _runs(runs: pd.DataFrame, distinct: Mapping[str, _Distinct]) -> dict[str, Any]:
    labels = {run: " · ".join(words) for _, members in distinct.values() for run, words in members.items()}
    return {
        "id": runs["run_id"].tolist(),
        "gpus": runs["gpus"].tolist(),
        **{name: _rounded(runs[column]) for name, column in _FIGURES.items()},
        **{name: _coded(runs[column]) for name, column in _TEXTS.items()},
        "label": _coded(labels.get(run, "") for run in runs["run_id"]),
        **{
            key.removeprefix("data_parallel_"): _coded(frame.configured(runs, key, usual).where(runs["complete"], ""))
            for key, (_, usual) in DEGREES.items()
        },
    }


def _predictor(rows: pd.DataFrame, fits: Sequence[str], ids: pd.Series[str]) -> dict[str, Any]:
    """Returns the columns of one predictor, an entry for each of ``ids``."""
    by_fit = {fit: frame.part(rows, fit=fit).set_index("run_id").reindex(ids) for fit in (*fits, "heldout")}
    any_fit = rows.drop_duplicates("run_id").set_index("run_id").reindex(ids)
    columns: dict[str, Any] = {name: _coded(any_fit[name].fillna("")) for name in ("status", "reason", "assumed")}
    columns["gib"] = _rounded(any_fit["projected_memory_gib"])
    columns |= {end: _rounded(by_fit["heldout"][f"interval_{end}"]) for end in ("low", "high")}
    columns["shares"] = [*map(_shares, frame.lines(any_fit[[*BREAKDOWN, "projected_step_seconds"]]))]
    for fit in fits:
        columns[fit] = _rounded(by_fit[fit]["projected_tgs"])
        columns["step " + fit] = _rounded(by_fit[fit]["projected_step_seconds"])
    return columns


def _shares(row: Any) -> list[int] | None:
    """Returns the thousandths of the step by part; None where a predictor gives no parts."""
    parts, step = [getattr(row, name) for name in BREAKDOWN], row.projected_step_seconds
    if all(map(math.isnan, parts)) or math.isnan(step) or not step:
        return None
    return [0 if math.isnan(part) else round(1000 * part / step) for part in parts]


def _groups(held: pd.DataFrame, distinct: Mapping[str, _Distinct]) -> list[dict[str, Any]]:
    return [
        {
            **values(g, "name=group rows"),
            **{name: _short(getattr(g, name)) for name in ("tau", "regret")},
            "keys": list(distinct[g.group][0]),
            "seen": g.stated,
        }
        for g in ranking.group_rankings(held)
    ]


_Distinct = tuple[tuple[str, ...], dict[str, tuple[str, ...]]]


def _distinguishing(runs: pd.DataFrame) -> dict[str, _Distinct]:
    """Returns by group the keys that distinguish its runs (few; a version last), and their values by run."""
    by_group: dict[str, _Distinct] = {}
    for (group,), members in frame.parts(runs[runs["group"] != ""], ["group"]):
        differs = members["differs"].tolist()
        shown = tuple(sorted(ranking.differing(differs), key=lambda key: key == "version")[:MOST_KEYS])
        values = [tuple(truncate(of.get(key, "unset"), MOST_LETTERS) for key in shown) for of in differs]
        by_group[group] = shown, dict(zip(members["run_id"], values, strict=True))
    return by_group


def _rounded(figures: Iterable[float]) -> list[float | None]:
    return [_short(value) for value in figures]


def _short(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.{DIGITS}g}")


def _coded(values: Iterable[str]) -> dict[str, Any]:
    """Returns ``words`` once each, and for every value its place among them."""
    places: dict[str, int] = {}
    at = [places.setdefault(value, len(places)) for value in values]
    return {"words": list(places), "at": at}
