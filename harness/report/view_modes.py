"""Both modes of our projector side by side: the error of each, and how far apart the two are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.report.spec import number0, percent0, stated
from harness.report.table import Table, figure, listed, percent, signed, text

if TYPE_CHECKING:
    import pandas as pd

SIMULATED, MEASURED = "simulate", "benchmark"


def side_by_side(rows: pd.DataFrame) -> list[Table]:
    """Held-out rows that both modes project: by model, and one by one. Empty where only one mode was run."""
    simulated, recorded = (
        frame.part(rows, predictor=name, fit="heldout").dropna(subset=["projected_tgs"]).set_index("run_id")
        for name in (SIMULATED, MEASURED)
    )
    pairs = recorded.join(simulated[["projected_tgs", "error"]].add_suffix("_simulated"), how="inner")
    pairs["apart"] = pairs["projected_tgs"] / pairs["projected_tgs_simulated"] - 1.0
    return [_by_model(pairs), _every(pairs)] if len(pairs) else []


def _by_model(pairs: pd.DataFrame) -> Table:
    both = pairs["error"].notna() & pairs["error_simulated"].notna()
    sizes = pairs[["error", "error_simulated"]].abs().where(both, axis=0)
    known = pairs[["measured_share"]].assign(**sizes, apart=pairs["apart"].abs(), compared=both)
    made = (
        text("model", "Index", stated),
        figure("rows", "rows", help="runs that both modes project"),
        figure("compared", "compared"),
        figure("simulate", "error_simulated", percent, "held-out MAPE"),
        figure("benchmark", "error", percent, "held-out MAPE"),
        figure("difference", "apart", percent, "mean of |benchmark / simulate − 1|"),
        figure("measured share", "measured_share", percent0, "mean share of the step that rests on measured kernels"),
    )
    lines = [
        line
        for by in (["all"] * len(pairs), pairs["model"].to_numpy())
        for line in frame.lines(
            known.groupby(by).mean().assign(rows=known.groupby(by).size(), compared=known.groupby(by)["compared"].sum())
        )
    ]
    note = "Plain means over the rows that both modes project."
    return listed("simulate and benchmark side by side (held out)", lines, made, note)


def _every(pairs: pd.DataFrame) -> Table:
    made = (
        text("run", "Index"),
        figure("measured TGS", "measured_tgs", number0),
        figure("simulate", "projected_tgs_simulated", number0),
        figure("error", "error_simulated", signed),
        figure("benchmark", "projected_tgs", number0),
        figure("error", "error", signed),
        figure("difference", "apart", signed),
        figure("measured share", "measured_share", percent0),
    )
    return listed("simulate and benchmark, run by run (held out)", frame.lines(pairs), made, detail=True)
