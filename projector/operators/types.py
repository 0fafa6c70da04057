"""Small immutable operators: what one rank executes, with the shapes that it sees.

Conventions. A GEMM is C[m,n] = A[m,k]·B[k,n], 2·m·n·k FLOP. Layouts are BLAS transposes as in the kernel tables: TN
forward of a linear, NN its data gradient, NT its weight gradient. Sizes of collectives follow nccl-tests: all-reduce the
buffer, all-gather the output, reduce-scatter the input, all-to-all the bytes one rank holds for all peers, itself
included; send-recv the message. ``launches`` counts kernels the host must issue for the operator.
"""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.parameter import parameter
from projector.size import least, real

GROUPED_STREAMS = parameter(
    4, kind="published", source="NVIDIA/TransformerEngine runs the GEMMs of GroupedLinear on four cuBLAS streams"
)
_BACKWARD = parameter(
    2.5,
    kind="derived",
    source="products of attention backward (scores anew, dV, dP, dQ, dK) over those of forward: 5 / 2",
)


@dataclass(frozen=True, slots=True)
class Gemm:
    """One dense matrix product. ``dtype``: operand type (bf16, fp16, fp32, tf32, fp8, mxfp8, mxfp4, nvfp4).

    ``scaling``: how 8- and 4-bit operands are scaled (``tensorwise``, ``rowwise``, ``blockwise``, ``mxfp8``, ``""``).
    ``out_bytes``: bytes of one output element; ``accumulate``: the output is read, added to and written (fp32 main_grad).
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    scaling: str = ""
    layout: str = "TN"
    out_bytes: float = 2.0
    accumulate: bool = False
    launches: int = 1

    def __hash__(self) -> int:
        return hash((self.name, self.m, self.n, self.k))

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm:
    """The same linear of ``groups`` local experts on ``rows`` routed tokens in all (``rows``/``groups`` each when balanced).

    ``n``, ``k``: output and reduction width as executed in this phase for fwd/dgrad (TN/NN); for wgrad (NT) the output
    is ``groups`` matrices [m=n_weight, n=k_weight] and the reduction runs over the rows: then ``n`` and ``k`` are the
    weight's dimensions and ``rows`` the reduction. ``backend``: ``fused``, ``multi_stream``, ``loop``.
    """

    name: str
    groups: int
    rows: int
    n: int
    k: int
    dtype: str = "bf16"
    scaling: str = ""
    layout: str = "TN"
    out_bytes: float = 2.0
    accumulate: bool = False
    backend: str = "multi_stream"
    launches: int = 1

    def __hash__(self) -> int:
        return hash((self.name, self.rows, self.n, self.k))

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Core attention of ``heads`` query and ``kv_heads`` key/value heads on one rank: the forward, or the whole
    backward.

    FLOP = 2·batch·heads·pairs·(head_dim_qk + head_dim_v) forward, 2.5 times that backward (five products for two);
    pairs = seq_q·seq_k, half of it when causal with seq_q = seq_k, w·s − w²/2 under a window w. ``keys``: how many a
    query sees on average where it chooses them (None: the mask says). ``dropout``: acts on scores in memory; ``wide``:
    their softmax is made in fp32 and cast; ``apart``: they are scaled and masked before it.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim_qk: int
    head_dim_v: int
    causal: bool = True
    window: int | None = None
    dtype: str = "bf16"
    backward: bool = False
    flash: bool = True
    dropout: bool = False
    wide: bool = False
    apart: bool = False
    sinks: bool = False
    keys: float | None = None
    launches: int = 1

    @property
    def pairs(self) -> float:
        """Returns the query-key pairs inside the mask of one head of one sequence."""
        q, s, w = real(self.seq_q), real(self.seq_k), self.window
        if self.keys is not None:
            return q * self.keys
        if not self.causal:
            return q * s
        if w is not None and w < s:
            return least(w, q) * s - least(w, q) ** 2 / 2 if q == s else q * w
        return q * s - q * q / 2

    @property
    def flops(self) -> float:
        once = 2.0 * self.batch * self.heads * self.pairs * (self.head_dim_qk + self.head_dim_v)
        return _BACKWARD * once if self.backward else once


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory-bound kernel (or a few of one kind): bytes read and written from device memory.

    ``kind`` selects the share of the stream rate it reaches: ``norm``, ``elementwise``, ``activation``, ``rope``,
    ``permute``, ``cast``, ``loss``, ``optimizer``, ``copy``, ``router``, ``gather``, ``scatter``, ``softmax``,
    ``transpose``, ``reduce`` (read only, as amax and norms of gradients), ``fill`` (written only), ``strided`` (an eager
    kernel that loads element by element: strided, broadcast or of two types).
    """

    name: str
    kind: str
    read: float
    write: float
    launches: int = 1

    def __hash__(self) -> int:
        return hash((self.name, self.read, self.write))

    @property
    def bytes(self) -> float:
        return self.read + self.write

    @property
    def flops(self) -> float:
        """Returns 0: arithmetic of a memory-bound kernel is not counted as FLOP."""
        return 0.0


