"""Scores of the kernel models: fits recover what made the rows, whole groups stay unseen, baselines, crossval."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked import refusal

from harness.kernels import calibrate, crossval, model
from harness.kernels import fit as fitting
from harness.kernels.fit import Set, fit, folds_of, group_of
from harness.kernels.schema import Row
from harness.kernels.score import errors, fitted, fixed, of_new_weights, score
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency_file import stored
from projector.hardware.types import Efficiency
from projector.kernels.simulate import Simulated
from projector.kernels.tables import Measured
from projector.kernels.traffic import unique_bytes
from projector.mechanisms import Execution
from projector.operators.types import Attention, Gemm, GroupedGemm, Stream
from projector.parameter import Parameter

SHAPES = [(m, n, k) for m in (2048, 4096, 6144, 8192) for n in (2048, 4096, 8192) for k in (1024, 4096, 8192)]


def rows_of(ops: Sequence[Gemm], seconds: Sequence[float], family: str = "cublaslt") -> list[Row]:
    return [
        Row("a100_sxm_80gb", Measured(op, family, float(t), "published", "made up"), f"t.csv:{i}", "gemm")
        for i, (op, t) in enumerate(zip(ops, seconds, strict=True), start=2)
    ]


def truth(loop: float, launch: float, shrink: int = 1) -> list[Row]:
    """Rows as a device would give them whose constants are known."""
    ops = [Gemm(name="", m=m // shrink, n=n, k=k) for m, n, k in SHAPES]
    base = calibrate.unfitted("a100_sxm_80gb").parameters
    own = {"gemm.loop.bf16": Parameter(loop, "fitted", ""), "gemm.launch_us.bf16": Parameter(launch, "fitted", "")}
    efficiency = Efficiency(gpu="a100_sxm_80gb", parameters={**base, **own})
    model_ = Simulated(gpu("a100_sxm_80gb"), efficiency, Execution.of(kernels={"gemm": "cublaslt"}))
    return rows_of(ops, list(model_.times(ops).seconds))


def test_a_fit_recovers_the_constants_that_made_the_rows() -> None:
    rows = tuple(row.measured for row in [*truth(0.62, 7.0), *truth(0.62, 7.0, shrink=16)])
    keys = {"gemm.loop.bf16": (0.8, 0.3, 1.0), "gemm.launch_us.bf16": (3.0, 1.0, 10.0)}
    data = Set("made up", rows, "cublaslt", keys)
    outcome = fit(data, gpu("a100_sxm_80gb"), calibrate.unfitted("a100_sxm_80gb"))
    assert outcome.values["gemm.loop.bf16"].value == pytest.approx(0.62, rel=0.01)
    assert outcome.values["gemm.launch_us.bf16"].value == pytest.approx(7.0, abs=1.0)
    assert outcome.values["gemm.loop.bf16"].kind == "fitted"
    assert np.abs(outcome.heldout).mean() < 0.01
    assert outcome.groups == 8  # (4096, 8192) and (8192, 4096) are one weight


def test_whole_groups_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fit that judges a row may have seen a row of the same (n, k)."""
    groups: dict[str, list[set[object]]] = {"solve": [], "predict": []}

    def watch(name: str) -> None:
        plain = getattr(fitting, name)

        def spy(data: Set, *args: Any, **more: Any) -> object:
            groups[name].append({group_of(data.rows[i].op) for i in args[1]})
            return plain(data, *args, **more)

        monkeypatch.setattr(fitting, name, spy)

    for name in groups:
        watch(name)
    seen, judged = groups.values()
    rows = tuple(row.measured for row in truth(0.7, 3.0))
    everything = {group_of(row.op) for row in rows}
    data = Set("made up", rows, "cublaslt", {"gemm.loop.bf16": (0.8, 0.3, 1.0)})
    fit(data, gpu("a100_sxm_80gb"), calibrate.unfitted("a100_sxm_80gb"))
    assert seen[0] == everything
    left = [everything - some for some in seen[1:]]
    assert set.union(*left) == everything
    assert sum(map(len, left)) == len(everything)
    assert all(some in judged for some in left)


def test_folds_keep_groups_whole_and_do_not_change() -> None:
    groups = [i % 7 for i in range(70)]
    fold = folds_of(groups)
    assert all(len({f for f, g in zip(fold, groups, strict=True) if g == group}) == 1 for group in range(7))
    assert set(fold) == set(range(5))
    assert (fold == folds_of(groups)).all()
    assert set(folds_of(["a", "a", "b"])) == {0, 1}


def test_neighbours_are_one_group() -> None:
    op = Gemm(name="", m=1, n=5, k=7)
    assert group_of(op) == group_of(replace(op, m=9, layout="NT", batch=3)) == group_of(replace(op, n=7, k=5))
    flash = Attention(name="", batch=2, heads=8, kv_heads=8, seq_q=9, seq_k=9, head_dim_qk=64, head_dim_v=64)
    assert group_of(flash) == group_of(replace(flash, causal=False, backward=True))
    experts = GroupedGemm(name="", groups=4, rows=64, n=5, k=7)
    assert group_of(experts) == group_of(replace(experts, n=7, k=5, layout="NN", rows=8))
    assert group_of(experts) != group_of(replace(experts, groups=8))


def test_a_new_weight_counts_once() -> None:
    """Many rows of one weight weigh as much as one row of another; the row-wise mean does not do that."""
    rows = truth(0.7, 3.0)
    made = score(rows)
    held = np.abs(made.error("heldout"))
    new = of_new_weights(made, range(len(rows)))
    weights = {group_of(row.measured.op) for row in rows}
    means = [
        held[[i for i, row in enumerate(rows) if group_of(row.measured.op) == w and made.large[i]]].mean()
        for w in weights
    ]
    assert new.n == len(weights)
    assert new.mape == pytest.approx(np.mean(means))
    assert of_new_weights(score(rows, cross_validate=False), range(len(rows))) is None


