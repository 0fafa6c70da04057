"""Which attention rows are fitted together: families before those that resemble them, few parameters, sane priors."""

from __future__ import annotations

from harness.kernels.attention_sets import sets
from projector.kernels.tables import Measured
from projector.operators.types import Attention


def row(family: str, seq: int, heads: int = 16, condition: str = "published", **changes: int | bool | str) -> Measured:
    cells = {"head_dim_qk": 128, "head_dim_v": 128, "causal": True, "backward": False, "dtype": "bf16", **changes}
    op = Attention(name="", batch=1, heads=heads, kv_heads=heads, seq_q=seq, seq_k=seq, **cells)  # type: ignore[arg-type]
    return Measured(op=op, family=family, seconds=1e-3, condition=condition, source="a paper")


def stems(family: str, rows: list[Measured]) -> list[str]:
    return [key.split(".")[2] for one in sets(rows) if one.family == family for key in one.keys]


def test_a_family_comes_before_those_that_resemble_it() -> None:
    rows = [row(family, seq) for family in ("aiter", "aiter_a16", "asm", "opus") for seq in (512, 1024, 2048)]
    assert next(one.family for one in sets(rows)) == "aiter"


def test_rows_carry_what_they_can_tell() -> None:
    few = [row("fa3", seq) for seq in (1024, 2048, 4096)]
    assert stems("fa3", few) == ["loop"]
    many = [row("fa3", 512 * n, causal=n % 2 == 0, head_dim_qk=d, head_dim_v=d) for n in range(1, 9) for d in (64, 128)]
    assert set(stems("fa3", many)) == {"loop", "overlap", "prologue_us", "mask", "softmax"}
    paired = [row("aiter", 512 * n) for n in range(1, 20)]
    assert set(stems("aiter", paired)) == {"loop", "overlap", "prologue_us", "launch_us", "power"}
    timed = [row("cudnn", 4096, heads, condition="framework average") for heads in (4, 8, 16, 32)]
    assert set(stems("cudnn", timed)) == {"loop", "launch_us"}


def test_unequal_head_dimensions_are_another_kernel_where_nothing_explains_them() -> None:
    def titles(family: str) -> list[str]:
        rows = [row(family, 1024 * n, head_dim_qk=d) for n in range(1, 4) for d in (128, 192)]
        return [one.title for one in sets(rows)]

    assert [t.endswith("d192") for t in titles("cudnn")] == [False, True]
    assert len(titles("fa2")) == len(titles("opus")) == 1  # operand fetch explains it; scaled from another family


def test_priors_lie_inside_their_bounds_and_are_few() -> None:
    dims = (64, 128, 192, 256)
    rows = [
        row(f, 512 * n, head_dim_qk=d, head_dim_v=d) for f in ("fa2", "fa3", "aiter") for n in (1, 2, 8) for d in dims
    ]
    for one in sets(rows):
        assert len(one.keys) <= 6
        assert all(low <= prior <= high and low < high for prior, low, high in one.keys.values())
