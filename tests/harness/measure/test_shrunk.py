"""The shrink test's verdict: off by more than the limit fails, unless the measurements scatter by more than that."""

from __future__ import annotations

from harness.measure.shrunk import Shrunk, check


def _verdict(*found: tuple[float, float]) -> tuple[str, bool]:
    made = check("local", 0.08, [Shrunk(id=f"run{i}", error=error, spread=s) for i, (error, s) in enumerate(found)])
    return str(made).split()[0], made.passed


def test_only_quiet_measurements_judge() -> None:
    assert _verdict((0.05, 0.01), (-0.079, 0.08)) == ("PASS", True)
    assert _verdict((0.05, 0.01), (-0.09, 0.01)) == ("FAIL", False)
    assert _verdict((0.68, 0.3)) == ("INCONCLUSIVE", True)
    assert _verdict((0.02, 0.01), (0.5, 0.3)) == ("INCONCLUSIVE", True)
    assert _verdict((0.1, 0.01), (0.5, 0.3)) == ("FAIL", False)
    assert _verdict() == ("FAIL", False)
    said = str(check("local", 0.08, [Shrunk(id="llama-dp2", error=0.5, spread=0.3)]))
    assert "llama-dp2 +50.0% (spread 30%)" in said
