"""A linear layer under tensor parallelism: forward, data gradient, weight gradient, and the messages around them.

Weight [n, k] and T rows: forward (T, n, k) TN, dgrad (T, k, n) NN, wgrad (n, k, T) NT. Messages follow Megatron-LM
core/tensor_parallel/layers.py and Transformer Engine module/{linear,layernorm_linear}.py: with sequence parallelism a column
linear gathers its input before the forward and again beside the dgrad, and scatters its input gradient beside the wgrad; a
row linear scatters its output and gathers the output gradient, both exposed. Under ``tp_comm_overlap`` the product beside
such a message runs piece by piece, on a few streams: as a batch of smaller ones (TransformerEngine
common/comm_gemm_overlap/comm_gemm_overlap.cpp, split_overlap_ag and split_overlap_rs; torch distributed/_symmetric_memory).
"""

from __future__ import annotations

from dataclasses import replace

from projector.dataclass import dataclass
from projector.layers import few_bits, summa
from projector.layers.local import LayerView
from projector.layers.lora import adapter
from projector.layers.quantise import (
    activation_emits_quantised,
    cast,
    norm_emits_quantised,
    operand_bytes,
    rescale,
    weight_cast,
)
from projector.operators.module import Module
from projector.operators.saved import Saved
from projector.operators.types import Collective, Gemm, Operator, Stream
from projector.operators.weights import Weight
from projector.parameter import parameter

