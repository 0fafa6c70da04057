"""What Megatron-LM refuses before it trains, of what the loaders read.

Rules of megatron/training/arguments.py ``validate_args`` and megatron/core/transformer/transformer_config.py
``__post_init__`` that hold in every release which has the arguments; sizes that do not divide are in
:mod:`projector.workload.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_Broken = tuple[str, object, str]


def broken(args: Mapping[str, object]) -> list[_Broken]:
    """``(argument, value, expected)`` of every rule that a whole command line breaks."""
    return [*_overlaps(args), *_recomputed(args), *_stages(args), *_fsdp(args), *_lengths(args)]


def _size(args: Mapping[str, object], name: str) -> int:
    value = args.get(name)
    return value if type(value) is int else 1


def _overlaps(args: Mapping[str, object]) -> Iterator[_Broken]:
    if args.get("overlap_param_gather"):
        gathers = ("use_distributed_optimizer", "use_megatron_fsdp", "use_custom_fsdp")
        if not any(args.get(name) for name in gathers) and args.get("optimizer") != "dist_muon":
            yield "overlap_param_gather", True, "--use-distributed-optimizer: without it nothing is gathered"
        if not args.get("overlap_grad_reduce"):
            yield "overlap_param_gather", True, "--overlap-grad-reduce with it"
    if args.get("tp_comm_overlap") and not args.get("sequence_parallel"):
        yield "tp_comm_overlap", True, "--sequence-parallel with it"


def _recomputed(args: Mapping[str, object]) -> Iterator[_Broken]:
    granularity = args.get("recompute_granularity")
    method = args.get("recompute_method", args.get("activations_checkpoint_method"))
    if granularity == "selective" and method is not None:
        yield "recompute_method", method, "nothing: a method belongs to --recompute-granularity full"
    placed = ("recompute_layer_ids", "enable_recompute_layers_per_pp_rank", "deepspeed")
    if granularity == "full" and method is None and not any(args.get(name) for name in placed):
        yield "recompute_granularity", "full, and no recompute_method", "--recompute-method uniform or block"
    if args.get("distribute_saved_activations"):
        if _size(args, "tensor_model_parallel_size") < 2:
            yield "distribute_saved_activations", True, "tensor_model_parallel_size above 1"
        if granularity != "full":
            yield "distribute_saved_activations", True, "--recompute-granularity full"
        if args.get("sequence_parallel"):
            yield "distribute_saved_activations", True, "no --sequence-parallel, which cuts them already"


def _stages(args: Mapping[str, object]) -> Iterator[_Broken]:
    ways = (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
    )
    stated = [name for name in ways if args.get(name) is not None]
    if len(stated) > 1:
        yield stated[1], args[stated[1]], f"one way of giving stages: {stated[0]} is given, too"
    pp, layers = _size(args, "pipeline_model_parallel_size"), args.get("num_layers")
    each = args.get("num_layers_per_virtual_pipeline_stage")
    if type(each) is not int or type(layers) is not int:
        return
    if pp < 2:
        yield "num_layers_per_virtual_pipeline_stage", each, "pipeline_model_parallel_size above 1"
    elif pp == 2 and args.get("no_overlap_p2p_communication"):
        yield "num_layers_per_virtual_pipeline_stage", each, "pipeline_model_parallel_size above 2, or overlapped p2p"
    counted = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    a_stage, left = divmod(layers + sum(bool(args.get(name)) for name in counted), max(1, pp))
    if each < 1 or (not left and a_stage % each):
        yield "num_layers_per_virtual_pipeline_stage", each, f"a divisor of the {a_stage} layers of a stage"


def _fsdp(args: Mapping[str, object]) -> Iterator[_Broken]:
    if not args.get("use_torch_fsdp2"):
        return
    for name in ("pipeline_model_parallel_size", "expert_model_parallel_size"):
        if _size(args, name) > 1:
            yield name, args[name], "1 with --use-torch-fsdp2"
    for name in ("use_distributed_optimizer", "fp16"):
        if args.get(name):
            yield name, True, "nothing with --use-torch-fsdp2"


def _lengths(args: Mapping[str, object]) -> Iterator[_Broken]:
    sequence, positions = args.get("seq_length"), args.get("max_position_embeddings")
    if type(sequence) is int and type(positions) is int and positions < sequence:
        yield "max_position_embeddings", positions, f"at least seq_length = {sequence}"
