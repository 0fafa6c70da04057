"""Everything that is said of one trace: read, cut to a step, accounted for, put beside a projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.trace.account import Account, account
from harness.trace.compare import Beside, beside, share_of
from harness.trace.events import Trace
from harness.trace.host import as_kernels
from harness.trace.idle import idle
from harness.trace.names import UNKNOWN
from harness.trace.owners import BACKWARD, WEIGHT, Owner, owners
from harness.trace.projected import Planned, Share, planned
from harness.trace.ranks import Exchange, exchanges
from harness.trace.reader import read
from harness.trace.shapes import Shaped, shaped
from harness.trace.steps import Part, chosen, steps
from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.hardware.types import Cluster
from projector.workload.workload import Workload


@dataclass(frozen=True, eq=False)
class Study:
    """``rows``: by kind; ``gaps``: idle seconds by reason; ``unknown``: seconds by name of kernels without a kind;
    ``notes``: what a reader must know of the figures."""

    trace: Trace
    part: Part
    account: Account
    rows: Sequence[Beside]
    gaps: Mapping[str, float]
    owners: Sequence[Owner]
    exchanges: Sequence[Exchange]
    shapes: Sequence[Shaped]
    unknown: Mapping[str, float]
    notes: tuple[str, ...]
    planned: Planned | None = None
    share: Share | None = None

    @property
    def unknown_share(self) -> float:
        """Of the busy seconds."""
        return sum(row.busy for row in self.rows if row.kind == UNKNOWN) / max(self.account.busy, 1e-30)


def study(paths: Sequence[Path], step: int | None = None, case: tuple[Workload, Cluster] | None = None) -> Study:
    """The first of ``paths``, the others being other ranks of the same step. Raises :class:`InputError`."""
    traces = [as_kernels(read(path)) for path in paths]
    _same_run(traces)
    parts = [_chosen(trace, step) for trace in traces]
    trace, part = traces[0], parts[0]
    who = owners(trace, part.kernels)
    found = account(part)
    notes = list(_notes(trace, part, who, len(traces)))
    plan = share = None
    if case is not None and _trains(part, who):
        notes += _other_device(trace, case[1])
        plan = planned(*case, layers_only=not part.whole)
        share = share_of(part, plan)
        notes += _sharing(part, share, plan)
    elif case is not None:
        notes.append(
            "no backward pass in it: a forward alone, or inference; nothing of a training step to compare with"
        )
    return Study(
        trace=trace,
        part=part,
        account=found,
        rows=beside(found, plan, share or Share()),
        gaps=idle(trace, part, found),
        owners=who,
        exchanges=exchanges([each.kernels for each in parts]),
        shapes=_modelled(shaped(trace.ops, part.kernels, who), plan),
        unknown=_unknown(part),
        notes=tuple(notes),
        planned=plan,
        share=share,
    )


def _chosen(trace: Trace, step: int | None) -> Part:
    try:
        return chosen(trace, step)
    except KeyError:
        there = ", ".join(str(each.number) for each in steps(trace)) or "a trace that marks its steps"
        raise InputError([Problem(trace.path, "--step", step, there)]) from None


def _same_run(traces: Sequence[Trace]) -> None:
    first, problems = traces[0], []
    for other in traces[1:]:
        for what, own, found in (("world_size", first.world, other.world), ("GPU", first.gpu, other.gpu)):
            if own != found:
                problems.append(Problem(other.path, what, found, f"{own}, as in {first.path}"))
    ranks = [trace.rank for trace in traces]
    problems += [
        Problem(trace.path, "rank", trace.rank, "one file a rank")
        for at, trace in enumerate(traces)
        if trace.rank is not None and trace.rank in ranks[:at]
    ]
    if problems:
        raise InputError(problems)


def _trains(part: Part, who: Sequence[Owner]) -> bool:
    backward = any(kind.way == "backward" for kind in part.kernels.kinds())
    return part.whole or backward or any(owner.phase in (BACKWARD, WEIGHT) for owner in who)


def _notes(trace: Trace, part: Part, who: Sequence[Owner], ranks: int) -> list[str]:
    notes = []
    if trace.cut:
        notes.append("the file ends in the middle: what came before counts, the last marked step does not")
    lost = sum(owner.phase == "launch not in the trace" for owner in who)
    if lost > 0.01 * len(who):
        notes.append(
            f"{100 * lost / len(who):.0f} % of the kernels have no launch in the file: phase and cause unknown"
        )
    graphs = _graphed(part)
    if graphs > 0.5:
        notes.append(
            f"{100 * graphs:.0f} % of the kernels come from graph launches: no operator or shape is known of them"
        )
    if ranks == 1 and part.kernels.kinds() and any(kind.communicates for kind in part.kernels.kinds()):
        notes.append(
            "one rank: waiting for others is bounded by the fastest of like exchanges; traces of more ranks tell"
        )
    return notes


def _other_device(trace: Trace, cluster: Cluster) -> list[str]:
    """A comparison of two devices says something else than one of a device with itself."""
    if not len(trace.kernels) or trace.kernels.host:
        return (
            [f"the trace is of the host, the projection of {cluster.gpu.name}"] if cluster.gpu.vendor != "cpu" else []
        )
    found = catalogue.find_gpu(trace.gpu) if trace.gpu else None
    if found == cluster.gpu.name:
        return []
    return [f"the trace is of {trace.gpu or 'a device that it does not name'}, the projection of {cluster.gpu.name}"]


def _graphed(part: Part) -> float:
    """Share of kernels that share a launch with others."""
    correlations = [each for each in part.kernels.correlation.tolist() if each >= 0]
    return 1.0 - len(set(correlations)) / len(correlations) if correlations else 0.0


def _sharing(part: Part, share: Share, plan: Planned) -> list[str]:
    if part.whole:
        return []
    if not share.forward and not share.backward:
        return ["no attention kernel that tells layer passes: the projection is not scaled to this part and stays out"]
    forward, backward = (
        round(each * whole) for each, whole in zip((share.forward, share.backward), plan.attention, strict=True)
    )
    return [
        f"it holds {forward} of {plan.attention[0]:.0f} forward and {backward} of {plan.attention[1]:.0f} backward layer "
        "passes of a step: projected figures are of as many layers"
    ]


def _modelled(rows: tuple[Shaped, ...], plan: Planned | None) -> tuple[Shaped, ...]:
    if plan is None or not rows:
        return rows
    seconds = plan.model.times([row.op for row in rows]).seconds.tolist()
    return tuple(replace(row, model=each) for row, each in zip(rows, seconds, strict=True))


def _unknown(part: Part) -> dict[str, float]:
    kinds = part.kernels.kinds()
    seconds: dict[str, float] = {}
    for name, length in zip(part.kernels.name.tolist(), (part.kernels.end - part.kernels.start).tolist(), strict=True):
        if kinds[name].kind == UNKNOWN:
            text = part.kernels.names[name]
            seconds[text] = seconds.get(text, 0.0) + length
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))
