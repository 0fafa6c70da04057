"""A list that was made ready once gives what the list gives, under whatever constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.hardware.types import Efficiency
from projector.kernels.simulate import Simulated, arrange
from projector.mechanisms import Execution
from projector.operators.types import Gemm, GroupedGemm
from projector.parameter import Parameter

PRODUCT = Gemm(name="p", m=4096, n=4096, k=4096)
GROUPED = GroupedGemm(name="g", groups=8, rows=8192, n=2048, k=4096)
OPS = (
    PRODUCT,
    GROUPED,
    replace(PRODUCT, layout="NN", m=128),
    replace(PRODUCT, dtype="fp8", n=1024),
    replace(PRODUCT, m=777),
    replace(PRODUCT, accumulate=True),
    replace(GROUPED, groups=1),
    replace(PRODUCT, layout="NN", n=640),
)


def model(**values: float) -> Simulated:
    stated = {key.replace("__", "."): Parameter(value, "fitted", "") for key, value in values.items()}
    efficiency = Efficiency(gpu="h100_sxm", parameters={**load("h100_sxm").parameters, **stated})
    return Simulated(gpu("h100_sxm"), efficiency, Execution.of())


def test_arranged_once_is_the_same_to_the_bit_under_all_constants() -> None:
    given = arrange(OPS)
    found = []
    for constants in ({}, {"clock__matrix": 0.3}, {"clock__matrix": 0.9}):
        whole = model(**constants).arranged(given)
        assert (whole == model(**constants).fresh(OPS)).all()
        assert (whole == model(**constants).times(OPS).seconds).all()
        one_by_one = np.array([model(**constants).fresh([op])[0] for op in OPS])
        np.testing.assert_allclose(whole, one_by_one, rtol=1e-12)
        found.append(whole)
    assert (found[1] > found[2]).any(), "the constants are those of the model, not of the arrangement"


def test_nothing_is_nothing() -> None:
    assert model().fresh([]).shape == (0,)
