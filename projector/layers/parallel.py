"""Attention and Mamba-2 heads side by side on one norm, their outputs summed (Falcon-H1, arXiv:2507.22448).

transformers models/falcon_h1/modeling_falcon_h1.py (``FalconH1DecoderLayer``); NVIDIA-NeMo/Megatron-Bridge@067f987d
src/megatron/bridge/models/falcon_h1/modeling_falconh1/falconh1_layer.py.
"""

from __future__ import annotations

from dataclasses import replace

from projector.layers import attention_gqa, mamba
from projector.layers.local import Local
from projector.operators.part import Part
from projector.operators.types import Stream
from projector.workload.layer_kinds import Parallel
from projector.workload.model import LayerKind


def mixer(kind: LayerKind, lo: Local) -> tuple[Part, ...]:
    """From the one input norm to the residual addition."""
    m = kind.mixer
    assert isinstance(m, Parallel)
    first, *attention, last = attention_gqa.attention(replace(kind, mixer=m.attention), lo)
    heads = mamba.mixer(replace(kind, mixer=m.mamba), lo)[1:-1]
    x, compiled = lo.act * lo.hidden * lo.shard_tokens, lo.compiled
    forward = Stream(
        name="heads.add",
        kind="elementwise",
        read=x if compiled else 2 * x,
        write=0.0 if compiled else x,
        launches=0 if compiled else 1,
    )
    # the gradients of both meet at the norm
    backward = Stream(name="heads.grad_add", kind="elementwise", read=2 * x, write=x)
    first = replace(first, backward_input=(backward, *first.backward_input))
    return (first, *attention, *heads, Part(name="heads", forward=(forward,)), last)
