"""Which attention kernel a stack runs: what each kernel wants of a call, in the order in which the stack tries them.

A profile names the kernel that its stack prefers (``kernels: {attention: …}``). Where a call does not meet what that
kernel wants (head dimensions, type, lengths, window, sinks, direction, architecture, the date of the build), the next of
the list runs, without a word in any log. The last one takes every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from projector.dataclass import dataclass
from projector.mechanism import mechanism
from projector.operators.types import Attention
from projector.size import most

UNFUSED = "unfused"
"""No flash kernel: products and softmax over scores in memory."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a kernel wants of a call; what is left at its default does not matter.

    ``family``: whose constants price it. ``widths``: ranges of (qk, v); ``equal``: one width for both. ``square``: as many
    queries as keys; ``multiple``: of both lengths. ``window``, ``sinks``: whether it takes them. ``since``: the month from
    which builds have it. ``pads``: the narrower width is padded to the wider.
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
        """Returns the preconditions in words."""
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
        """Returns whether a build of ``built`` (month; empty: of today) runs ``op`` with it on ``arch``."""
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


def _square_widths(*spans: Span) -> tuple[tuple[Span, Span], ...]:
    return tuple((span, span) for span in spans)


_WIDE = ("bf16", "fp16", "fp32", "tf32")
_MLA = ((192, 192), (128, 128))
_AITER = "ROCm/aiter@e4048607 hsa/{0}/fmha_v3_{1}, csrc/cpp_itfs/mha_{1}.cu, aiter/ops/mha.py; {2}"
_TE = "NVIDIA/TransformerEngine@d0067d0da transformer_engine/common/fused_attn/fused_attn.cpp; {0}"


def _assembly(family: str, arch: str, backward: bool, widths: tuple[Span, Span], since: str, why: str) -> Kernel:
    """One of AITER's: no window, no sink."""
    return Kernel(
        family=family,
        archs=(arch,),
        backward=backward,
        dtypes=("bf16", "fp16") if backward else ("bf16",),
        widths=(widths,),
        equal=backward and widths != _MLA,
        window=False,
        sinks=False,
        since=since,
        source=_AITER.format(arch, "bwd" if backward else "fwd", why),
    )


_D128 = ((128, 128), (128, 128))
_CK = Kernel(family="ck", dtypes=_WIDE, source="ROCm/aiter@e4048607 aiter/ops/mha.py: what no assembly kernel takes")
_FORWARD_ASSEMBLY = (
    _assembly("aiter", "gfx942", False, _D128, "2025-07", "added 2025-07-10"),
    _assembly("aiter", "gfx942", False, _MLA, "2025-12", "PR 1474, 2025-12-16"),
    _assembly("aiter", "gfx950", False, _D128, "2025-05", "added 2025-05-19"),
    _assembly("aiter", "gfx950", False, _MLA, "2025-10", "added 2025-10-16"),
)
_BACKWARD_ASSEMBLY = (
    _assembly("aiter", "gfx942", True, ((33, 192), (33, 192)), "2025-03", "d128 2025-03-07, narrower ones padded"),
    _assembly("aiter", "gfx950", True, ((65, 128), (65, 128)), "2025-05", "added 2025-05-12"),
    # 64 is in its tables, and yet Composable Kernel ran it in May 2026 with every assembly kernel asked for (torch traces on
    # MI355X, AMD-AGI/Primus@7e45b589 pilot/pilot/state/runs/real_e2e_plan_graph_demo_baseline/trace_analysis.json)
    _assembly("aiter", "gfx950", True, ((129, 192), (129, 192)), "2025-08", "objects of gfx942 assembled anew"),
    _assembly("aiter", "gfx950", True, _MLA, "2025-11", "PR 1308, 2025-11-03; TransformerEngine from PR 364 on"),
)


def _sixteen_bit(kernel: Kernel) -> Kernel:
    """The build that adds dQ with 16-bit atomics."""
    return replace(kernel, family="aiter_a16", square=True, multiple=64)


def _from_python(kernel: Kernel) -> Kernel:
    """The same for callers of AITER's Python functions, as Primus-Turbo is: their condition kept causal heads of 192/128
    from the assembly backward on gfx950 (aiter/ops/mha.py, ``can_impl_fmha_v3_bwd_gfx950``: "and nmask", later without),
    and DeepSeek-V2-Lite ran Composable Kernel's with Turbo's attention in May 2026, forward in assembly (torch trace,
    AMD-AGI/Primus@7e45b589 pilot/pilot/state/runs/dsv2_lite_fp8_mi355x_20260511T024914Z_baseline). C++ has its own.
    """
    return replace(kernel, since="2026-06") if kernel.widths == (_MLA,) and kernel.archs == ("gfx950",) else kernel


