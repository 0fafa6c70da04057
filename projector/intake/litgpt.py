"""LitGPT's configurations of pre-training, FSDP of a compiled model: what ``dialects/litgpt.yaml`` cannot say."""

from __future__ import annotations

from collections.abc import Mapping

from projector.errors import Problem, Unsupported
from projector.intake.dialect import Settings, dialect
from projector.intake.loaded import Loaded
from projector.intake.named_models import published
from projector.workload.model import Model
from projector.workload.optimizers import named


def load(content: Mapping[str, object], where: str, *, model: Model | None) -> Loaded:
    """The workload of a configuration. Raises :class:`InputError` with everything that does not fit, :class:`Unsupported`
    for fine-tuning, whose samples have lengths that nothing states."""
    job = Settings(dialect("litgpt"), content, where)
    args, fields = job.args, job.fields
    kind = str(args.raw("data.class_path") or args.raw("data") or "TinyLlama").rpartition(".")[2]
    if kind not in job.dialect.tables["whole"]:
        raise Unsupported(f"{where}: a LitGPT configuration with data={kind}: samples of lengths that nothing states")
    devices, nodes = (args.integer(name) if args.raw(name) != "auto" else None for name in ("devices", "num_nodes"))
    gpus = None if devices is None else devices * (nodes or 1)
    name = args.text("model_name")
    problems: list[Problem] = []
    model = model or published(name, where, "model_name", problems)
    if model is not None and args.flag("tie_embeddings") and model.untie_embeddings_and_output_weights:
        expected = "a model whose output layer is its embedding: --model FILE"
        problems.append(Problem(where, "train.tie_embeddings", True, expected))
    called = args.raw("optimizer.class_path") or args.raw("optimizer")
    fields |= {
        "seq_length": fields["seq_length"] or (model.max_position_embeddings if model else None),
        "data_parallel_sharding": "optim_grads_params",  # HYBRID_SHARD: inside a node
        "data_parallel_shard_size": devices,
        "optimizer": named(str(called).rpartition(".")[2]),
        "recompute_granularity": "none",
        "torch_compile": True,
    }
    counted = (f"gpus={gpus} (devices × num_nodes)",) if gpus else ()
    assumed = (*counted, "framework=pytorch", f"model={model.name if model else name} ({name})")
    return job.loaded(model, problems=problems, gpus=gpus, framework="pytorch", assumed=assumed)
