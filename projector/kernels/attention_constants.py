"""The constants of one attention kernel on one GPU: instruction rates, sustained clock and fitted shares per block.

One iteration of a work-group costs the longer of its matrix products and its softmax (exponentials and vector
operations), plus the share of the shorter that the kernel does not overlap. The sustained clock scales products,
exponentials, vector operations and shared memory; it leaves the terms of device memory. Structure: FlashAttention-2/3/4
papers (arXiv 2307.08691, 2407.08608, 2603.05451); values ``attention.*`` of the efficiency file.
"""

from __future__ import annotations

from math import ceil

from projector.dataclass import dataclass
from projector.hardware.types import Efficiency, Gpu
from projector.kernels.constants import pick
from projector.operators.types import Attention
from projector.parameter import parameter

# Block shapes and launch structure of flash-attention kernels by family, head dimension, architecture, mask and type.
#
# Sources: FlashAttention-3 ``hopper/tile_size.h`` (rows × keys, causal and 8-bit rows where they differ);
# FlashAttention-2 on SM80 ``flash_fwd_launch_template.h`` and ``flash_bwd_launch_template.h``; FlashAttention-4 (arXiv
# 2603.05451) two 128-row query tiles per block; AITER ``csrc/cpp_itfs/mha_bwd.cu`` and
# ``hsa/gfx9*/fmha_v3_bwd/codegen.py``: assembly v3 backward 192 (gfx942) or 256 (gfx950) keys by 16 queries, two causal
# tiles of a head, one long and one short, per work-group (``gdx = (gdx + 1) / 2``); forward 256 × 64.
_HEAD_DIMS = (32, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that one work-group owns (queries forward, keys backward) and columns that it takes per iteration.

    ``paired``: a work-group of a causal kernel takes a long and a short tile, so that all work-groups are alike.
    ``warp_rows``: rows of one warp where each warp reads its own copy of the operands from shared memory (0: warps
    share them, as the matrix instructions of Hopper and Blackwell do).
    """

    rows: int
    columns: int
    paired: bool = False
    warp_rows: int = 0


def _wide(columns: int) -> Block:
    return Block(128, columns, warp_rows=32)


_NARROW_WARP = Block(128, 64, warp_rows=16)  # eight warps for 128 rows above head_dim 128

# family: (largest head_dim, forward, forward causal, forward of 8-bit operands, backward) in growing head_dim
_Row = tuple[int, Block, Block, Block, Block]
_BLOCKS: dict[str, tuple[_Row, ...]] = {
    "fa2": (
        (64, _wide(128), _wide(128), _wide(128), Block(128, 128, warp_rows=32)),
        (128, _wide(64), _wide(64), _wide(64), Block(128, 64, warp_rows=32)),
        (512, _NARROW_WARP, _NARROW_WARP, _NARROW_WARP, Block(64, 64, warp_rows=16)),
    ),
    "fa3": (
        (64, Block(192, 192), Block(192, 128), Block(192, 160), Block(128, 128)),
        (96, Block(192, 144), Block(192, 128), Block(192, 128), Block(128, 64)),
        (128, Block(128, 176), Block(128, 128), Block(128, 224), Block(128, 80)),
        (192, Block(128, 112), Block(128, 112), Block(128, 160), Block(96, 64)),
        (512, Block(128, 80), Block(128, 80), Block(128, 128), Block(80, 64)),
    ),
    "cudnn": (
        (128, Block(128, 128), Block(128, 128), Block(128, 128), Block(128, 128)),
        (192, Block(128, 128), Block(128, 128), Block(128, 128), Block(128, 64)),
        (512, Block(128, 64), Block(128, 64), Block(128, 128), Block(64, 64)),
    ),
    "fa4": (
        (128, Block(256, 128), Block(256, 128), Block(256, 128), Block(128, 128)),
        (512, Block(256, 128), Block(256, 128), Block(256, 128), Block(128, 64)),
    ),
    "aiter": (
        (64, Block(256, 64), Block(256, 64, paired=True), Block(256, 64), Block(192, 32, paired=True)),
        (128, Block(256, 64), Block(256, 64, paired=True), Block(256, 64), Block(256, 16, paired=True)),
        (512, Block(128, 64), Block(128, 64), Block(128, 64), Block(128, 16, paired=True)),
    ),
    "ck": (
        (128, Block(128, 128), Block(128, 128), Block(128, 128), Block(128, 32)),
        (512, Block(128, 64), Block(128, 64), Block(128, 64), Block(64, 32)),
    ),
}
# (family, architecture, padded head_dim, backward) where one architecture's kernel differs
_OF_ARCH = {
    ("aiter", "gfx942", 128, True): Block(192, 16, paired=True),
    **{
        ("cudnn", arch, dim, False): Block(256, 128)
        for arch in ("blackwell", "blackwell_ultra")
        for dim in (64, 96, 128, 192)
    },
}
_PARENT = {
    **dict.fromkeys(("aiter_a16", "aiter_a32", "asm", "opus"), "aiter"),
    **dict.fromkeys(("flydsl", "triton", "aotriton"), "ck"),
    "flash": "fa2",
    "fa1": "fa2",
    "te": "cudnn",
}
_DQ_BYTES = {"aiter_a16": 2.0}  # its kernel adds dQ with 16-bit atomics; all others accumulate in fp32
_CK_BACKWARD = (32, 64, 128, 256)
_NARROW = ("fp8", "int8", "mxfp8")


def parent(family: str) -> str:
    """Returns the family that ``family`` resembles and whose constants stand in for missing ones, else ``""``."""
    return _PARENT.get(family, "")


def dq_bytes(family: str) -> float:
    """Returns the bytes of one element of dQ while the backward accumulates it."""
    return _DQ_BYTES.get(family, 4.0)


def padded(head_dim: int) -> int:
    """Returns the head dimension that a kernel computes with: the next one it is compiled for."""
    return next((d for d in _HEAD_DIMS if head_dim <= d), -(-head_dim // 64) * 64)


def widths(family: str, head_dim_qk: int, head_dim_v: int, backward: bool) -> tuple[int, int]:
    """Returns (qk, v) that a kernel computes with. Composable Kernel compiles its backward for one width of both, 32,
    64, 128 or 256 (ROCm/composable_kernel@008c91c9 example/ck_tile/01_fmha/codegen/ops/fmha_bwd.py)."""
    if backward and (family == "ck" or parent(family) == "ck"):
        wide = max(head_dim_qk, head_dim_v)
        both = next((d for d in _CK_BACKWARD if wide <= d), padded(wide))
        return both, both
    return padded(head_dim_qk), padded(head_dim_v)


def windowed(family: str, dtype: str, backward: bool) -> bool:
    """Returns whether a kernel skips what a window hides: cuDNN's 8-bit backward does not (NVIDIA/cudnn-frontend@3929da2
    sdpa_benchmark_training: its rate over the window's products falls with one over the length)."""
    return not (family == "cudnn" and backward and dtype in _NARROW)


def block(family: str, arch: str, head_dim: int, dtype: str, causal: bool, backward: bool) -> Block:
    """Returns the block of ``family`` (``fa2`` for an unknown one) at the operator's larger padded head dimension."""
    name = family if family in _BLOCKS else _PARENT.get(family, "fa2")
    rows = _BLOCKS[name]
    _, full, masked, narrow, back = next((row for row in rows if head_dim <= row[0]), rows[-1])
    special = _OF_ARCH.get((name, arch, padded(head_dim), backward))
    if special is not None:
        return special
    if backward:
        return back
    if dtype in _NARROW:
        return narrow
    return masked if causal else full


# by direction, backward or not
_VECTOR_OPS = parameter(
    {False: 4.5, True: 4.0},
    unit="operations a score",
    kind="derived",
    source="instructions of the vector pipe beside the exponential, in the loops of FlashAttention-2/3 (arXiv 2307.08691, "
    "2407.08608): scale and shift in one fused multiply-add, maximum, sum, half a packed cast, and the output scaled again, "
    "one a score at a head dimension as wide as the block; backward scale and shift, dP − δ, its product with P, two half "
    "casts; of near counts the one under which GPUs left out come nearest",
    scored=True,
)
_SHARED_BYTES = parameter(
    128.0, unit="B/clock/unit", kind="datasheet", source="CUDA programming guide, compute capabilities 8.0 to 10.0"
)
_LANE_FLOPS = 2.0  # arithmetic: a fused multiply-add counts two in the data sheet's vector rate


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """One attention kernel (family, dtype, head dimensions, mask, direction) on one GPU. Seconds unless said.

    ``iteration``: one block at the sustained clock; ``boost``: sustained over peak clock, the bound on what idle units
    can give back; ``power``: exponent of that gain; ``tail``: how often the excess of the longest work-group over the
    mean one is waited for at the end (0 longest first, up to 2 in the worst order); ``paired``: 1 where causal tiles go
    two to a work-group.
    """

    rows: float
    columns: float
    iteration: float
    prologue: float
    launch: float
    power: float
    tail: float
    boost: float
    paired: float
    units: float
    bandwidth: float  # bytes/s
    atomic: float  # per element of dQ and key block, beyond what the loop hides
    cache: float  # bytes of last-level cache that one work-group sees
    spill: float  # share of the traffic beyond that cache which the loop does not hide
    dq_bytes: float  # bytes of one dQ element while it accumulates
    group_sum: float  # share of the dK, dV sum over a group's query heads that is part of the operator


def constants(gpu: Gpu, efficiency: Efficiency, family: str, op: Attention) -> AttentionConstants:
    """Returns the constants of the kernel that would run ``op``. Raises ``Unsupported`` without a matrix rate for the
    type."""
    way = "backward" if op.backward else "forward"

    def value(stem: str, neutral: float | None = None) -> float:
        return _constant(efficiency, f"attention.{way}.{stem}", family, op, neutral)

    qk, v = widths(family, op.head_dim_qk, op.head_dim_v, op.backward)
    shape = block(family, gpu.arch, max(qk, v), op.dtype, op.causal, op.backward)
    scores = float(shape.rows * shape.columns)
    clock = min(efficiency.get("clock.attention", efficiency["clock.matrix"]), 1.0)
    units = float(gpu.compute_units)
    depth = 3 * qk + 2 * v if op.backward else qk + v
    matrix = 2.0 * scores * depth * units / (gpu.peak_of(op.dtype) * clock * min(value("loop"), 1.0))
    # operands that every warp reads from shared memory for its own rows only
    shared = 2.0 * depth * shape.columns * shape.rows / shape.warp_rows if shape.warp_rows else 0.0
    matrix += value("fetch") * shared / (_SHARED_BYTES * gpu.peak_clock_mhz * 1e6 * clock)
    exponent = scores / (gpu.exp_per_clock_per_cu * gpu.peak_clock_mhz * 1e6 * clock)
    vector = scores * _VECTOR_OPS[op.backward] * _LANE_FLOPS * units / (gpu.vector_flops * clock)
    softmax = max(exponent, vector) * value("softmax", 1.0)
    overlap = min(value("overlap"), 1.0)
    # blocks on the diagonal compare and select every score, and nothing runs beside them yet
    masked = value("mask", 0.0) * softmax * ceil(shape.rows / shape.columns) if op.causal else 0.0
    return AttentionConstants(
        rows=float(shape.rows),
        columns=float(shape.columns),
        iteration=max(matrix, softmax) + (1.0 - overlap) * min(matrix, softmax),
        prologue=value("prologue_us") * 1e-6 * (0.5 + (qk + v) / 512.0) + masked,
        launch=value("launch_us") * 1e-6,
        power=value("power"),
        tail=min(value("tail"), 2.0),
        boost=clock,
        paired=float(shape.paired and op.causal),
        units=units,
        bandwidth=gpu.memory_bandwidth * min(efficiency["gemm.memory"], 1.0),
        atomic=value("atomic_bytes", 0.0) / (efficiency["attention.atomic_tbs"] * 1e12),
        cache=max(gpu.l2_bytes / gpu.dies, gpu.llc_bytes),
        spill=value("spill"),
        dq_bytes=dq_bytes(family),
        group_sum=value("group_sum", 1.0),
    )


def _constant(efficiency: Efficiency, stem: str, family: str, op: Attention, neutral: float | None) -> float:
    """Returns the most specific constant of ``family``, then of the family that it resembles, then of all families."""
    found = efficiency.parameters
    dim = f"d{op.head_dim_qk}"
    for name in (family, parent(family)):
        for dtype in (op.dtype, "bf16") if op.dtype == "fp16" else (op.dtype,):
            for key in (f"{stem}.{name}.{dtype}.{dim}", f"{stem}.{name}.{dtype}"):
                if name and key in found:
                    return found[key].value
        if name and f"{stem}.{name}" in found:
            return found[f"{stem}.{name}"].value
    return pick(efficiency, stem, family, op.dtype, dim, neutral)
