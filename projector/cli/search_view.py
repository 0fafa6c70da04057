"""What ``projector search`` shows: the best, what cannot be told from it, why the next loses, the front, what binds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from projector.cli.inputs import Case
from projector.io.table import Column, Line, Table
from projector.search.found import Best, Found
from projector.search.space import Option
from projector.workload.schema import recipe_to_mapping

__all__ = ["as_document", "as_page", "words"]

_GB = 1e9
_MOVES = 4  # parts of the step in the sentence on the next layout
_BEST = (
    Column("", numeric=True),
    Column("configuration", numeric=False),
    Column("tokens/s/GPU"),
    Column("against best"),
    Column("step (s)", minor=1),
    Column("GB", minor=2),
    Column("told apart", numeric=False, minor=3),
)


def words(fields: Option) -> str:
    """A configuration in a few words: sizes above 1, then what differs from nothing."""
    sizes = [f"{name}{fields[name]}" for name in ("tp", "cp", "pp", "vpp", "ep", "etp") if fields.get(name, 1) > 1]
    if fields.get("tp2", 1) > 1:
        sizes.insert(0, f"grid of {fields['tp']}x{fields['tp2']},")
    parts = [" ".join(sizes) or "data parallel", f"mbs {fields['micro_batch_size']}"]
    if fields.get("pp", 1) > 1:
        parts.append(str(fields["pipeline_schedule"]))
    if fields.get("fast_domain"):
        parts.append(f"domain {fields['fast_domain']}")
    if fields.get("pipeline_model_parallel_layout"):
        parts.append("laid out")
    again = fields.get("recompute_granularity")
    if again and again != "none":
        detail = fields.get("recompute_modules") or ()
        number = fields.get("recompute_num_layers") if fields.get("recompute_method") == "block" else None
        parts.append(
            f"{again} recompute" + (f" of {', '.join(detail)}" if detail else f" of {number}" if number else "")
        )
    if fields.get("optimizer_cpu_offload"):
        parts.append("optimizer on the host")
    if fields.get("offload_modules"):
        parts.append("modules on the host")
    if fields.get("cpu_offloading_num_layers"):
        parts.append(f"{fields['cpu_offloading_num_layers']} layers on the host")
    if fields.get("precision", "bf16") != "bf16":
        parts.append(str(fields["precision"]))
    if fields.get("tp", 1) > 1 and fields.get("sequence_parallel") is False:
        parts.append("no sequence parallelism")
    if fields.get("moe_token_dispatcher_type"):
        backend = fields.get("moe_flex_dispatcher_backend")
        parts.append(str(backend or fields["moe_token_dispatcher_type"]))
    switches = {
        "tp_comm_overlap": "tp overlap",
        "overlap_moe_expert_parallel_comm": "ep overlap",
        "overlap_grad_reduce": "reduce overlap",
        "overlap_param_gather": "gather overlap",
    }
    parts += [text for name, text in switches.items() if fields.get(name)]
    if fields.get("data_parallel_sharding") == "no_shard":
        parts.append("optimizer not sharded")
    return ", ".join(parts)


def as_page(case: Case, found: Found, top: int) -> Iterator[Line | Table]:
    yield Line(f"{case.workload.model.name} on {case.cluster.name}, {case.workload.framework}", "title")
    yield Line(_counted(found))
    yield Line(_exactness(found))
    if not found.best:
        words = "No configuration fits; the rules and the memory refuse all of them. --vary offload lends the host's memory."
        yield Line(words, "bad")
        return
    yield _best(found, top)
    yield Line("")
    yield Line(_told_apart(found))
    if found.next is not None:
        yield Line(_why(found))
    yield _front(found, case)
    yield _binding(found)


def _counted(found: Found) -> str:
    c = found.counts
    return (
        f"{c.points:,} combinations, {c.enumerated:,} valid: {c.out_of_memory:,} out of memory, {c.bounded:,} bounded away, "
        f"{c.unsupported:,} not modelled, {c.projected:,} projected in {found.seconds:.1f} s"
    )


def _exactness(found: Found) -> str:
    if found.gap is None:
        return "Stopped before everything was bounded: how far the best can be off is not known"
    if found.gap > 0:
        return f"Stopped: nothing that was left out is more than {100 * found.gap:.1f} % better than the best"
    return "Exact: nothing that was left out is better"


def _told_apart(found: Found) -> str:
    if found.alike == 1:
        return "The best is told apart from all others."
    least = "at least " if found.alike == len(found.best) else ""
    text = f"{least}{found.alike} cannot be told apart: their steps are within the interval of a projected ratio."
    return text[0].upper() + text[1:]


def _best(found: Found, top: int) -> Table:
    first = found.best[0].projection
    rows = tuple(
        (
            str(i + 1),
            (f"{each.workload.gpus} GPUs, " if _several(found) else "") + words(each.fields),
            f"{each.projection.tgs:.1f}",
            f"{100 * (each.projection.tgs / first.tgs - 1):+.1f} %",
            f"{each.projection.step_seconds:.3f}",
            f"{each.projection.memory.allocated / _GB:.1f}",
            "no" if each.alike and i else "" if not i else "yes",
        )
        for i, each in enumerate(found.best[:top])
    )
    return Table(title="Best configurations", columns=_BEST, rows=rows)


def _several(found: Found) -> bool:
    return len({each.workload.gpus for each in found.best}) > 1


def _why(found: Found) -> str:
    assert found.next is not None
    moves = [(name, value) for name, value in found.moved.items() if abs(value) > 0][:_MOVES]
    told = ", ".join(f"{name.removesuffix('_s')} {value:+.3f} s" for name, value in moves)
    return f"The next layout ({words(found.next.fields)}) takes, for the tokens of one step of the best: {told}."


def _front(found: Found, case: Case) -> Table:
    columns = (Column("configuration", numeric=False), Column("step (s)"), Column("GB"))
    rows = tuple((words(hit.fields), f"{hit.seconds:.3f}", f"{hit.memory / _GB:.1f}") for hit in found.front)
    usable = case.cluster.gpu.usable_memory_bytes / _GB
    note = f"of the {found.counts.projected:,} projected; {usable:.1f} GB usable"
    return Table(title="Time against memory: no other is better in both", columns=columns, rows=rows, note=note)


def _binding(found: Found) -> Table:
    columns = (Column("a tenth more of", numeric=False), Column("gain"), Column("with", numeric=False, minor=1))
    rows = tuple(
        (each.resource, f"{100 * each.gain:+.2f} %", ", ".join(f"{name} {value}" for name, value in each.changes))
        for each in found.binding
    )
    return Table(title="What binds the best", columns=columns, rows=rows, note="host: by its share of the step")


def as_document(case: Case, found: Found, objective: str) -> dict[str, Any]:
    """The whole of it as JSON values."""
    c = found.counts
    return {
        "schema_version": 1,
        "command": "search",
        "model": case.workload.model.name,
        "cluster": case.cluster.name,
        "framework": case.workload.framework,
        "objective": objective,
        "space": {name: [_plain(value) for value in values] for name, values in found.space.axes().items()},
        "counts": {
            "combinations": c.points,
            "valid": c.enumerated,
            "out_of_memory": c.out_of_memory,
            "unsupported": c.unsupported,
            "bounded_away": c.bounded,
            "projected": c.projected,
        },
        "refused": [
            {"field": key, "expected": text, "combinations": n} for (key, text), n in found.refused.items() if n
        ],
        "unsupported": dict(found.reasons),
        "gap": found.gap,
        "seconds": found.seconds,
        "alike": found.alike,
        "best": [_one(each) for each in found.best],
        "next_layout": {"fields": _fields(found.next.fields), "moved": dict(found.moved)} if found.next else None,
        "front": [
            {"fields": _fields(hit.fields), "step_seconds": hit.seconds, "allocated": hit.memory} for hit in found.front
        ],
        "binding": [
            {"resource": each.resource, "gain": each.gain, "changes": dict(each.changes)} for each in found.binding
        ],
    }


def _one(each: Best) -> dict[str, Any]:
    made = each.projection
    return {
        "fields": _fields(each.fields),
        "recipe": recipe_to_mapping(each.workload.recipe),
        "gpus": each.workload.gpus,
        "objective": each.value,
        "step_seconds": made.step_seconds,
        "tgs": made.tgs,
        "mfu": made.mfu,
        "breakdown": dict(made.breakdown),
        "memory": {"allocated": made.memory.allocated, "status": made.memory.status},
        "told_apart": not each.alike,
    }


def _fields(fields: Option) -> dict[str, Any]:
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
