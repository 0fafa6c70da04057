"""One policy of recompute: which operators of a layer its backward executes again, and which tensors need no saving then.

NVIDIA/Megatron-LM@d98e8a64dd core/transformer/{transformer_config,transformer_layer}.py, core/recompute.py. A replay is
the forward again: collectives, expert exchange and host synchronisation included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from projector.mechanisms.single import Recompute
from projector.operators.module import Module, Recomputed, forward_of
from projector.operators.saved import Saved, costliest, once, saved_bytes
from projector.operators.types import Attention, Collective, Gemm, HostWork, Operator
from projector.parameter import parameter
from projector.workload.composition import Composition, Layer, counted
from projector.workload.recipe import Recipe

# Last operators of a layer whose result only the layer's output needs. A compiler that sees the replay and the backward as
# one program drops them from the replay (JAX jax.checkpoint: the recomputation is traced, then cleared of dead code).
_OUTPUT_ONLY = frozenset({"fc2", "shared.fc2", "shared.add", "moe.mask_out", "moe.unpermute", "mlp_residual"})

_RANDOM_STATE_US = parameter(
    30.0,
    unit="us",
    kind="assumed",
    source="a full checkpoint saves and restores the random state of host and device: torch's calls",
)
_RANDOM_STATE = HostWork("recompute.random_state", _RANDOM_STATE_US)

_PLAIN = Recompute()

# Modules whose checkpoint discards the output as well, though other modules save it, and refills it in the backward
# (Megatron-LM core/tensor_parallel/random.py, ``CheckpointWithoutOutput``)
_WITHOUT_OUTPUT = frozenset({"layernorm", "mla_up_proj", "moe_act"})


def recomputed(parts: tuple[Module, ...], recipe: Recipe, how: Recompute = _PLAIN) -> Recomputed:
    """Returns what a recomputed layer of ``parts`` replays and keeps: all of it (``full``) or the modules that
    ``recompute_modules`` names by their tags.

    ``how``: what a whole-layer replay leaves out of what only the layer's own output needs. ``recompute_saved`` names
    outputs (by the tags of the modules that make them; JAX checkpoint_name in AI-Hypercomputer/maxtext MaxText/layers)
    that a layer keeps though it is replayed whole: what ends in them is not computed again, what leads to their inputs
    is, since weight gradients need those.
    """
    saves = once(saved for part in parts for saved in part.saves if saved.since == "forward")
    if recipe.recompute_granularity == "full":
        return _full(parts, saves, frozenset(recipe.recompute_saved or ()), how)
    if recipe.recompute_granularity != "selective":
        return Recomputed(kept=saves)
    modules = frozenset(recipe.recompute_modules or ("core_attn",))
    if "op_sac" in modules:
        return _every_other_product(parts, saves, how)
    return _modules(parts, saves, modules)


def _full(parts: tuple[Module, ...], saves: tuple[Saved, ...], names: frozenset[str], how: Recompute) -> Recomputed:
    """Keeps the layer's inputs, which no module of it makes, and the named outputs."""
    remade = _remade(parts)
    named = [part for part in parts if part.tags & names]
    results = [saved for part in named for saved in (*part.makes, *_own_saves(part))]
    entering = [saved for part in parts for saved in part.reads if saved.tensor not in remade]
    kept = once([*(saved for saved in saves if saved.tensor not in remade), *entering, *results])
    silent = {op.name for part in named for op in part.forward if not isinstance(op, Collective | HostWork)}
    operators = tuple(op for op in _until_saved(parts, how.stops) if op.name not in silent)
    if how.pruned:
        operators = tuple(op for op in operators if op.name not in _OUTPUT_ONLY)
    else:
        operators = (_RANDOM_STATE, *operators)
    return _result(operators, saves, kept, parts)


def _until_saved(parts: tuple[Module, ...], stops: str) -> tuple[Operator, ...]:
    """Returns the operators that a replay reaches which ends with the last tensor that a layer saves; the sum of the
    experts' rows saves their places (torch's scatter, TransformerEngine's unpermute)."""
    operators: list[Operator] = []
    reached = 0
    for part in parts:
        saved = [one for one in part.saves if one.since == "forward"]
        begins = len(operators)
        operators += forward_of((part,))
        if saved:
            reached = begins if stops == "before" and all(one.input for one in saved) else len(operators)
        for i, op in enumerate(operators[begins:], start=begins + 1):
            reached = i if op.name == "moe.unpermute" else reached
    return tuple(operators[:reached] if stops else operators)