_RS_CHUNKS = parameter(
    4,
    kind="published",
    source="Transformer Engine pipelines the reduce-scatter of a row linear in four chunks, the last one exposed "
    "(module/base.py)",
)


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear on one rank. ``outputs``: local widths of the GEMMs that share one input (one when fused).

    ``parallel``: ``column``, ``row`` or ``replicated``; ``target``: Megatron's module name, which adapters refer to.
    ``after_norm``: the input comes straight from a norm kernel, which may emit the quantised tensor itself;
    ``beside_activation``: an activation makes the input (``after``) or the gradient of the output (``before``). ``plain``:
    stays in the activations' type under every precision (output layer). ``parts``: rows of the matrices that one weight
    joins. ``reads``: storage of the input; ``makes``: storages of the output, with widths (else ``<name>.out``).
    """

    name: str
    outputs: tuple[int, ...]
    inputs: int
    rows: int
    parallel: str = "replicated"
    bias: bool = False
    after_norm: bool = False
    beside_activation: str = ""
    plain: bool = False
    parts: tuple[int, ...] = ()
    target: str = ""
    reads: str = ""
    makes: tuple[tuple[str, int], ...] = ()

    @property
    def width(self) -> int:
        return sum(self.outputs)

    @property
    def wgrads(self) -> tuple[str, ...]:
        return tuple(f"{name}.wgrad" for name in self.gemms)

    @property
    def dgrads(self) -> tuple[str, ...]:
        return tuple(f"{name}.dgrad" for name in self.gemms)

    @property
    def gemms(self) -> tuple[str, ...]:
        if len(self.outputs) == 1:
            return (self.name,)
        return tuple(f"{self.name}.{i}" for i in range(len(self.outputs)))


def linear(spec: Linear, view: LayerView, tags: frozenset[str] = frozenset()) -> Module:
    """Returns all operators of ``spec`` on one rank, with its adapter where the recipe trains one on ``spec.target``."""
    if view.summa:
        return _on_a_grid(spec, view, tags)
    extra = adapter(spec.target, spec.name, spec.parallel, spec.rows, spec.width, spec.inputs, spec.reads, view)
    weight = _weight_gradient(spec, view) if view.trainable else ()
    return Module(
        spec.name,
        forward=(*_forward(spec, view), *extra.forward, *_output_sum(spec, view)),
        backward_input=(*_backward(spec, view), *extra.backward_input, *_input_gradient_sum(spec, view)),
        backward_weight=(*weight, *extra.backward_weight),
        weights=(*_weights(spec), *extra.weights),
        saves=(*_saves(spec, view), *extra.saves),
        makes=_makes(spec, view),
        tags=tags,
    )


def _on_a_grid(spec: Linear, view: LayerView, tags: frozenset[str]) -> Module:
    """Divides both sides of the weight: outputs over tp, inputs over tp2 (SUMMA)."""
    row = spec.parallel == "row"
    inputs = spec.inputs * view.tp if row else spec.inputs
    outputs = tuple(-(-width // view.tp) for width in spec.outputs) if row else spec.outputs
    held = replace(spec, inputs=-(-inputs // view.recipe.tp2), outputs=outputs, parallel="column")
    part = summa.product(spec.name, view, spec.rows, inputs, outputs, spec.gemms, bias=spec.bias)
    return replace(part, weights=_weights(held), saves=_saves(spec, view), makes=_makes(spec, view), tags=tags)


def _saves(spec: Linear, view: LayerView) -> tuple[Saved, ...]:
    """Returns the input, quantised where the products are, and while a weight gradient waits the gradient of the
    output; a frozen linear needs neither, but its adapter reads the input, and a product of 8-bit integers keeps it all
    the same (bitsandbytes@95f9af30 autograd/_functions.py ``MatMul8bitLt``). Sequence parallelism saves shards."""
    lora = view.recipe.lora
    kept = lora is not None and (spec.target in lora.targets or (few_bits.integers(view) and not spec.plain))
    if not view.trainable and not kept:
        return ()
    element = view.act if spec.plain else operand_bytes(view)
    rows = view.shard_tokens if spec.parallel == "column" else spec.rows
    into = Saved(
        f"{spec.name}.in",
        element * rows * spec.inputs,
        storage=spec.reads,
        until="weight_gradient" if view.trainable else "backward",
        input=True,
    )
    gradient = Saved(
        f"{spec.name}.out_grad",
        _out_rows(spec, view) * spec.width * view.act,
        since="backward",
        until="weight_gradient",
    )
    return (into, gradient) if view.trainable else (into,)


def _makes(spec: Linear, view: LayerView) -> tuple[Saved, ...]:
    row = view.act * _out_rows(spec, view)
    return tuple(Saved(name, row * width) for name, width in spec.makes or ((f"{spec.name}.out", spec.width),))


def _out_rows(spec: Linear, view: LayerView) -> int:
    return view.shard_tokens if spec.parallel == "row" else spec.rows


def _weights(spec: Linear) -> tuple[Weight, ...]:
    role = "output" if spec.plain else "linear"
    split = {"column": "rows", "row": "columns"}.get(spec.parallel, "")
    fused = spec.parts if len(spec.outputs) == 1 else ()
    matrices = tuple(
        Weight(name, n, spec.inputs, role=role, split=split, parts=fused)
        for name, n in zip(spec.gemms, spec.outputs, strict=True)
    )
    bias = (Weight(f"{spec.name}.bias", spec.width, split=split if split == "rows" else ""),)
    return (*matrices, *bias) if spec.bias else matrices


def _gemm(name: str, m: int, n: int, k: int, layout: str, spec: Linear, view: LayerView) -> Gemm:
    dtype, scaling = (view.dtype, "") if spec.plain else (view.linear_dtype, view.scaling)
    return Gemm(name, m, n, k, dtype=dtype, scaling=scaling, layout=layout, out_bytes=view.act)


def _quantises(spec: Linear, view: LayerView) -> bool:
    return view.quantised and not spec.plain


def _emitted(side: str, spec: Linear, view: LayerView) -> bool:
    return spec.beside_activation == side and activation_emits_quantised(view)


def _cast_rows(spec: Linear, view: LayerView, gathers: bool) -> int:
    """Returns the rows cast on this rank: its shard where 8-bit shards are gathered, all rows where 16-bit ones are."""
    return view.shard_tokens if gathers and view.gathered < view.act else spec.rows


def _element(spec: Linear, view: LayerView) -> float:
    return view.act if spec.plain else view.gathered


def _amax(name: str, spec: Linear, view: LayerView) -> tuple[Operator, ...]:
    """Returns the maximum over the tensor-parallel group that tensor-wise current scaling of a sharded tensor needs."""
    if view.sp and _quantises(spec, view) and view.cast_recipe in ("tensorwise", "current"):
        return (Collective(name, "all_reduce", "tp", 4.0),)
    return ()


def _forward(spec: Linear, view: LayerView) -> tuple[Operator, ...]:
    gathers = spec.parallel == "column" and view.sp
    rows = _cast_rows(spec, view, gathers)
    ops: list[Operator] = []
    if _quantises(spec, view):
        if not (_emitted("after", spec, view) or (spec.after_norm and norm_emits_quantised(view))):
            ops += cast(f"{spec.name}.cast", rows * spec.inputs, view)
        if gathers:
            ops += _amax(f"{spec.name}.amax", spec, view)
        ops += weight_cast(f"{spec.name}.weight_cast", spec.width * spec.inputs, view)
    if gathers:
        ops += _pipelined(
            f"{spec.name}.ag", "all_gather", spec.rows * spec.inputs * _element(spec, view), spec.gemms, spec, view
        )
    scatters = spec.parallel == "row" and view.sp
    pieces = _pieces("all_gather", spec, view) if gathers else _pieces("reduce_scatter", spec, view) if scatters else 1
    for name, n in zip(spec.gemms, spec.outputs, strict=True):
        gemm = _gemm(name, spec.rows, n, spec.inputs, "TN", spec, view)
        ops += (_cut(gemm, pieces),) if spec.plain else _in_few_bits(gemm, view) or (_cut(gemm, pieces),)
    return tuple(ops)


def _in_few_bits(gemm: Gemm, view: LayerView) -> tuple[Operator, ...]:
    """Returns the forward product with a frozen weight in 4 or 8 bits and its kernels; nothing for other weights."""
    if few_bits.integers(view):
        before, behind = few_bits.around(gemm.name, gemm.m, gemm.k, gemm.n, view)
        return (*before, replace(gemm, dtype="int8", scaling="tensorwise", out_bytes=few_bits.INT8_SUM), *behind)
    again = few_bits.made_again(gemm.name, gemm.n * gemm.k, gemm.k, view)
    return (*again, gemm) if again else ()


def _output_sum(spec: Linear, view: LayerView) -> tuple[Operator, ...]:
    """Returns the sum of the partial outputs of a row linear over the tensor-parallel group."""
    if spec.parallel != "row" or view.tp == 1:
        return ()
    nbytes = spec.rows * spec.width * view.act
    if view.sp:
        return _pipelined(f"{spec.name}.rs", "reduce_scatter", nbytes, spec.gemms, spec, view)
    return (Collective(f"{spec.name}.ar", "all_reduce", "tp", nbytes),)


def _backward(spec: Linear, view: LayerView) -> tuple[Operator, ...]:
    gathers = spec.parallel == "row" and view.sp
    ops: list[Operator] = []
    if _quantises(spec, view):
        rows = _cast_rows(spec, view, gathers)
        ops += () if _emitted("before", spec, view) else cast(f"{spec.name}.grad_cast", rows * spec.width, view)
        if gathers:
            ops += _amax(f"{spec.name}.grad_amax", spec, view)
    if gathers:
        nbytes = spec.rows * spec.width * _element(spec, view)
        ops += _pipelined(f"{spec.name}.grad_ag", "all_gather", nbytes, spec.dgrads, spec, view)
    if spec.parallel == "column" and view.sp and view.trainable:
        again = spec.rows * spec.inputs * _element(spec, view)
        hides = spec.dgrads if view.execution.tensor_parallel.backward_overlap else ()
        ops += _with_copy(Collective(f"{spec.name}.input_ag", "all_gather", "tp", again, hides_behind=hides), view)
    pieces = _pieces("all_gather", spec, view) if gathers else 1
    for name, n in zip(spec.dgrads, spec.outputs, strict=True):
        ops += () if spec.plain else few_bits.made_again(name, n * spec.inputs, spec.inputs, view)
        ops.append(_cut(_gemm(name, spec.rows, spec.inputs, n, "NN", spec, view), pieces))
    if _quantises(spec, view):
        ops += rescale(f"{spec.name}.dgrad_scale", len(spec.outputs) * spec.rows * spec.inputs, view)
    if (adds := len(spec.outputs) - 1) > 0:
        tensor = view.act * spec.rows * spec.inputs * adds
        ops.append(Stream(f"{spec.name}.dgrad_add", "elementwise", 2 * tensor, tensor, launches=adds))
    return tuple(ops)


def _input_gradient_sum(spec: Linear, view: LayerView) -> tuple[Operator, ...]:
    """Returns the sum of a column linear's partial input gradients, beside its weight gradient where it has one."""
    if spec.parallel != "column" or view.tp == 1:
        return ()
    nbytes = spec.rows * spec.inputs * view.act
    kind = "reduce_scatter" if view.sp else "all_reduce"
    hides = spec.wgrads if view.trainable and view.execution.tensor_parallel.backward_overlap else ()
    name = f"{spec.name}.dgrad_{'rs' if view.sp else 'ar'}"
    return _with_copy(Collective(name, kind, "tp", nbytes, hides_behind=hides), view)


