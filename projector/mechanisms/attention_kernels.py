"""The attention kernels that a stack runs: the calls that each kernel takes, in the order in which the stack tries them.

A profile names the kernel that its stack prefers (``kernels: {attention: …}``). Where a call does not meet that
kernel's conditions (head dimensions, type, lengths, window, sinks, direction, architecture, the date of the build), the
next of the list runs, without a word in any log. The last one takes every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from projector.dataclass import dataclass
from projector.io.files import read_yaml
from projector.mechanism import mechanism
from projector.operators.types import Attention
from projector.size import most

UNFUSED = "unfused"
"""Family of calls without a flash kernel: products and softmax over scores in memory."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The conditions under which a kernel takes a call; a field at its default is no condition.

    ``family``: whose constants price it. ``widths``: ranges of (qk, v); ``equal``: one width for both. ``square``: as
    many queries as keys; ``multiple``: of both lengths. ``window``, ``sinks``: whether the kernel takes them.
    ``since``: the month from which builds have it. ``pads``: the narrower width is padded to the wider.
    """

    family: str
    source: str
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    backward: bool | None = None
    widths: tuple[tuple[Span, Span], ...] = ()
    equal: bool = False
    square: bool = False
    multiple: int = 1
    window: bool = True
    sinks: bool = True
    since: str = ""
    pads: bool = False

    def wants(self) -> str:
        """Returns the conditions in words."""
        spans = ("/".join(f"{a}" if a == b else f"{a}-{b}" for a, b in pair) for pair in self.widths)
        words = (
            " ".join(self.archs),
            " ".join(self.dtypes),
            "head " + " or ".join(spans) if self.widths else "",
            "qk = v" if self.equal else "",
            "queries = keys" if self.square else "",
            f"lengths in {self.multiple}" if self.multiple > 1 else "",
            "" if self.window else "no window",
            "" if self.sinks else "no sinks",
        )
        return ", ".join(word for word in words if word)

    def takes(self, op: Attention, arch: str, built: str) -> bool:
        """Returns whether a build of ``built`` (month; empty: of today) runs ``op`` with this kernel on ``arch``."""
        qk, v = op.head_dim_qk, op.head_dim_v
        fits = (_within(qk, one) and _within(v, other) for one, other in self.widths)
        return (
            (not self.archs or arch in self.archs)
            and (not self.dtypes or op.dtype in self.dtypes)
            and self.backward in (None, op.backward)
            and (not self.widths or any(fits))
            and (not self.equal or qk == v)
            and (not self.square or op.seq_q == op.seq_k)
            and op.seq_q % self.multiple == op.seq_k % self.multiple == 0
            and (self.window or op.window is None)
            and (self.sinks or not op.sinks)
            and (not built or built >= self.since)
        )


def _within(width: int, span: Span) -> bool:
    return span[0] <= width <= span[1]


def _spans(text: str) -> tuple[Span, Span]:
    """Returns the spans of both widths in a text such as ``33-192/128``; a single span holds for both."""
    each = [tuple(map(int, span.split("-"))) for span in text.split("/")]
    return (each[0][0], each[0][-1]), (each[-1][0], each[-1][-1])


def _group(name: str) -> tuple[Kernel, ...]:
    """Returns the kernels of a group of ``attention_kernels.yaml``."""
    told = _FILE[name]
    return tuple(_kernel({**told["common"], **each}) for each in told["kernels"])


def _kernel(said: dict[str, Any]) -> Kernel:
    source = said.pop("source").format(arch=said.get("archs", [""])[0], why=said.pop("why", ""))
    rest = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    return Kernel(**{**rest, "widths": tuple(map(_spans, said.get("widths", ()))), "source": source})


_FILE: Mapping[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
_WIDE = ("bf16", "fp16", "fp32", "tf32")


def _sixteen_bit(kernel: Kernel) -> Kernel:
    """Returns the build of ``kernel`` that adds dQ with 16-bit atomics."""
    return replace(kernel, family="aiter_a16", square=True, multiple=64)


def _from_python(kernel: Kernel) -> Kernel:
    """Returns ``kernel`` for callers of AITER's Python functions, as Primus-Turbo is: their condition kept causal heads
    of 192/128 from the assembly backward on gfx950 (aiter/ops/mha.py, ``can_impl_fmha_v3_bwd_gfx950``: "and nmask",
    later without), and DeepSeek-V2-Lite ran Composable Kernel's with Turbo's attention in May 2026, forward in assembly
    (torch trace, AMD-AGI/Primus@7e45b589 pilot/pilot/state/runs/dsv2_lite_fp8_mi355x_20260511T024914Z_baseline). C++
    has its own."""
    kept = kernel.widths == (_spans("192/128"),) and kernel.archs == ("gfx950",)
    return replace(kernel, since="2026-06") if kept else kernel


_FORWARD, _BACKWARD, _CK = _group("forward assembly"), _group("backward assembly"), _group("ck")
_FA2, _NONE = _group("fa2"), _group("none")
KERNELS: Mapping[str, tuple[Kernel, ...]] = {
    "aiter": (*_FORWARD, *_BACKWARD, *_CK),
    "aiter_a16": (*_FORWARD, *map(_sixteen_bit, _BACKWARD), *_BACKWARD, *_CK),
    "aiter_python": (
        *_FORWARD,
        *(_sixteen_bit(_from_python(kernel)) for kernel in _BACKWARD),
        *map(_from_python, _BACKWARD),
        *_CK,
    ),
    **{name: (*_group(name), *_FA2, *_NONE) for name in ("fa3", "fa4")},
    "cudnn": (*_group("cudnn"), *(replace(each, equal=True) for each in _FA2), *_NONE),  # TE: "does not support MLA"
    "fa2": (*_FA2, *_NONE),
}
"""Kernels that a stack tries, best first, by the kernel that a profile names; one that is not here takes every call."""

_MONTHS = tuple(sorted({kernel.since for chain in KERNELS.values() for kernel in chain}))


def build_month(date: str | None) -> str:
    """Returns the last month until ``date`` in which a kernel was added (builds between two such months run alike), or
    ""."""
    if not date:
        return ""
    return max((month for month in _MONTHS if month <= date[:7]), default="") or "0000-00"


def first_matching(preferred: str, built: str, arch: str, op: Attention) -> Kernel | None:
    """Returns the first kernel of the stack's list that takes the call as it is; None without one, or without a list."""
    return next((kernel for kernel in KERNELS.get(preferred, ()) if kernel.takes(op, arch, built)), None)


@mechanism(off=lambda preferred, *call: (preferred.removesuffix("_python"), call[-1]))
def choose(preferred: str, built: str, arch: str, op: Attention) -> tuple[str, Attention]:
    """Returns (family of the kernel that runs, the operator as that kernel executes it)."""
    chain = KERNELS.get(preferred)
    if chain is None:
        return preferred, op
    found = first_matching(preferred, built, arch, op)
    if op.dtype not in _WIDE and (found is None or found.family == UNFUSED):
        return choose(preferred, built, arch, replace(op, dtype="bf16"))
    if found is None:
        return chain[-1].family, op
    if found.pads and op.head_dim_qk != op.head_dim_v:
        wide = most(op.head_dim_qk, op.head_dim_v)
        return found.family, replace(op, head_dim_qk=wide, head_dim_v=wide)
    return found.family, op