_FA2 = Kernel(
    family="fa2",
    source="Dao-AILab/flash-attention@0251105a csrc/flash_attn: head dimensions up to 256, unequal ones padded",
    dtypes=_WIDE,
    widths=_square_widths((1, 256)),
    sinks=False,
    pads=True,
)
_NONE = Kernel(family=UNFUSED, source=_TE.format("unfused attention is the last choice"))
_CUDNN = (
    Kernel(
        family="cudnn", dtypes=("bf16", "fp16"), widths=_square_widths((1, 128)), source=_TE.format("up to 128 always")
    ),
    Kernel(
        family="cudnn",
        archs=("hopper",),
        dtypes=("bf16", "fp16"),
        widths=_square_widths((1, 256)),
        equal=True,
        since="2024-10",
        source=_TE.format("up to 256 on sm90 from cuDNN 9.5 (2024-10) on"),
    ),
    Kernel(
        family="cudnn",
        dtypes=("bf16", "fp16"),
        widths=(_MLA,),
        since="2024-12",
        source=_TE.format("192/128: cuDNN 9.7 on sm90, 9.11 on sm100"),
    ),
    Kernel(
        family="cudnn",
        archs=("blackwell", "blackwell_ultra"),
        dtypes=("bf16", "fp16"),
        widths=_square_widths((256, 256)),
        since="2026-05",
        source=_TE.format("256 on sm100 from cuDNN 9.23 on"),
    ),
    Kernel(
        family="cudnn",
        archs=("hopper",),
        dtypes=("fp8",),
        widths=(_D128,),
        source=_TE.format("8-bit on sm90 trains at 128 alone"),
    ),
    Kernel(
        family="cudnn",
        archs=("blackwell", "blackwell_ultra"),
        dtypes=("fp8",),
        widths=_square_widths((1, 128)),
        source=_TE.format("8-bit on sm100 up to 128 from cuDNN 9.7 on"),
    ),
    Kernel(
        family="cudnn",
        archs=("blackwell", "blackwell_ultra"),
        dtypes=("fp8",),
        widths=(_MLA,),
        since="2026-03",
        source=_TE.format("8-bit 192/128 on sm100 from cuDNN 9.21 on"),
    ),
)
_FA3 = Kernel(
    family="fa3",
    archs=("hopper",),
    widths=(*_square_widths((1, 256)), ((129, 192), (97, 128)), ((1, 64), (65, 512))),
    sinks=False,
    source="Dao-AILab/flash-attention@0251105a hopper/flash_api.cpp",
)
_FA4 = Kernel(
    family="fa4",
    archs=("blackwell", "blackwell_ultra"),
    dtypes=("bf16", "fp16"),
    widths=(*_square_widths((8, 128)), _MLA, *_square_widths((256, 256))),
    source="Dao-AILab/flash-attention@0251105a flash_attn/cute/interface.py: what it runs on sm100",
)

KERNELS: Mapping[str, tuple[Kernel, ...]] = {
    "aiter": (*_FORWARD_ASSEMBLY, *_BACKWARD_ASSEMBLY, _CK),
    "aiter_a16": (*_FORWARD_ASSEMBLY, *map(_sixteen_bit, _BACKWARD_ASSEMBLY), *_BACKWARD_ASSEMBLY, _CK),
    "aiter_python": (
        *_FORWARD_ASSEMBLY,
        *(_sixteen_bit(_from_python(kernel)) for kernel in _BACKWARD_ASSEMBLY),
        *map(_from_python, _BACKWARD_ASSEMBLY),
        _CK,
    ),
    "cudnn": (*_CUDNN, _FA2, _NONE),
    "fa3": (_FA3, _FA2, _NONE),
    "fa4": (_FA4, _FA2, _NONE),
    "fa2": (_FA2, _NONE),
}
"""By the kernel that a profile names, what the stack tries, best first; a kernel that is not here takes every call."""

_MONTHS = tuple(sorted({kernel.since for chain in KERNELS.values() for kernel in chain}))


def epoch(date: str | None) -> str:
    """The last month until ``date`` in which any kernel was added: builds between two such months run alike. Empty where
    no date is stated.
    """
    if not date:
        return ""
    return max((month for month in _MONTHS if month <= date[:7]), default="") or "0000-00"


def taker(preferred: str, built: str, arch: str, op: Attention) -> Kernel | None:
    """The first kernel of the stack's list that takes the call as it is; None where none does or no list is known."""
    return next((kernel for kernel in KERNELS.get(preferred, ()) if kernel.takes(op, arch, built)), None)


@mechanism(off=lambda preferred, *call: (preferred.removesuffix("_python"), call[-1]))
def choose(preferred: str, built: str, arch: str, op: Attention) -> tuple[str, Attention]:
    """(Family of the kernel that runs, the operator as that kernel executes it)."""
    chain = KERNELS.get(preferred)
    if chain is None:
        return preferred, op
    found = taker(preferred, built, arch, op)
    if op.dtype not in _WIDE and (found is None or found.family == UNFUSED):
        return choose(preferred, built, arch, replace(op, dtype="bf16"))
    if found is None:
        return chain[-1].family, op
    if found.pads and op.head_dim_qk != op.head_dim_v:
        wide = most(op.head_dim_qk, op.head_dim_v)
        return found.family, replace(op, head_dim_qk=wide, head_dim_v=wide)
    return found.family, op
