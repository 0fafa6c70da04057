"""Block shapes of flash-attention kernels by family and head dimension.

Sources: FlashAttention-3 ``hopper/tile_size.h`` (rows × keys, 16-bit, causal rows where they differ);
FlashAttention-2 on SM80 ``flash_fwd_launch_template.h`` and ``flash_bwd_launch_template.h``; FlashAttention-4 (arXiv
2603.05451) two 128-row query tiles per block; AITER/CK assembly v3: 256×64 forward, 16×256 backward (MI355X) and
16×192 (MI300X), from kernel names.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Block", "block", "padded"]

_HEAD_DIMS = (32, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that one work-group owns (queries forward, keys backward) and columns that it takes per iteration."""

    rows: int
    columns: int


# family: (largest head_dim, forward block, backward block) in growing head_dim
_BLOCKS: dict[str, tuple[tuple[int, Block, Block], ...]] = {
    "fa2": (
        (64, Block(128, 112), Block(128, 128)),
        (128, Block(128, 64), Block(128, 64)),
        (192, Block(128, 64), Block(64, 64)),
        (512, Block(128, 64), Block(64, 64)),
    ),
    "fa3": (
        (64, Block(192, 128), Block(128, 128)),
        (96, Block(192, 144), Block(128, 64)),
        (128, Block(128, 128), Block(128, 80)),
        (192, Block(128, 112), Block(96, 64)),
        (512, Block(128, 80), Block(80, 64)),
    ),
    "cudnn": (
        (64, Block(128, 128), Block(128, 128)),
        (128, Block(128, 128), Block(128, 128)),
        (192, Block(128, 128), Block(128, 64)),
        (512, Block(128, 64), Block(64, 64)),
    ),
    "fa4": ((128, Block(256, 128), Block(128, 128)), (512, Block(256, 128), Block(128, 64))),
    "aiter": ((128, Block(256, 64), Block(256, 16)), (512, Block(128, 64), Block(128, 16))),
    "ck": ((128, Block(128, 128), Block(128, 32)), (512, Block(128, 64), Block(64, 32))),
}
_ALIKE = {
    "aiter_a16": "aiter",
    "aiter_a32": "aiter",
    "asm": "aiter",
    "triton": "ck",
    "flash": "fa2",
    "fa1": "fa2",
    "te": "cudnn",
}


def padded(head_dim: int) -> int:
    """The head dimension that a kernel computes with: the next one it is compiled for."""
    return next((d for d in _HEAD_DIMS if head_dim <= d), -(-head_dim // 64) * 64)


def block(family: str, head_dim: int, backward: bool) -> Block:
    """The block of ``family`` (``fa2`` for an unknown one) at a head dimension of the keys."""
    rows = _BLOCKS.get(_ALIKE.get(family, family), _BLOCKS["fa2"])
    _, forward, back = next((row for row in rows if head_dim <= row[0]), rows[-1])
    return back if backward else forward