def _weight_gradient(spec: Linear, view: LayerView) -> tuple[Operator, ...]:
    # PrimusTurboLinear (AMD-AGI/Primus primus/backends/megatron/core/extensions/primus_turbo.py)
    turbo = bool(view.recipe.use_turbo_gemm) and not spec.plain
    ops: list[Operator] = []
    for name, n in zip(spec.wgrads, spec.outputs, strict=True):
        out_bytes, accumulate, add = accumulation(name, n * spec.inputs, view, returned=turbo)
        gemm = _gemm(name, n, spec.inputs, spec.rows, "NT", spec, view)
        ops += [replace(gemm, out_bytes=out_bytes, accumulate=accumulate), *add]
    if spec.bias:
        read = view.act * spec.rows * spec.width
        ops.append(Stream(f"{spec.name}.bias_grad", "elementwise", read, 0.0))
    return tuple(ops)


def batched(
    name: str, count: int, inputs: int, outputs: int, reads: str, view: LayerView, tags: frozenset[str]
) -> Module:
    """Returns ``count`` linears ``inputs`` → ``outputs``, a matrix each, as one batched product on storage ``reads``."""

    def gemm(suffix: str, m: int, n: int, k: int, layout: str, out_bytes: float = view.act, add: bool = False) -> Gemm:
        return Gemm(
            name + suffix, m, n, k, batch=count, dtype=view.dtype, layout=layout, out_bytes=out_bytes, accumulate=add
        )

    rows, row = view.tokens, view.act * view.tokens * count
    weight: tuple[Operator, ...] = ()
    if view.trainable:
        out_bytes, accumulate, added = accumulation(f"{name}.wgrad", count * inputs * outputs, view)
        weight = (gemm(".wgrad", outputs, inputs, rows, "NT", out_bytes, accumulate), *added)
    into = Saved(f"{name}.in", row * inputs, storage=reads, until="weight_gradient", input=True)
    gradient = Saved(f"{name}.out_grad", row * outputs, since="backward", until="weight_gradient")
    return Module(
        name,
        forward=(
            *few_bits.made_again(name, count * inputs * outputs, inputs, view),
            gemm("", rows, outputs, inputs, "TN"),
        ),
        backward_input=(
            *few_bits.made_again(f"{name}.dgrad", count * inputs * outputs, inputs, view),
            gemm(".dgrad", rows, inputs, outputs, "NN"),
        ),
        backward_weight=weight,
        weights=(Weight(name, count * outputs, inputs, role="linear", split="rows"),),
        saves=(into, gradient) if view.trainable else (),
        makes=(Saved(f"{name}.out", row * outputs),),
        tags=tags,
    )


