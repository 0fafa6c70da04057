"""Megatron-LM's own modules (``--transformer-impl local``) against Transformer Engine's, and functions scripted for a
compiler that is not there."""

from __future__ import annotations

import pytest

from projector import project
from projector.errors import InputError
from projector.frameworks.resolve import resolve
from projector.frameworks.types import Resolved
from projector.hardware import catalogue
from projector.layers.lower import layer
from projector.operators.part import Block
from projector.operators.types import Stream
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

FLASH = {"transformer_impl": "local", "attention_backend": "flash"}


def made(model: str = "llama3_8b", framework: str = "megatron-lm", date: str = "2023-10", **recipe: object) -> Resolved:
    stated = {"micro_batch_size": 2, "global_batch_size": 64, "seq_length": 2048, "tp": 2} | recipe
    work = Workload(model=zoo.load(model), recipe=Recipe(**stated), gpus=8, framework=framework, framework_date=date)  # type: ignore[arg-type]
    return resolve(work, "nvidia", "hopper")


def block(found: Resolved) -> Block:
    return layer(found.workload.model.layer_kinds[-1], found)


def streams(found: Resolved, *names: str) -> dict[str, Stream]:
    made = block(found)
    every = (*made.forward, *made.backward_input)
    return {op.name: op for op in every if isinstance(op, Stream) and op.name.removesuffix(".bwd") in names}


def test_the_default_changed_in_april_2024() -> None:
    """NVIDIA/Megatron-LM e7b74a4b7e (2024-04-03)."""
    for date, expected in (("2023-10", "local"), ("2024-03", "local"), ("2024-04", "transformer_engine"), ("", "")):
        found = made(date=date)
        assert found.workload.recipe.transformer_impl == (expected or "transformer_engine")
        assert found.execution.fusion.attention_materialised is (expected == "local")
        assert found.execution.fusion.norm is (expected != "local")
        assert found.execution.kernels.attention == ("fa2" if expected == "local" else "cudnn")


def test_what_is_stated_wins_and_8_bits_need_transformer_engine() -> None:
    assert not made(transformer_impl="transformer_engine").execution.fusion.attention_materialised
    assert made(transformer_impl="local", date="2026-01").execution.fusion.attention_materialised
    assert made(precision="fp8").workload.recipe.transformer_impl == "transformer_engine"
    with pytest.raises(InputError, match=r"recipe\.transformer_impl: found 'local', expected transformer_engine"):
        project(made(precision="fp8", transformer_impl="local").workload, catalogue.cluster("h100_sxm"))


@pytest.mark.parametrize("framework", ["megatron-bridge", "nemo", "mlperf"])
def test_recipes_that_name_transformer_engine_have_it_at_any_date(framework: str) -> None:
    """NeMo's configurations set ``transformer_engine``; a rule of the parent changes no default of a child."""
    assert made(framework=framework).workload.recipe.transformer_impl == "transformer_engine"


def test_a_checkpoint_of_core_attention_is_for_scores_in_memory() -> None:
    kept = {
        impl: made(transformer_impl=impl, recompute_granularity="selective") for impl in ("local", "transformer_engine")
    }
    assert {each.workload.recipe.recompute_modules for each in kept.values()} == {("core_attn",)}
    assert made(**FLASH, recompute_granularity="selective").workload.recipe.recompute_modules == ()
    assert made(
        **FLASH, recompute_granularity="selective", recompute_modules=("mlp",)
    ).workload.recipe.recompute_modules == ("mlp",)


def test_gate_and_product_are_kernels_of_their_own() -> None:
    assert streams(made(**FLASH), "act")["act"].launches == 3
    assert streams(made("gpt3_175b", **FLASH), "act")["act"].launches == 1  # with its bias: scripted, and joined
    assert streams(made(transformer_impl="transformer_engine"), "act")["act"].launches == 1


class Counted:
    """A tensor that counts what elementary kernels read and write of tensors of its size."""

    def __init__(self, traffic: list[int]) -> None:
        self.traffic = traffic

    def _with(self, *others: object) -> Counted:
        self.traffic[0] += len({id(each) for each in (self, *others) if isinstance(each, Counted)})
        self.traffic[1] += 1
        return Counted(self.traffic)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _with
    tanh = _with


def _bias_gelu(x: Counted) -> Counted:
    return x * 0.5 * (1.0 + (0.79788456 * x * (1 + 0.044715 * x * x)).tanh())


def _its_gradient(g: Counted, x: Counted) -> Counted:
    t = (0.79788456 * x * (1 + 0.044715 * x * x)).tanh()
    return (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * g


def test_a_scripted_function_that_nothing_joins_runs_operator_by_operator() -> None:
    """The formulas of GELU by tanh and of its gradient, each operator with a round trip through memory; the bias first."""
    found = streams(made("gpt3_175b", **FLASH, jit_fusion=False), "act", "attn_residual")
    tensor = 2.0 * 2 * 2048 * 4 * 12288 / 2
    for name, formula in (("act", _bias_gelu), ("act.bwd", lambda x: _its_gradient(Counted(x.traffic), x))):
        traffic = [0, 0]
        formula(Counted(traffic)._with())  # type: ignore[operator]
        op = found[name]
        assert (op.read / tensor, op.write / tensor, op.launches) == (traffic[0], traffic[1], traffic[1]), name
    joined = streams(made("gpt3_175b", **FLASH), "act", "attn_residual")
    assert joined["act"].launches == joined["attn_residual"].launches == 1
    assert found["attn_residual"].launches == 2
    assert found["attn_residual"].read == pytest.approx(1.5 * joined["attn_residual"].read)


def test_what_is_not_scripted_does_not_ask_for_that_compiler() -> None:
    for model in ("llama3_8b", "gpt3_175b"):
        stated = dict(FLASH, bias_activation_fusion=False, jit_fusion=False) if model == "gpt3_175b" else dict(FLASH)
        with_one, without = (streams(made(model, **stated | {"jit_fusion": on}), "act") for on in (True, False))
        assert with_one == without


def test_megatron_deepspeed_keeps_its_own_modules() -> None:
    """Scores in memory unless flash is named, Apex's RMSNorm, and no compiler for scripted functions since PyTorch 2.2."""
    for date, joined in (("2022-02", True), ("2024-01", True), ("2024-04", False)):
        found = made(framework="megatron-deepspeed", date=date)
        assert found.workload.recipe.transformer_impl == "local"
        assert found.workload.recipe.jit_fusion is joined
        assert found.execution.fusion.norm
        assert found.execution.fusion.attention_materialised
    assert made(framework="flagscale").execution.fusion.norm
