"""Figures of the documentation, each cut out of a file that a command of the project writes: ``reports/``, ``measured/``.

A block is named ``kind`` or ``kind/of``; :data:`FIGURES` says who makes it. Nothing here computes an error anew except
``shares``, which sorts the rows of ``reports/results.csv`` by a part of the step, and ``collectives``, which scores the
model on ``measured/collectives`` (seconds of work, and no other report holds it).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median

from docsite.blocks import cells, sections, table
from projector.errors import InputError, Problem
from projector.memory.tolerance import TOLERANCE

__all__ = ["FIGURES", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "reports"
PARTS = ("host_s", "bubble_s", "tp_s", "ep_s", "pp_s", "dp_s", "optimizer_s")
BINS = ((0.0, 0.01), (0.01, 0.05), (0.05, 0.15), (0.15, math.inf))

# Switches whose effect rests on one room, by room: rows of reports/switches.md.
SWITCHES: Mapping[str, tuple[str, ...]] = {
    "host": (
        "cuda_graph_scope",
        "numa_binding",
        "manual_gc",
        "sync_free_stage",
        "torch_compile",
        "cross_entropy_fusion",
    ),
    "contention": (
        "tp_comm_overlap",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "overlap_p2p_comm",
        "overlap_moe_expert_parallel_comm",
        "data_parallel_sharding",
    ),
    "collectives": ("tp", "ep", "cp", "moe_all_to_all_kernel", "moe_token_dispatcher_type", "gpus"),
    "pipeline": ("pipeline_schedule", "vpp", "pp", "global_batch_size"),
    "imbalance": ("moe_router_force_load_balancing", "moe_expert_capacity_factor"),
    "kernels": ("precision", "fp8_recipe", "moe_grouped_gemm", "attention_backend"),
}


@cache
def report(name: str) -> dict[str, str]:
    """The sections of ``reports/<name>.md``. Raises :class:`InputError` where the report is not there."""
    path = REPORTS / f"{name}.md"
    if not path.is_file():
        raise InputError([Problem(f"reports/{name}.md", "", "no such file", "./run reports")])
    return sections(path.read_text(encoding="utf-8"))


def section(name: str, heading: str) -> str:
    """One section of a report. Raises :class:`InputError` with the headings that there are."""
    found = report(name)
    if heading not in found:
        raise InputError([Problem(f"reports/{name}.md", heading, "no such heading", "one of " + "; ".join(found))])
    return found[heading]


def _whole(name: str, heading: str) -> Callable[[], str]:
    return lambda: section(name, heading)


def chosen(name: str, heading: str, keep: Callable[[Sequence[str]], bool], columns: Sequence[int]) -> str:
    """Some rows and columns of the first table of a section; *No measured figure judges this yet.* where none is kept."""
    head, *rows = cells(section(name, heading))
    kept = [row for row in rows if keep(row)]
    if not kept:
        return "*No measured figure judges this yet.*"
    return table([head[i] for i in columns], [[row[i] for i in columns] for row in kept])


def _columns(heading: str, columns: Sequence[int]) -> Callable[[], str]:
    """A table of accuracy.md without its last columns and the words below it: ids of runs that no page has room for."""
    return lambda: chosen("accuracy", heading, bool, columns)


def _goals(prefix: str) -> Callable[[], str]:
    # set, rows, held out, median, goal, met, shipped, roofline
    return lambda: chosen("kernels", "Goals", lambda row: row[0].startswith(prefix), (0, 1, 2, 3, 4, 5, 8, 9))


def _sizes(kind: str) -> Callable[[], str]:
    heading = "MAPE by size in FLOP (held out)"
    return lambda: chosen("kernels", heading, lambda row: row[1] == kind, (0, 2, 3, 4, 5, 6, 7, 8, 9, 10))


def _left_out(kind: str) -> Callable[[], str]:
    return lambda: chosen("kernels", "A GPU left out wholly", lambda row: row[1] == kind, (0, 2, 3, 4, 5, 6, 9))


def _classes(kind: str) -> Callable[[], str]:
    heading = "All shapes"
    return lambda: chosen("kernels", heading, lambda row: row[1] == kind, (0, 2, 4, 5, 9, 12, 13, 16))


def _switches(room: str) -> Callable[[], str]:
    wanted = SWITCHES[room]
    return lambda: chosen("switches", "By recipe field", lambda row: row[0] in wanted, range(6))


def _groups(prefix: str) -> Callable[[], str]:
    heading = "simulate: ranking inside groups"
    return lambda: chosen("accuracy", heading, lambda row: row[0].startswith(prefix), (0, 1, 3, 4, 5))


def _intervals() -> str:
    return chosen("figures", "simulate: 90 % intervals", lambda row: row[0] in ("all", "GPU"), range(7))


def shares(column: str) -> str:
    """Held-out error of simulated rows by the share that one part has of the projected step (``reports/results.csv``)."""
    found: list[tuple[float, float, tuple[str, ...]]] = []
    with (REPORTS / "results.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["predictor"] == "simulate" and row["fit"] == "heldout" and row["error"] and row[column]:
                share = float(row[column]) / float(row["projected_step_seconds"])
                found.append((share, float(row["error"]), (row["family"], row["gpu"], row["framework"])))
    rows = []
    for low, high in BINS:
        errors = [error for share, error, _ in found if low <= share < high]
        families = {cell for share, _, cell in found if low <= share < high}
        name = f"{100 * low:g} to {100 * high:g} %" if high < math.inf else f"above {100 * low:g} %"
        if errors:
            mape = sum(map(abs, errors)) / len(errors)
            signed = [_percent(median(map(abs, errors))), _percent(median(errors), "+")]
            rows.append([name, str(len(errors)), str(len(families)), _percent(mape), *signed])
    return table(["share of the step", "rows", "cells", "MAPE", "median error", "median signed"], rows)


def _percent(value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} %"


def collectives() -> str:
    """Median and worst absolute error of the collective model by fabric and size class."""
    from harness.kernels.collectives_score import score
    from harness.kernels.collectives_table import read
    from harness.report.view_collectives import by_fabric

    made = by_fabric(score(read(ROOT / "measured" / "collectives")))
    return table([column.title for column in made.columns], [list(row) for row in made.rows])


def attention_kernels() -> str:
    """What each attention kernel wants of a call, in the order in which a stack tries them."""
    from projector.mechanisms.attention_kernels import KERNELS

    rows = []
    for preferred, chain in KERNELS.items():
        for kernel in chain:
            way = {None: "", True: "backward", False: "forward"}[kernel.backward]
            rows.append([f"`{preferred}`", f"`{kernel.family}`", way, kernel.wants(), kernel.since, kernel.source])
    return table(["preferred", "runs", "pass", "wants", "since", "source"], rows)


def _tolerance() -> str:
    """What the memory verdict leaves to either side of the limit."""
    return table(["memory managed by", "tolerance"], [[name, _percent(value)] for name, value in TOLERANCE.items()])


#: Every figure by the name of its markers. ``python tools/docs.py show NAME`` prints one.
FIGURES: Mapping[str, Callable[[], str]] = {
    "in-short": _whole("figures", "In short"),
    "throughput": _whole("figures", "Throughput error"),
    "ranking": _whole("figures", "Ranking inside groups, mean over groups"),
    "by-gpu": _whole("figures", "By GPU"),
    "memory": _whole("figures", "Memory"),
    "speed": _whole("figures", "Speed"),
    "intervals": _intervals,
    "expected": _whole("figures", "What a new source should expect, and a known one"),
    "own-runs": _whole("figures", "What runs of one's own add"),
    "assumptions": _columns("simulate: error with and without assumptions of the importer", range(11)),
    "fits-in-memory": _columns("simulate: does it fit in memory?", range(3)),
    "tolerance": _tolerance,
    "attention-kernels": attention_kernels,
    "goals/gemm": _goals("GEMM"),
    "goals/attention": _goals("attention"),
    "goals/grouped": _goals("grouped"),
    "goals/streams": _goals("streams"),
    "sizes/gemm": _sizes("gemm"),
    "sizes/attention": _sizes("attention"),
    "sizes/grouped": _sizes("grouped"),
    "modes": _columns("simulate and benchmark side by side (held out)", range(7)),
    "left-out/gemm": _left_out("gemm"),
    "left-out/attention": _left_out("attention"),
    "left-out/grouped": _left_out("grouped"),
    "left-out/stream": _left_out("stream"),
    "classes/stream": _classes("stream"),
    "without-a-table": _whole("kernels", "Share of each step in kernels without a measured table"),
    "groups/pipeline": _groups("pp-schedule"),
    "groups/host": _groups("dsv2lite"),
    "collectives": collectives,
    "plans/hours": _whole("plans", "Hours"),
    "plans/failures": _whole("plans", "Failures"),
    "plans/power": _whole("plans", "Power"),
    **{f"switches/{room}": _switches(room) for room in SWITCHES},
    **{f"shares/{part}": partial(shares, part) for part in PARTS},
}