def accumulation(
    name: str, elements: float, view: LayerView, launches: int = 1, *, returned: bool = False
) -> tuple[float, bool, tuple[Stream, ...]]:
    """Returns how a weight gradient of ``elements`` reaches the gradient buffer: (bytes of an output element, added in the
    GEMM's epilogue, kernels after it). ``returned``: the library returns it to autograd, which adds it in another kernel."""
    fusion, buffer = view.execution.fusion, view.execution.data_parallel.grad_bytes
    if fusion.wgrad_accumulation == "fused" and not returned:
        return buffer, True, ()
    return view.act, False, fusion.added(f"{name}.add", elements, view.act, buffer, launches)


def _pieces(kind: str, spec: Linear, view: LayerView) -> int:
    """Returns the number of pieces of a message in the forward path and of the product beside it: one for the output layer,
    which is none of Transformer Engine (Megatron-LM core/tensor_parallel/layers.py) and outside torch's compiled blocks."""
    # torch does not fuse the gather of 16-bit shards with the casts and the 8-bit product that follow (pytorch issue 149990)
    unfused = kind == "all_gather" and view.quantised and view.gathered == view.act
    if not view.recipe.tp_comm_overlap or unfused or spec.plain:
        return 1
    return view.tp if kind == "all_gather" else _RS_CHUNKS


def _cut(op: Gemm, pieces: int) -> Gemm:
    return replace(op, m=-(-op.m // pieces), batch=pieces, launches=pieces) if pieces > 1 else op


def _pipelined(
    name: str, kind: str, nbytes: float, behind: tuple[str, ...], spec: Linear, view: LayerView
) -> tuple[Operator, ...]:
    """Returns a collective in the forward path; ``tp_comm_overlap`` hides all but one of its pieces behind the GEMM."""
    pieces = _pieces(kind, spec, view)
    if pieces == 1:
        return _with_copy(Collective(name, kind, "tp", nbytes), view)
    exposed = nbytes / pieces
    return (
        Collective(f"{name}.chunk", kind, "tp", exposed, launches=0),
        Collective(name, kind, "tp", nbytes - exposed, hides_behind=behind),
    )


def _with_copy(op: Collective, view: LayerView) -> tuple[Operator, ...]:
    """Returns ``op`` with the copy of the whole tensor where collectives join another dimension than the sequence."""
    if op.kind == "all_reduce" or not view.execution.tensor_parallel.copies(op.kind, view.batch):
        return (op,)
    copy = Stream(f"{op.name}.copy", "copy", op.bytes, op.bytes)
    return (copy, op) if op.kind == "reduce_scatter" else (op, copy)