def _modules(parts: tuple[Module, ...], saves: tuple[Saved, ...], modules: frozenset[str]) -> Recomputed:
    """Drops what the replayed modules make, except what others read of it; their own inputs stay."""
    replayed = [part for part in parts if part.tags & modules]
    remade = _remade(replayed)
    read_elsewhere = {saved.tensor for part in parts if not part.tags & modules for saved in part.saves}
    gone = (remade - read_elsewhere) | _remade(part for part in replayed if part.tags & modules & _WITHOUT_OUTPUT)
    inputs = [saved for part in replayed for saved in part.reads if saved.tensor not in remade]
    kept = once([*(saved for saved in saves if saved.tensor not in gone), *inputs])
    return _result(forward_of(replayed), saves, kept, replayed)


def _every_other_product(parts: tuple[Module, ...], saves: tuple[Saved, ...], how: Recompute) -> Recomputed:
    """Applies torchtitan's operator-selective checkpoint: the layer's input, attention, what a reduce-scatter leaves
    and every second product but the router's are kept; products of grouped experts and gathered sequences are not
    (pytorch/torchtitan@b5bcd76c torchtitan/distributed/activation_checkpoint.py: aten.mm and aten.linear alone,
    ``force_recompute_mm_shapes_by_fqns``; ``comm_ops`` without all_gather_into_tensor).

    Eager, whatever the policy names is kept (torch utils/checkpoint.py, ``_CachingTorchDispatchMode``): partial sums as
    well, and results that only the layer's output needs. A compiler keeps of these what the backward reads (torch
    _functorch/partitioners.py: a cut between forward and backward)."""
    remade = _remade(parts)
    kept = [saved for saved in saves if saved.tensor not in remade]
    replayed: list[Operator] = []
    products = 0
    for part in parts:
        scattered = saved_bytes(part.makes) if any(map(_scatters, part.forward)) else None
        for op in part.forward:
            dead = how.pruned and op.name in _OUTPUT_ONLY
            if isinstance(op, Collective) and op.group == "ep":
                if how.keeps_exchanged:
                    kept.append(Saved(f"{op.name}.exchanged", op.bytes))
                else:
                    replayed.append(op)
            elif isinstance(op, Gemm) and "moe_router" not in part.tags:
                products += 1
                if products % 2 and not (how.pruned and (dead or scattered is not None)):
                    kept.append(Saved(f"{op.name}.product", op.out_bytes * op.m * op.n * op.batch))
                elif products % 2 == 0 and not dead:
                    replayed.append(op)
                if scattered is not None and not dead:
                    kept.append(Saved(f"{op.name}.scattered", scattered))
                if how.keeps_magnitudes and isinstance(op, Gemm) and op.dtype == "fp8":
                    kept.append(Saved(f"{op.name}.magnitudes", op.out_bytes * (op.m + op.n) * op.k))
            elif not dead and not isinstance(op, HostWork | Attention) and not _scatters(op):
                replayed.append(op)
        if any(isinstance(op, Attention) for op in part.forward):
            kept += _own_saves(part)
    return _result(tuple(replayed), saves, once(kept), ())


def _scatters(op: Operator) -> bool:
    return isinstance(op, Collective) and op.kind == "reduce_scatter"


def _result(
    operators: tuple[Operator, ...], saves: tuple[Saved, ...], kept: tuple[Saved, ...], again: Iterable[Module]
) -> Recomputed:
    kept_storages = {saved.tensor for saved in kept}
    return Recomputed(
        operators=operators,
        kept=kept,
        dropped=tuple(saved for saved in saves if saved.tensor not in kept_storages),
        transient=costliest(part.forward_transient for part in again),
    )


def _own_saves(part: Module) -> tuple[Saved, ...]:
    return tuple(saved for saved in part.saves if not saved.input and saved.since == "forward")


def _remade(parts: Iterable[Module]) -> frozenset[str]:
    """Returns the storages that a replay of the modules makes again."""
    return frozenset(saved.tensor for part in parts for saved in (*part.makes, *_own_saves(part)))


def checkpoint_groups(recipe: Recipe, chunk: Composition) -> Iterator[tuple[tuple[tuple[Layer, ...], bool], int]]:
    """Yields the layers of a chunk that full recompute replays together, and (False) each layer that is saved as it is;
    equal neighbours once, with their number. ``uniform``: the whole chunk in groups of ``recompute_num_layers``;
    otherwise layer by layer (Megatron-LM core/transformer/transformer_block.py)."""
    whole = recipe.recompute_granularity == "full"
    number = recipe.recompute_num_layers or 1
    if whole and number > 1 and recipe.recompute_method != "block" and recipe.recompute_layer_ids is None:
        groups = (chunk.layers[i : i + number] for i in range(0, len(chunk.layers), number))
        return counted((group, True) for group in groups)
    return ((((layer,), whole and layer.recomputed), count) for layer, count in chunk.runs)
