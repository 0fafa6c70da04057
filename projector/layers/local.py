"""The view that a layer has of the rank it runs on, derived once from a resolved workload."""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.frameworks.types import Resolved
from projector.mechanisms import Execution
from projector.memo import cached_on
from projector.operators.rank import Rank
from projector.workload.recipe import Recipe

# bytes of one all-gathered element and its scales: Transformer Engine gathers quantised shards of linear inputs and
# output gradients (transformer_engine/pytorch/distributed.py, gather_along_first_dim with a quantizer)
_GATHERED_BYTES = {"fp8": 1.0, "mxfp8": 1.0 + 1 / 32, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16}


@dataclass(frozen=True, kw_only=True)
class LayerView(Rank):
    """The sizes, types and strategies that a layer sees on its rank."""

    execution: Execution

    @property
    def cast_weight_bytes(self) -> float:
        """Returns the bytes of a weight that ``torch.autocast`` casts before each product; 0: it casts none. Weights that
        are gathered are cast before that."""
        lora, sharing = self.recipe.lora, self.execution.data_parallel
        if "weights" in sharing.divided or self.quantised:
            return 0.0
        wide = lora.weight_bytes if lora else sharing.parameter_bytes * sharing.autocast
        return wide if wide > self.act else 0.0


def _precision(recipe: Recipe) -> tuple[str, str, str]:
    """Returns (GEMM operand type, GEMM scaling, cast recipe) of linear layers; ("", "", "") when not quantised."""
    if not recipe.quantised:
        return "", "", ""
    if recipe.precision in ("mxfp4", "nvfp4"):
        return recipe.precision, "", recipe.precision
    if recipe.precision == "mxfp8" or recipe.fp8_recipe == "mxfp8":
        return "mxfp8", "mxfp8", "mxfp8"
    cast_recipe = recipe.fp8_recipe or "delayed"
    return "fp8", cast_recipe if cast_recipe in ("rowwise", "blockwise") else "tensorwise", cast_recipe


@cached_on(0)
def local(resolved: Resolved) -> LayerView:
    """Returns the view of one rank of ``resolved`` (tokens and widths rounded up where a split leaves a remainder)."""
    work, recipe, model = resolved.workload, resolved.workload.recipe, resolved.workload.model
    batch = recipe.micro_batch_size * recipe.sequences
    tokens = -(-recipe.seq_length * batch // recipe.token_ranks)
    grid = recipe.tp2 > 1
    sp = bool(recipe.sequence_parallel) and recipe.tp > 1 and not grid
    dtype = recipe.precision if recipe.precision in ("fp16", "fp32") else "bf16"
    act = 4.0 if dtype == "fp32" else 2.0
    linear_dtype, scaling, cast_recipe = _precision(recipe)
    narrow = resolved.execution.tensor_parallel.quantised_gather == "all"
    narrow = narrow or cast_recipe in ("tensorwise", "current", "delayed")
    return LayerView(
        model=model,
        recipe=recipe,
        execution=resolved.execution,
        batch=batch,
        tokens=tokens,
        shard_tokens=-(-tokens // recipe.tp) if sp or grid else tokens,
        sp=sp,
        hidden=model.hidden_size,
        heads=-(-model.num_attention_heads // recipe.tp),
        kv_heads=-(-model.num_query_groups // recipe.tp),
        vocab=work.padded_vocab_size // recipe.tp,
        dtype=dtype,
        act=act,
        linear_dtype=linear_dtype or dtype,
        scaling=scaling,
        cast_recipe=cast_recipe,
        gathered=_GATHERED_BYTES.get(linear_dtype, act) if narrow else act,
        compiled=resolved.execution.fusion.elementwise,
        node_ranks=resolved.node_ranks,
    )
