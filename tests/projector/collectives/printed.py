"""Times laid out as nccl-tests prints them (NVIDIA/nccl-tests@a0b82b2 src/util.cu)."""

from collections.abc import Iterable

from tabled import tabled

NAMES = tabled("collectives", "nccl_tests")
HEAD = "size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
H100 = "NVIDIA H100 80GB HBM3"


def factor(kind: str, ranks: int) -> float:
    return {"all_reduce": 2.0, "broadcast": ranks / (ranks - 1), "send_recv": ranks / (ranks - 1)}.get(kind, 1.0) * (
        (ranks - 1) / ranks
    )


def ranks(hosts: int, each: int, device: str = H100) -> list[str]:
    """The lines that name every rank."""
    places = [(rank, f"host-{rank // each}", rank % each) for rank in range(hosts * each)]
    return [
        f"#  Rank {rank:2d} Group  0 Pid     70 on {host:>10} device {at:2d} [0x1f] {device}"
        for rank, host, at in places
    ]


def row(nbytes: float, seconds: float, kind: str, ranks: int, wrong: str = "0", again: bool = True) -> str:
    rate = nbytes / seconds / 1e9
    once = f"  {seconds * 1e6:9.4f}  {rate:8.4f}  {rate * factor(kind, ranks):8.4f}  {wrong:>5}"
    return f"{nbytes:12.0f}  {nbytes / 4:12.0f}     float  {NAMES[kind][1]:>6}      -1{once}{once if again else ''}"


def output(
    kind: str,
    hosts: int,
    each: int,
    times: Iterable[tuple[float, float]],
    *,
    named: bool = True,
    gpus: int = 1,
    device: str = H100,
    wrong: str = "0",
    again: bool = True,
) -> str:
    """One test with the (bytes, seconds) of ``times``."""
    name = f"{NAMES[kind][0]}_perf"
    return "\n".join(
        [
            *([f"# Collective test starting: {name}"] if named else []),
            f"# nThread 1 nGpus {gpus} minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 graph: 0",
            "#", "# Using devices", *ranks(hosts, each, device), "#",
            "#                                                out-of-place                       in-place",
            f"#       {HEAD if again else HEAD.rsplit('     time', 1)[0]}",
            "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
            *(row(nbytes, seconds, kind, hosts * each, wrong, again) for nbytes, seconds in times),
            "# Out of bounds values : 0 OK", *([f"# Collective test concluded: {name}"] if named else []), "",
        ]
    )  # fmt: skip
