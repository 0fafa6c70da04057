"""Real text spreads tokens over experts less evenly than tokens drawn at random."""

from __future__ import annotations

import pytest

from projector.frameworks import load, resolve
from projector.layers.lower import layer
from projector.operators.types import GroupedGemm
from tests.workloads import workload


def resolved(framework: str = "megatron-lm", **changes: object):  # type: ignore[no-untyped-def]
    stated = {"ep": 8, "moe_router_force_load_balancing": False} | changes
    return resolve(workload("deepseek_v2_lite", framework=framework, **stated), "nvidia", "hopper")


def expert_rows(made) -> int:  # type: ignore[no-untyped-def]
    kind = made.workload.model.layer_kinds[-1]
    return max(op.rows for op in layer(kind, made).forward if isinstance(op, GroupedGemm))


def test_forced_balance_then_random_tokens_then_text() -> None:
    forced, mock, text = (
        resolved(moe_router_force_load_balancing=True, mock_data=False),
        resolved(mock_data=True),
        resolved(mock_data=False),
    )
    spread = [made.execution.dispatch.unevenness(made.workload.recipe) for made in (forced, mock, text)]
    assert spread[0] == 0.0 < spread[1] < spread[2]
    assert expert_rows(forced) < expert_rows(mock) < expert_rows(text)


def test_nothing_said_is_a_benchmark_on_random_tokens() -> None:
    assert resolved().workload.recipe.mock_data is True


@pytest.mark.parametrize("framework", ["megatron-lm", "primus", "maxtext"])
def test_each_framework_says_how_uneven_text_is(framework: str) -> None:
    assert load(framework).name == framework
    made = resolved(framework)
    assert made.execution.dispatch.real_data_dispersion > made.execution.dispatch.dispersion
