"""Deals with what the timed layers leave out of a run: it is refused before anything is timed, or put back as the
difference between two priced runs, the one that is projected and the one that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from projector.benchmark.conditions import measured_phase
from projector.benchmark.shrink import OFF, WIDE
from projector.benchmark.timings import Asked, Made, PartWanted
from projector.collectives.model import Pricing
from projector.collectives.placement import groups
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.frameworks.types import Resolved
from projector.hardware import efficiency
from projector.hardware.types import Cluster
from projector.kernels import recorded
from projector.kernels.protocol import KernelModel
from projector.kernels.simulate import Simulated
from projector.layers import lower
from projector.operators.types import Collective, HostWork, Operator
from projector.step.stages import StageBlock
from projector.step.timing import Clock, Phase, join
from projector.workload.workload import Workload

#: Fields of a model, of its experts and of its latent attention that the timed layers have, or that kinds of layers and
#: :data:`OFF` answer for. What is not among them and set is refused: a field that is added later, too.
_MADE = frozenset(
    [
        *("name", "family", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size"),
        *("num_query_groups", "kv_channels", "gated_linear_unit", "normalization", "position_embedding_type"),
        *("max_position_embeddings", "qk_layernorm", "add_bias_linear", "add_qkv_bias"),
        *("untie_embeddings_and_output_weights", "window_size", "window_attn_skip_freq", "mla", "moe"),
        *("mtp_num_layers", "mtp_use_repeated_layer", "hybrid_layer_pattern", "mixer_pattern", "per_layer"),
        *("unsupported", "unmodelled", "source", "num_experts", "moe_router_topk", "moe_ffn_hidden_size"),
        *("moe_layer_freq", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_router_num_groups"),
        *("moe_router_group_topk", "moe_router_score_function", "moe_router_enable_expert_bias", "kv_lora_rank"),
        *("qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "q_lora_rank"),
    ]
) | frozenset(OFF)
_ADAM = (None, "adam", "adamw")
_COMPILED = ("torch_compile", "cuda_graph_scope")
_FUSED = (
    *("apply_rope_fusion", "bias_activation_fusion", "cross_entropy_fusion", "gradient_accumulation_fusion"),
    *("moe_permute_fusion", "moe_router_fusion", *_COMPILED),
)
#: Of Megatron-Core's layers: without Megatron's gradient buffers, and without the kernels of Transformer Engine as well.
_BUFFERED = ("gradient_accumulation_fusion", *_COMPILED)
_UNFUSED = (*_BUFFERED, "apply_rope_fusion", "moe_permute_fusion", "moe_router_fusion")
_PLAIN_LOSS = ("none", "unfused", "fp32")
_EAGER = {"cross_entropy_fusion": "unfused", "cuda_graph_scope": None}
#: Fields of a recipe that say how a layer is split; the timed run has its own.
_SPLIT = ("tp", "ep", "etp", "seq_length", "micro_batch_size", "global_batch_size", "precision", "fp8_recipe")
#: Fields of a recipe that 8-bit linears through torch do not follow, with what runs instead.
_NARROW = {
    "fp8_param_gather": False,
    "fp8_dot_product_attention": False,
    "activation_func_fp8_input_store": False,
    "moe_grouped_gemm": "loop",
}


def refuse(resolved: Resolved) -> None:
    """Raises :class:`Unsupported` for what can neither be timed here nor be put back, before anything is timed."""
    model, recipe = resolved.workload.model, resolved.workload.recipe
    kinds = dict.fromkeys((*model.layer_kinds, *[model.mtp_kind] * bool(model.mtp_num_layers)))
    odd = [kind for kind in kinds if not kind.plain or kind.window is not None]
    parts = [each for each in (model, model.moe, model.mla) if each is not None]
    changed = [f.name for part in parts for f in fields(part) if getattr(part, f.name) != f.default]
    lacking = [name for name in changed if name not in _MADE]
    reasons = {
        f"live layers with {', '.join(lacking)}": bool(lacking),
        f"live layers other than full attention with an MLP or experts ({', '.join(k.name for k in odd)})": bool(odd),
        "live training on preferences (DPO)": recipe.rlhf_type is not None,
        "live updates of adapters (LoRA)": recipe.lora is not None,
        f"live updates by {recipe.optimizer}": recipe.optimizer not in _ADAM,
        "live updates on the host": bool(recipe.optimizer_cpu_offload or recipe.offload_optimizer_states),
    }
    refused = [text for text, applies in reasons.items() if applies]
    if refused:
        raise Unsupported("; ".join(refused))


def eager(resolved: Resolved, source: str, asked: Asked) -> tuple[str, ...]:
    """Returns the switches by which the run fuses what the layers of ``source`` run kernel by kernel."""
    recipe, fusion = resolved.workload.recipe, resolved.execution.fusion
    apart = {"megatron-core with transformer engine": _BUFFERED, "megatron-core": _UNFUSED}
    names = _FUSED if source in ("torch", "transformers", "torchtitan") else apart.get(source, _COMPILED)
    switches = [name for name in names if getattr(recipe, name) not in (None, False, (), *_PLAIN_LOSS)]
    if _by_torch(asked, source) and (not fusion.elementary_casts or fusion.elementwise):
        switches.append("fp8_recipe")
    return tuple(switches)


def _by_torch(asked: Asked, source: str) -> bool:
    """Returns whether linears ran in 8 bits through torch, which casts kernel by kernel."""
    return asked.workload.recipe.precision not in WIDE and not source.startswith("megatron")


class TimedRun:
    """The run that was timed, priced by the models that price the whole one. The host has no part in a difference
    between the two: it is in what was timed."""

    def __init__(self, resolved: Resolved, asked: Asked, cluster: Cluster, source: str) -> None:
        """Takes the name of the ``source`` whose layers ran (:mod:`projector.benchmark.source`)."""
        without, narrow = eager(resolved, source, asked), _by_torch(asked, source)
        execution = resolved.execution
        if "torch_compile" in without:
            execution = execution.evolve(fusion={"elementwise": False, "loss_compiled": False})
        if narrow:
            execution = execution.evolve(fusion={"elementary_casts": True})
        self._ran = replace(resolved, workload=_workload(resolved, asked, without, narrow), execution=execution)
        self._whole, self._here = _PricedRun(resolved, cluster), _PricedRun(self._ran, cluster)

    def phases(self, key: str, wanted: PartWanted | None) -> tuple[Phase, Phase]:
        """Returns forward and backward of a block in the run that was timed."""
        part = self._part(key, wanted)
        return self._here.phase(part.block.forward), self._here.phase(part.backward)

    def recorded(self, key: str, wanted: PartWanted | None) -> tuple[tuple[float | None, float], ...]:
        """Returns, for forward and backward of a block in the timed run, the seconds by recorded tables (None where the GPU
        has none), and the share of its kernels' time that these tables cover."""
        part = self._part(key, wanted)
        return tuple(self._here.recorded(ops) for ops in (part.block.forward, part.backward))

    def saved(self, key: str, wanted: PartWanted | None) -> float:
        """Returns the bytes that the forward of a block in the run that was timed leaves for its backward, as the book
        has it."""
        part = self._part(key, wanted)
        return part.block.kept_bytes if part.recomputed else part.block.saved_bytes

    def whole(self, part: StageBlock) -> tuple[Phase, Phase]:
        """Returns forward and backward of a block as the whole run executes it."""
        return self._whole.phase(part.block.forward), self._whole.phase(part.backward)

    def restored(self, made: Made, part: StageBlock, forward: float, backward: float) -> tuple[Phase, Phase]:
        """Returns the phases of ``part`` in the whole run; what it is ``made`` of took ``forward`` and ``backward``
        seconds."""
        there, here = (
            self.whole(part),
            [join(phases) for phases in zip(*(self.phases(*each) for each in made), strict=True)],
        )
        return _difference(forward, there[0], here[0]), _difference(backward, there[1], here[1])

    def _part(self, key: str, wanted: PartWanted | None) -> StageBlock:
        if wanted is None:
            return StageBlock(lower.embedding(self._ran) if key == "embedding" else lower.head(self._ran), False, 0)
        return StageBlock(lower.layer(wanted.kind, self._ran), wanted.replayed)


