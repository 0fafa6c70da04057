"""8-bit linears: what they compute, in the layout that kernels of GPUs take, cast as often as weights change; and what a
device lacks is refused before anything is timed."""

from dataclasses import replace
from typing import Any

import pytest
from asked import refusal

torch = pytest.importorskip("torch")

from benchmark_cases import tiny  # noqa: E402
from torch import nn  # noqa: E402

from projector.benchmark import layers_narrow, measured, source  # noqa: E402
from projector.benchmark.device import Device  # noqa: E402
from projector.benchmark.layers_moe import Experts  # noqa: E402
from projector.benchmark.layers_narrow import Way, converted, fresh, linear, way  # noqa: E402
from projector.benchmark.layers_parts import LayerSetup  # noqa: E402
from projector.errors import Unsupported  # noqa: E402
from projector.hardware import catalogue  # noqa: E402
from projector.projection import project  # noqa: E402
from projector.workload.workload import Workload  # noqa: E402

FP8 = torch.float8_e4m3fn
SCALINGS = ("tensorwise", "rowwise", "blockwise")


def _work(name: str = "llama3_8b", framework: str = "pytorch", **recipe: Any) -> Workload:
    stated = {"seq_length": 64, "precision": "fp8", "fp8_recipe": "tensorwise"}
    return tiny(name, framework=framework, **stated | recipe)