def added(name: str, tensor: float, *, folded: bool) -> Stream:
    """Returns the sum of two tensors of ``tensor`` bytes each; ``folded`` into a neighbour's kernel it reads one more."""
    if folded:
        return Stream(name, "elementwise", tensor, 0.0, launches=0)
    return Stream(name, "elementwise", 2 * tensor, tensor)


Cost = tuple[float, float, int]
"""How often a kernel reads and writes a tensor (or: bytes read and written for each of its elements), and launches."""


def stream(name: str, kind: str, tensor: float, cost: Cost) -> Stream:
    """Returns the kernel that reads and writes a tensor of ``tensor`` bytes (or elements) as often as ``cost`` says."""
    read, write, launches = cost
    return Stream(name, kind, read * tensor, write * tensor, launches)


@dataclass(frozen=True, slots=True)
class Scan(Stream):
    """A kernel of a chunked recurrence: beside its bytes it has the FLOP (``work``) of its small products and, where
    chunks follow one another, the number of ``steps`` that one program makes. ``step``: what a step does, ``scale``
    (states are scaled and added), ``product`` (two dependent products) or ``element`` (a sum over a block of tokens;
    its FLOP are no products)."""

    work: float = 0.0
    steps: int = 0
    step: str = "scale"

    @property
    def flops(self) -> float:
        return self.work


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication of one group. ``group``: ``tp``, ``cp``, ``ep``, ``etp``, ``dp``, ``edp``, ``dp_shard``, ``pp``, …

    ``kind``: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``send_recv``.
    ``hides_behind``: names of operators of the same phase that run beside it on another stream; ``("@phase",)``: all
    compute of the phase. Exposed time = max(0, own time − time of what it hides behind). ``transport``: ``nccl`` (RCCL
    on AMD), ``one_shot`` (a compiler's kernel), ``deepep`` or ``hybridep``. ``nodes_bytes``: for token dispatch that
    deduplicates per node, bytes this rank sends to other nodes (None: derive); ``rows``: token rows that arrive at this
    rank. ``calls``: number of calls one after the other, each of an equal part of ``bytes``.
    """

    name: str
    kind: str
    group: str
    bytes: float
    hides_behind: tuple[str, ...] = ()
    transport: str = "nccl"
    nodes_bytes: float | None = None
    rows: float = 0.0
    launches: int = 1
    calls: int = 1


@dataclass(frozen=True, slots=True)
class HostWork:
    """Host time with no kernel of its own: ``microseconds`` of work and, if ``sync``, a wait until the device is
    idle."""

    name: str
    microseconds: float = 0.0
    launches: int = 0
    sync: bool = False


Operator = Gemm | GroupedGemm | Attention | Stream | Collective | HostWork
