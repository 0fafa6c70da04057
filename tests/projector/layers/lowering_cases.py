"""Models, recipes and sums shared by the tests of the lowering."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from projector.frameworks.types import Resolved
from projector.mechanisms import Execution
from projector.operators.module import Block
from projector.operators.types import Attention, Collective, Gemm, GroupedGemm, HostWork, Operator, Stream
from projector.workload import zoo
from projector.workload.model import Model, decoder
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

DENSE, EXPERTS = decoder(False), decoder(True)

LLAMA_70B, DEEPSEEK_V3 = zoo.load("llama3_70b"), zoo.load("deepseek_v3")

STATED: dict[str, Any] = {
    "micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096, "fp8_recipe": "tensorwise",
    "fp8_param_gather": False, "fp8_dot_product_attention": False, "sequence_parallel": True, "cp_comm_type": "p2p",
    "tp_comm_overlap": False, "data_parallel_sharding": "optim", "gradient_accumulation_fusion": True,
    "recompute_granularity": "none", "recompute_modules": (), "moe_token_dispatcher_type": "alltoall",
    "moe_flex_dispatcher_backend": "deepep", "moe_grouped_gemm": "multi_stream", "moe_permute_fusion": True,
    "moe_router_fusion": True, "moe_router_dtype": "fp32", "moe_shared_expert_overlap": False,
    "overlap_moe_expert_parallel_comm": False, "sync_free_stage": 0, "apply_rope_fusion": True,
    "bias_activation_fusion": True, "cross_entropy_fusion": "unfused", "attention_backend": "auto",
    "cuda_graph_scope": (), "torch_compile": False, "make_vocab_size_divisible_by": 128,
    "check_for_nan_in_loss_and_grad": True,
}  # fmt: skip


def resolved(model: Model, gpus: int = 512, execution: Execution | None = None, **recipe: Any) -> Resolved:
    """A workload with every field that the lowering reads stated by hand."""
    stated = STATED | recipe
    if stated.get("tp", 1) == 1:
        stated["sequence_parallel"] = False
    how = Recipe(**stated)
    workload = Workload(model=model, recipe=how, gpus=gpus)
    return Resolved(workload=workload, execution=(execution or Execution()).configured_by(how))


def with_execution(case: Resolved, **change: Any) -> Resolved:
    return replace(case, execution=case.execution.evolve(**change).configured_by(case.workload.recipe))


def flops(ops: Iterable[Operator], prefix: str = "") -> float:
    """FLOP of the matrix products whose name starts with ``prefix``."""
    return sum(op.flops for op in ops if isinstance(op, Gemm | GroupedGemm) and op.name.startswith(prefix))


def attention_flops(ops: Iterable[Operator]) -> float:
    return sum(op.flops for op in ops if isinstance(op, Attention))


def stream_bytes(ops: Iterable[Operator]) -> float:
    return sum(op.bytes for op in ops if isinstance(op, Stream))


def collectives(ops: Iterable[Operator], kind: str = "", group: str = "") -> list[Collective]:
    return [op for op in ops if isinstance(op, Collective) and kind in ("", op.kind) and group in ("", op.group)]


def launches(ops: Iterable[Operator]) -> int:
    """Kernels the host issues, collectives not counted."""
    return sum(op.launches for op in ops if not isinstance(op, Collective | HostWork))


def phases(block: Block) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
    return block.forward, block.backward_input, block.backward_weight


MIXTRAL = replace(
    DEEPSEEK_V3,
    name="mixtral",
    num_layers=2,
    mla=None,
    num_query_groups=8,
    mtp_num_layers=0,
    moe=replace(
        DEEPSEEK_V3.moe,
        num_experts=8,
        moe_router_topk=2,
        moe_layer_freq=(1, 1),
        moe_shared_expert_intermediate_size=0,
        moe_router_num_groups=None,
        moe_router_group_topk=None,
        moe_router_enable_expert_bias=False,
    ),
)


def named(ops, name):
    (found,) = [op for op in ops if op.name == name]
    return found


def names(ops):
    return {op.name for op in ops}


def syncs(ops):
    return sum(isinstance(op, HostWork) and op.sync for op in ops)