def _kernel(a: Any, b: Any, *, scale_a: Any, scale_b: Any, out_dtype: Any, use_fast_accum: bool) -> Any:
    """What ``torch._scaled_mm`` asks of its operands on a GPU (aten/src/ATen/native/cuda/Blas.cpp), and what it computes."""
    assert a.stride() == (a.shape[1], 1), "rows of the first lie in one piece"
    assert b.stride() == (1, b.shape[0]), "columns of the second lie in one piece"
    assert not b.shape[0] % 16 | b.shape[1] % 16
    assert {a.dtype, b.dtype} != {torch.float8_e5m2}
    (m, k), n = a.shape, b.shape[1]
    if scale_a.numel() == scale_b.numel() == 1:
        assert out_dtype in (torch.bfloat16, torch.float32)
        return ((a.float() @ b.float()) * scale_a * scale_b).to(out_dtype)
    if (scale_a.shape, scale_b.shape) == ((m, 1), (1, n)):
        assert use_fast_accum or k == 128  # one block of K, whose scales are those of rows
        return ((a.float() @ b.float()) * scale_a * scale_b).to(out_dtype)
    assert (*scale_a.shape, scale_a.stride(0)) == (m, k // 128, 1)
    whole = scale_b.shape == (k // 128, -(-n // 128))
    assert whole or (*scale_b.shape, scale_b.stride(0)) == (k // 128, n, n)
    wide_b = scale_b.repeat_interleave(128, 0)
    wide_b = wide_b.repeat_interleave(128, 1)[:, :n] if whole else wide_b
    return ((a.float() * scale_a.repeat_interleave(128, 1)) @ (b.float() * wide_b)).to(out_dtype)


def _off(made: Any, exact: Any) -> float:
    return float(((made.float() - exact.float()).norm() / exact.float().norm()).detach())


@pytest.mark.parametrize("strict", [True, False])
def test_products_and_gradients_are_those_of_wide_linears(strict: bool, monkeypatch, cpu: Device) -> None:
    if strict:
        monkeypatch.setattr(torch, "_scaled_mm", _kernel)
    torch.manual_seed(1)
    for scaling in SCALINGS if strict else SCALINGS[:2]:
        how = way(_work(fp8_recipe=scaling).recipe, cpu)
        shapes = ((256, 384, 256), (40, 256, 144), (7, 64, 48))
        for tokens, k, n in shapes if strict else shapes[1:]:
            x, w = torch.randn(tokens, k).bfloat16().requires_grad_(), torch.randn(n, k).requires_grad_()
            spiked = torch.ones(tokens, 1)
            spiked[0] = 1e6  # one scale a tensor loses the rest, finer ones do not
            g = torch.randn(tokens, n).bfloat16()
            for weight in (w, w.t().contiguous().t()):  # as linears have it, and as experts do
                y = linear(x, weight, how, {})
                dx, dw = torch.autograd.grad(y, (x, w), g)
                assert (y.dtype, dw.dtype) == (x.dtype, w.dtype)
                wide = x.float(), w.float()
                assert _off(y, wide[0] @ wide[1].t()) < 0.05, (scaling, tokens)
                assert max(_off(dx, g.float() @ wide[1]), _off(dw, g.float().t() @ wide[0])) < 0.08, (scaling, tokens)
            far = _off(linear(x * spiked.bfloat16(), w, how, {})[1:], (x @ w.t().bfloat16())[1:])
            assert (far > 0.2) == (scaling == "tensorwise"), (scaling, far)


def test_an_expert_that_nobody_chose_gives_nothing(cpu: Device) -> None:
    for scaling in SCALINGS:
        x, w = torch.zeros(0, 64, dtype=torch.bfloat16, requires_grad=True), torch.randn(32, 64, requires_grad=True)
        out = linear(x, w, way(_work(fp8_recipe=scaling).recipe, cpu), {})
        assert (out.shape, out.dtype) == ((0, 32), torch.bfloat16)
        out.sum().backward()
        assert not w.grad.any()


def test_weights_are_cast_once_a_step_and_those_of_shards_at_each_use(monkeypatch, cpu: Device) -> None:
    casts: list[tuple[int, ...]] = []
    plain = Way.both

    def counted(self: Way, x: Any, dtype: Any, rows: int = 1) -> Any:
        if rows > 1:
            casts.append(tuple(x.shape))
        return plain(self, x, dtype, rows)

    monkeypatch.setattr(Way, "both", counted)
    for kept, expected in ((True, 2), (False, 8)):
        casts.clear()
        module = converted(nn.Sequential(nn.Linear(64, 32)), _work(), cpu, kept)
        for _ in range(2):  # steps
            fresh(module)
            for _ in range(2):  # micro-batches
                module(torch.randn(16, 64, requires_grad=True)).sum().backward()
        assert len(casts) == expected


def test_routers_and_odd_widths_stay_wide_and_experts_do_not(cpu: Device) -> None:
    work = _work("mixtral_8x7b", moe_router_force_load_balancing=True, seq_length=40)
    work = replace(work, model=replace(work.model, moe=replace(work.model.moe, moe_ffn_hidden_size=96)))  # type: ignore[type-var]
    made = LayerSetup(work, "cpu")
    layer = converted(source.find("torch", made).layer(work.model.layer_kinds[0]), work, cpu)
    wide = {name for name, part in layer.named_modules() if isinstance(part, nn.Linear)}
    assert wide == {"mlp.router.linear"}
    names = {name for name, _ in layer.named_parameters()}
    assert names == {name for name, _ in source.find("torch", made).layer(work.model.layer_kinds[0]).named_parameters()}
    x = torch.randn(40, 64, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    (experts,) = (part for part in layer.modules() if isinstance(part, Experts))
    assert len(experts.kept) == 2 * work.model.moe.num_experts  # type: ignore[union-attr]
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in layer.parameters())
    assert isinstance(converted(nn.Sequential(nn.Linear(24, 32)), work, cpu)[0], nn.Linear)
    assert isinstance(converted(nn.Sequential(nn.Linear(32, 32)), _work(precision="bf16"), cpu)[0], nn.Linear)


def test_what_a_device_lacks_is_refused_before_anything_is_timed(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    here = catalogue.cluster("cpu")
    monkeypatch.setattr(measured, "_run", lambda *_: pytest.fail("timed"))
    with pytest.raises(Unsupported, match=r"scaled blockwise on .*: torch says"):
        measured.measure(_work(fp8_recipe="blockwise"), here, cpu, layers="torch")
    monkeypatch.delattr(torch, "_scaled_mm")
    refusal(measured.measure, _work(), here, cpu, layers="torch", match="_scaled_mm", kind=Unsupported)
    with pytest.raises(Unsupported, match="try --layers megatron"):
        way(_work(precision="mxfp8", fp8_recipe="mxfp8").recipe, cpu)


def test_amd_has_types_of_its_own(cpu: Device) -> None:
    ours = replace(cpu, type="cuda", arch="gfx942", vendor="amd")
    assert way(_work().recipe, ours).operand == torch.float8_e4m3fnuz
    assert way(_work().recipe, ours).gradient == torch.float8_e5m2fnuz
    assert way(_work(fp8_recipe="rowwise").recipe, ours).gradient == torch.float8_e4m3fnuz
    assert way(_work().recipe, replace(ours, arch="gfx950")).operand == FP8


def test_a_step_of_8_bit_linears_is_timed_and_not_put_back(cpu: Device) -> None:
    here = catalogue.cluster("cpu")
    for scaling, framework, eager in (("tensorwise", "pytorch", ""), ("delayed", "megatron-lm", "fp8_recipe")):
        work = _work(framework=framework, fp8_recipe=scaling, seq_length=16)  # a CPU multiplies 8 bits one by one
        found = measured.measure(work, here, cpu, layers="torch", budget=0.01, most=1)
        assert found.asked.workload.recipe.precision == "fp8"
        assert not any("bf16" in note for note in found.notes)
        assert {"first forward layer dense", "forward layer dense"} <= set(found.timings.laps)
        assert eager in found.eager(project(work, here).resolved)
        assert measured.restore(found, work, here).step_seconds > 0


def test_what_torch_cannot_scale_is_timed_in_bf16_and_said(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    here = catalogue.cluster("cpu")
    asked, notes = measured.planned(_work(precision="mxfp8", fp8_recipe="mxfp8"), here, cpu, layers="torch", budget=0.1)
    assert asked.workload.recipe.precision == "bf16"
    assert any("linears run in bf16" in note for note in notes)
    monkeypatch.setattr(layers_narrow, "check", lambda *_: None)
    for layers, engine, narrow in (("megatron", True, True), ("megatron", False, False), ("auto", True, True)):
        monkeypatch.setattr("projector.benchmark.layers_megatron.installed", lambda: True)
        monkeypatch.setattr("projector.benchmark.layers_megatron.fused", lambda _, engine=engine: engine)
        recipe = _work(precision="mxfp8", fp8_recipe="mxfp8").recipe
        assert measured.narrow(recipe, 8, layers, replace(cpu, type="cuda")) is narrow
    assert not measured.narrow(_work().recipe, 2, "torch", cpu)
    assert measured.narrow(_work().recipe, 1, "torch", cpu)