def _difference(measured: float, whole: Phase, ran: Phase) -> Phase:
    """Adds what only the whole run has, as priced; takes off what only the timed run had, at the measured rate."""
    extra_compute = _compute(whole) - _compute(ran)
    sent, here = whole.exposed, ran.exposed
    extra_communication = {group: sent.get(group, 0.0) - here.get(group, 0.0) for group in {*sent, *here}}
    noise = _NOISE * max(whole.seconds, ran.seconds)
    dropped = sum(-each for each in (extra_compute, *extra_communication.values()) if each < 0.0)
    remaining = measured * (1.0 - min(dropped / max(ran.seconds, 1e-12), 1.0))
    beyond = {group: each for group, each in extra_communication.items() if each > noise}
    return measured_phase(remaining, beyond, extra_compute if extra_compute > noise else 0.0)


_NOISE = 1e-9  # of a sum of floats in another order


def _compute(phase: Phase) -> float:
    return phase.seconds - sum(phase.exposed.values())


def _workload(resolved: Resolved, asked: Asked, without: Sequence[str], narrow: bool) -> Workload:
    """Returns the projected recipe with what the timed layers kept of it, and what ran in place of the rest."""
    kept, recipe = asked.workload.recipe, resolved.workload.recipe
    ran: dict[str, Any] = {name: getattr(kept, name) for name in _SPLIT}
    ran |= {"cp": 1, "pp": 1, "vpp": 1, "sequence_parallel": bool(kept.sequence_parallel)}
    ran |= {"data_parallel_shard_size": None, "num_distributed_optimizer_instances": None}
    ran |= {"pipeline_model_parallel_layout": None, "moe_token_dispatcher_type": "alltoall"}
    ran |= {name: _EAGER.get(name, False) for name in without}
    if narrow:
        ran |= _NARROW
        ran["fp8_recipe"] = "tensorwise" if recipe.fp8_recipe == "delayed" else recipe.fp8_recipe
    if recipe.recompute_granularity != "full":
        ran["recompute_granularity"] = "none"
    if not asked.sharded:
        ran["data_parallel_sharding"] = "no_shard"
    timed = replace(recipe, **ran)
    return replace(resolved.workload, model=replace(asked.workload.model, **OFF), recipe=timed, gpus=asked.ranks)


