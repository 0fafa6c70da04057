"""The router of a mixture-of-experts layer: scores, top-k, load-balancing statistics.

Kernels counted from NVIDIA/Megatron-LM@d98e8a64dd core/transformer/moe/{router,moe_utils}.py. The router is replicated
over the tensor-parallel group and sees the sequence shard.
"""

from __future__ import annotations

from projector.layers.local import LayerView
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter
from projector.size import most
from projector.workload.model import MoE

ROUTER = frozenset({"moe", "moe_router"})
# (fused, unfused)
_TOPK, _GROUPED, _BALANCE, _BIAS = parameter(
    ((1, 11), (1, 19), (3, 15), (2, 2)),
    unit="launches",
    kind="derived",
    source="scores and top-k; the same limited to groups; balancing loss; counts for the expert bias",
)
_UNFUSED_PASSES = parameter(
    10,
    kind="assumed",
    source="fp32 round trips over the [tokens, experts] matrix when every function is a kernel of its own",
)


def router(moe: MoE, view: LayerView) -> Module:
    """Returns router GEMM and top-k. ``moe_router_dtype`` fp32: bf16 operands, fp32 output; fp32 operands backward."""
    rows, experts, h = view.shard_tokens, moe.scored, view.hidden
    high = view.recipe.moe_router_dtype in ("fp32", "fp64")
    # Transformer Engine runs a product of fp32 operands in TF32 (common/gemm/cublaslt_gemm.cu)
    grad = "tf32" if high else view.dtype
    out = 4.0 if high else view.act
    # the gradient of the balancing loss for the scores, added to that of the routing weights
    matrix, launches = 4.0 * experts * rows, most(3, _launches(_BALANCE, view) // 2)
    balanced = Stream("router.balance.bwd", "router", 2 * matrix, matrix, launches=launches)
    backward: list[Operator] = [balanced, _scores("router.topk.bwd", moe, view, backward=True)]
    backward.append(Gemm("router.dgrad", rows, h, experts, dtype=grad, layout="NN", out_bytes=out))
    if high:
        # gradient of the input cast down (4+2 bytes), saved input and weight cast up (2+4), weight gradient down
        backward.append(Stream("router.grad_cast", "cast", 6.0 * h * rows, 6.0 * h * rows, launches=4))
    # the norm's output feeds the router and the experts: their gradients are added
    tensor = view.act * h * rows
    backward.append(Stream("router.grad_add", "elementwise", 2 * tensor, tensor))
    weight = (Gemm("router.wgrad", experts, h, rows, dtype=grad, layout="NT", out_bytes=out),)
    # the softmax for the probabilities and another for the balancing loss (fp32), two bool maps, the held probabilities,
    # indices; and, unless frozen, the input
    probabilities = 4.0 if view.recipe.moe_router_dtype == "fp32" else 2.0
    choice = view.shard_tokens * (moe.scored * (4.0 + 4 + 1 + 1 + probabilities) + 16.0 * moe.moe_router_topk)
    scores = Saved("router.scores", choice)
    into = Saved("router.in", view.hidden_bytes, storage="pre_mlp_norm.out", until="weight_gradient", input=True)
    return Module(
        "router",
        forward=(
            Gemm("router", rows, experts, h, dtype=view.dtype, out_bytes=out),
            _scores("router.topk", moe, view),
            *_balance(moe, view),
        ),
        backward_input=tuple(backward),
        backward_weight=weight if view.trainable else (),
        weights=(
            Weight("router", experts, h, role="router"),
            *((Weight("router.bias", experts),) if view.model.add_bias_linear else ()),
        ),
        saves=(into, scores) if view.trainable else (scores,),
        tags=ROUTER,
    )


def _launches(fused_unfused: tuple[int, int], view: LayerView) -> int:
    """Returns the launches of a router that is fused (Megatron's kernels, a sync-free stage, a compiler) or not."""
    fused = view.recipe.moe_router_fusion or (view.recipe.sync_free_stage or 0) >= 1 or view.compiled
    return fused_unfused[0 if fused else 1]


def _scores(name: str, moe: MoE, view: LayerView, backward: bool = False) -> Stream:
    launches = _launches(_GROUPED if moe.moe_router_num_groups else _TOPK, view)
    passes = 1 if launches == 1 else _UNFUSED_PASSES
    matrix = 4.0 * moe.scored * view.shard_tokens
    if backward:
        launches = most(2, launches // 2)
    return Stream(name, "router", passes * matrix, passes * matrix, launches=launches)


def _balance(moe: MoE, view: LayerView) -> tuple[Operator, ...]:
    """Returns load-balancing statistics: scores again, counts (summed over ranks of one sequence), their product."""
    launches = _launches(_BALANCE, view) + (_launches(_BIAS, view) if moe.moe_router_enable_expert_bias else 0)
    matrix = 4.0 * moe.scored * view.shard_tokens
    ops: list[Operator] = [Stream("router.balance", "router", 2 * matrix, matrix, launches=launches)]
    group = "tp" if view.sp else "cp" if view.recipe.cp > 1 else ""
    if group:
        ops.append(Collective("router.counts_ar", "all_reduce", group, 4.0 * moe.scored))
    return tuple(ops)
