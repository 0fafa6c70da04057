"""The facts of a run that reports need beside its rows."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contracts.results import RunFacts
from harness.contracts.runs import MeasuredRun
from projector.io.table import values
from projector.workload.structure import to_mapping


def facts_of(run: MeasuredRun) -> RunFacts:
    """Returns the facts of one run; a GPU outside the catalogue has no architecture and no vendor."""
    from projector.frameworks.flops import flops_per_token
    from projector.hardware import catalogue

    gpu = catalogue.gpu(run.gpu) if catalogue.knows_gpu(run.gpu) else None
    m = run.measured
    recipe = to_mapping(run.recipe) if run.recipe else {}
    return RunFacts(
        **values(run, "run_id=id source=source.title source_kind=source.kind framework_version=stack.version assumed"),
        **values(m, "memory_kind rel_std"),
        arch=gpu.arch if gpu else "",
        vendor=gpu.vendor if gpu else "",
        measured_status=m.status if (m.status != "ok" or m.tgs or m.peak_memory_gib) else "",
        complete=run.model is not None and run.recipe is not None,
        differs=_configuration(run, recipe),
        switches=("version", *(key for key in run.switches if key not in recipe)),
        flops_per_token=flops_per_token(run.workload, "megatron-2026-05") if run.model and run.recipe else None,
    )


def _configuration(run: MeasuredRun, recipe: Mapping[str, object]) -> dict[str, str]:
    """Returns as text all that may distinguish a run from the others of its group."""
    stated: dict[str, object] = {
        "gpu": run.gpu,
        "gpus": run.gpus,
        "model": run.model_name or (run.model.name if run.model else ""),
        "framework": run.stack.framework,
        "version": run.stack.version,
        **run.switches,
    }
    if run.model is not None:
        stated["num_layers"] = run.model.num_layers
    return {key: str(value) for key, value in {**stated, **recipe}.items()}