def test_few_groups_give_no_number() -> None:
    rows = [row for row in truth(0.7, 3.0) if group_of(row.measured.op)[0] == 2048]
    assert set(crossval.held_out(rows * 1)[1]) <= {"too few", "not fitted"}
    assert np.isnan(fitted(rows)).all()


def test_a_broken_constant_raises_the_score() -> None:
    rows = truth(0.7, 3.0)
    base = calibrate.unfitted("a100_sxm_80gb").parameters
    times = np.array([row.measured.seconds for row in rows])

    def wrong(loop: float) -> float:
        own = {"gemm.loop.bf16": Parameter(loop, "fitted", ""), "gemm.launch_us.bf16": Parameter(3.0, "fitted", "")}
        efficiency = Efficiency(gpu="a100_sxm_80gb", parameters={**base, **own})
        found = errors(model.seconds(rows, efficiency) / times - 1.0)
        return found.mape

    assert wrong(0.7) < 1e-6
    assert wrong(0.35) > 0.5


def test_a_roofline_is_recovered_and_the_rule_of_thumb_is_what_it_says() -> None:
    ops = [Gemm(name="", m=m, n=n, k=k) for m, n, k in SHAPES]
    device = gpu("a100_sxm_80gb")
    compute = np.array([op.flops for op in ops]) / device.peak_of("bf16")
    memory = np.array([unique_bytes(op) for op in ops]) / device.memory_bandwidth
    rows = rows_of(ops, list(np.maximum(compute / 0.45, memory / 0.7) + 2e-5))
    np.testing.assert_allclose(fitted(rows), [row.measured.seconds for row in rows], rtol=0.02)
    np.testing.assert_allclose(fixed(rows), np.maximum(compute / 0.6, memory / 0.8))


def test_unique_bytes() -> None:
    assert unique_bytes(Gemm(name="", m=2, n=3, k=5, accumulate=True, out_bytes=4)) == 2 * (10 + 15) + 2 * 4 * 6
    assert unique_bytes(GroupedGemm(name="", groups=2, rows=8, n=3, k=5)) == 2 * (8 * 5 + 2 * 15) + 2 * 24
    assert unique_bytes(GroupedGemm(name="", groups=2, rows=8, n=3, k=5, layout="NT")) == 2 * 8 * 8 + 2 * 30
    flash = Attention(name="", batch=1, heads=2, kv_heads=1, seq_q=4, seq_k=4, head_dim_qk=8, head_dim_v=8)
    assert unique_bytes(flash) == 16 * (8 + 4) * 2
    assert unique_bytes(Stream(name="", kind="copy", read=5.0, write=6.0)) == 11.0


def test_transfer_takes_nothing_from_the_gpu_itself() -> None:
    for name in calibrate.measured_gpus():
        left = crossval.without(name).parameters
        assert crossval.donor(name)
        for stem in (name, calibrate.REFERENCE.get(name, name)):
            own = {(k, p.source) for k, p in stored(calibrate.FOLDER / f"{stem}.yaml").items() if p.kind == "fitted"}
            assert not own & {(k, p.source) for k, p in left.items()}, name
    assert crossval.donor("h200") == "hopper"  # fitted on another GPU
    assert (crossval.donor("mi300x"), crossval.donor("b200")) == ("gfx950", "blackwell_ultra")


def test_statistics() -> None:
    found = errors(np.array([0.1, -0.3, np.nan, 0.2]))
    assert (found.n, found.mape, found.median) == (3, pytest.approx(0.2), pytest.approx(0.2))
    assert found.bias == pytest.approx(0.0)
    assert errors(np.array([np.nan])) is None


def test_scoring_is_deterministic_and_says_what_was_seen() -> None:
    rows = truth(0.7, 3.0)
    one, two = score(rows), score(rows)
    for fit_name, times in one.seconds.items():
        np.testing.assert_array_equal(times, two.seconds[fit_name])
    assert not one.seen.any()
    assert set(score(rows, cross_validate=False).how) == {"not asked for"}


def test_constants_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "FOLDER", tmp_path)
    (tmp_path / "g.yaml").write_text(
        "parameters:\n"
        "  a: {value: 1.0, unit: W s/TFLOP, kind: datasheet, source: s, scored: true}\n"
        "  gemm.old: {value: 2.0, kind: fitted, source: s}\n",
        encoding="utf-8",
    )
    calibrate.store("g", {"attention.b": Parameter(0.5, "fitted", "some rows", 0.4, 0.6)}, ("attention",))
    assert set(stored(tmp_path / "g.yaml")) == {"a", "gemm.old", "attention.b"}  # another kind's fit stays
    calibrate.store("g", {"gemm.b": Parameter(0.5, "fitted", "some rows", 0.4, 0.6)})
    kept = stored(tmp_path / "g.yaml")
    assert set(kept) == {"a", "gemm.b"}
    assert (kept["gemm.b"].low, kept["gemm.b"].high) == (0.4, 0.6)
    assert [p.name for p in tmp_path.iterdir()] == ["g.yaml"]
    assert (kept["a"].unit, kept["a"].scored) == ("W s/TFLOP", True)
    monkeypatch.setattr(calibrate, "FOLDER", tmp_path / "g.yaml")
    refusal(calibrate.store, "h", kept, match="a file that can be written")