@dataclass(frozen=True)
class _PricedRun:
    """Phases of a run as the models price them, without the host time of the modules of one layer."""

    resolved: Resolved
    cluster: Cluster

    def phase(self, ops: Sequence[Operator]) -> Phase:
        return self._priced(ops, self._kernels)[0]

    def recorded(self, ops: Sequence[Operator]) -> tuple[float | None, float]:
        if not recorded.available(self.cluster.gpu.name):
            return None, 0.0
        phase, share = self._priced(ops, recorded.Recorded(self.cluster.gpu, self._kernels))
        return phase.seconds, share

    @property
    def _kernels(self) -> KernelModel:
        return Simulated(self.cluster.gpu, efficiency.of(self.cluster.gpu), self.resolved.execution)

    def _priced(self, ops: Sequence[Operator], kernels: KernelModel) -> tuple[Phase, float]:
        """Returns the phase of ``ops`` and the share of the kernels' time that is measured."""
        work = self.resolved.workload
        price = Pricing(groups(work.recipe, work.gpus, self.cluster), self.cluster, efficiency.of(self.cluster.gpu))
        compute: list[Any] = [op for op in ops if not isinstance(op, Collective | HostWork)]
        times = kernels.times(compute)
        known: Mapping[Operator, float] = dict(zip(compute, times.seconds.tolist(), strict=True))
        share = float(times.seconds[times.measured].sum() / max(times.seconds.sum(), 1e-30))
        return Clock(known, frozenset(), price.seconds, self.resolved.execution).phase(ops), share
