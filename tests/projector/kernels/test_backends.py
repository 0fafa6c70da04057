"""GEMM backends: chosen by name, offered by other packages, and the adapter to AMD Origami on a stand-in of it."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from asked import refusal, says
from tabled import tabled

from harness.cli import main as harness
from projector.errors import InputError, Unsupported
from projector.hardware import clock
from projector.hardware.catalogue import gpu
from projector.hardware.efficiency import load
from projector.kernels import backends
from projector.kernels.backends.origami import Origami
from projector.kernels.constants import pick
from projector.kernels.settings import Settings
from projector.kernels.simulate import Simulated
from projector.mechanisms import Execution
from projector.operators.types import Gemm, GroupedGemm, Stream
from tests.projector.kernels.origami_package import DEVELOPMENT, RELEASED, build

SQUARE = Gemm(name="square", m=4096, n=8192, k=2048)
ROUTED = GroupedGemm(name="experts", groups=8, rows=4096, n=2048, k=1024)
NORM = Stream(name="norm", kind="norm", read=1e8, write=1e8)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Puts a module where ``import origami`` finds it."""

    def put(variant: str, **options: Any) -> ModuleType:
        module = build(variant, **options)
        monkeypatch.setitem(sys.modules, "origami", module)
        return module

    return put


def origami(gpu_name: str) -> Origami:
    return Origami(gpu(gpu_name), load(gpu_name))


def simulated(gpu_name: str) -> Simulated:
    return Simulated(gpu(gpu_name), load(gpu_name), Execution())


def only(error: pytest.ExceptionInfo[InputError]) -> str:
    """The single line of a refusal."""
    assert len(error.value.problems) == 1
    assert "\n" not in str(error.value)
    return str(error.value)


# -- by name -----------------------------------------------------------------------------------------------------------


class Tenth:
    """A backend of another package: a tenth of the peak."""

    def __init__(self, device: Any, efficiency: Any) -> None:
        self.peak = device.peak

    def seconds(self, ops: Sequence[Gemm]) -> Any:
        return np.array([op.flops / (0.1 * self.peak[op.dtype]) for op in ops])


def offer(monkeypatch: pytest.MonkeyPatch, target: str, name: str = "tenth") -> None:
    entry = metadata.EntryPoint(name=name, value=target, group=backends.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] if group == backends.GROUP else [])


def test_a_backend_of_another_package_prices_dense_products_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, f"{__name__}:Tenth")
    assert backends.names() == ("builtin", "origami", "tenth")
    backends.check("tenth")
    ours = simulated("h100_sxm")
    model = backends.over("tenth", gpu("h100_sxm"), load("h100_sxm"), ours)
    found = model.times([NORM, SQUARE, ROUTED])
    expected = ours.times([NORM, ROUTED]).seconds
    assert found.seconds[[0, 2]] == pytest.approx(expected, rel=0)
    assert found.seconds[1] == pytest.approx(SQUARE.flops / (0.1 * gpu("h100_sxm").peak["bf16"]))
    assert not found.measured.any()
    assert model.name == "tenth"
    assert len(model.times([]).seconds) == 0


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        backends.check("orgami")
    assert only(error) == "--gemm-backend: found 'orgami', expected a known name; nearest: origami"


@pytest.mark.parametrize("target", ["no_such_package_of_anybody:Backend", "json:NoSuchName"])
def test_an_offer_that_cannot_be_imported_is_an_input_error(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    offer(monkeypatch, target)
    with pytest.raises(InputError) as error:
        backends.check("tenth")
    assert target in only(error)


@pytest.mark.parametrize("answer", [[0.0], [float("nan")], [1.0, 1.0], []])
def test_times_that_are_none_are_refused_in_words(answer: list[float]) -> None:
    broken = type("Broken", (), {"seconds": lambda self, ops: np.array(answer)})()
    model = backends.WithBackend("broken", broken, simulated("mi300x"))
    refusal(model.times, [SQUARE], match="GEMM backend broken gave", kind=Unsupported)


def test_settings_report_every_mistake_at_once() -> None:
    error = refusal(Settings(gemm_backend="nobody", gpu_clock_mhz=-1.0, power_cap_watts=0.0).check)
    assert [problem.where for problem in error.problems] == ["--gpu-clock-mhz", "--power-cap-watts", "--gemm-backend"]


# -- Origami: found or not ---------------------------------------------------------------------------------------------


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "origami", None)
    with pytest.raises(InputError) as error:
        backends.check("origami")
    line = only(error)
    says(line, "found", "expected the package rocm-origami")


def test_another_package_of_that_module_name_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "origami", ModuleType("origami"))
    refusal(backends.check, "origami", match="rocm-origami")


@pytest.mark.parametrize("name", ["h100_sxm", "a100_sxm_80gb", "v100_sxm_32gb"])
def test_other_architectures_are_unsupported(install: Callable[..., ModuleType], name: str) -> None:
    install(RELEASED)
    refusal(origami, name, match=f"gfx90a, gfx942, gfx950, not {name}", kind=Unsupported)


# -- Origami: what it is asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [RELEASED, DEVELOPMENT])
@pytest.mark.parametrize("name", ["mi250x", "mi300x", "mi355x"])
def test_both_variants_of_the_binding_are_called_as_they_expect(
    install: Callable[..., Any], variant: str, name: str
) -> None:
    module = install(variant)
    device = gpu(name)
    seconds = origami(name).seconds([SQUARE])
    assert seconds.shape == (1,)
    asked = module.record.calls[0].hardware
    assert (asked.units, asked.lds) == (device.compute_units, device.shared_memory_per_cu)
    assert asked.L2_capacity == device.l2_bytes / device.dies
    assert set(module.record.registers) <= {512 * 1024}
    assert bool(module.record.registers) == (variant == DEVELOPMENT)


def test_the_blas_rows_are_our_columns(install: Callable[..., Any]) -> None:
    module = install(RELEASED)
    origami("mi300x").seconds([Gemm(name="dgrad", m=256, n=512, k=1024, layout="NT", batch=3, out_bytes=4.0)])
    problem = module.record.calls[0].problem
    assert (problem.size.m, problem.size.n, problem.size.k, problem.batch) == (512, 256, 1024, 3)
    assert (problem.a_transpose.name, problem.b_transpose.name) == ("N", "T")
    assert (problem.a_dtype.name, problem.d_dtype.name) == ("BFloat16", "Float")


def test_device_memory_runs_at_its_own_rate(install: Callable[..., Any]) -> None:
    """Bytes a second of the data sheet whatever the clock, where the package would run it above its peak."""
    module = install(RELEASED)
    device, efficiency = gpu("mi300x"), load("mi300x")
    rates = []
    for mhz in (700.0, 2100.0):
        held = clock.settle(device, efficiency, mhz=mhz)
        Origami(*held).seconds([SQUARE])
        asked = module.record.calls[-1].hardware
        rates.append((asked.mem3_perf_ratio * mhz * 1e6, asked.mem2_perf_ratio * mhz * 1e6, asked.mem1_perf_ratio))
    memory, cache, fast = zip(*rates, strict=True)
    assert memory[0] == pytest.approx(memory[1])
    assert memory[0] <= device.memory_bandwidth
    assert cache[0] == pytest.approx(cache[1])  # the last-level cache is on the fabric's clock
    assert fast[0] == pytest.approx(fast[1])  # the L2 is on the compute clock: so many bytes a cycle


@pytest.mark.parametrize(("name", "dtype", "data_type", "unit", "block"), tabled("kernels", "instructions_by_type"))
def test_types_and_their_instructions(
    install: Callable[..., Any], name: str, dtype: str, data_type: str, unit: str, block: int
) -> None:
    module = install(RELEASED)
    origami(name).seconds([Gemm(name="x", m=1024, n=1024, k=1024, dtype=dtype)])
    call = module.record.calls[0]
    assert (call.problem.a_dtype.name, call.problem.b_dtype.name) == (data_type, data_type)
    assert call.problem.mi_dtype.name == unit
    assert (call.problem.a_mx_block_size, call.problem.b_mx_block_size) == (block, block)
    if dtype == "tf32":  # not the 16-row instruction, whose entry is four times too fast
        assert {(c.mi.m, c.mi.n, c.mi.k) for c in call.configs} == {(32, 32, 4)}
    if dtype == "fp8":
        assert min(c.mt.k for c in call.configs) == 128


def test_fp8_without_the_type_is_priced_by_integers(install: Callable[..., Any]) -> None:
    module = install(RELEASED, without_types=("Float8_fnuz", "Float8"))
    origami("mi300x").seconds([Gemm(name="x", m=1024, n=1024, k=1024, dtype="fp8")])
    assert module.record.calls[0].problem.a_dtype.name == "Int8"


@pytest.mark.parametrize(("name", "dtype"), [("mi250x", "fp8"), ("mi355x", "tf32"), ("mi300x", "mxfp4")])
def test_types_without_an_instruction_are_unsupported(install: Callable[..., Any], name: str, dtype: str) -> None:
    """The package itself prices them, at the rate of its fastest instructions."""
    install(RELEASED)
    with pytest.raises(Unsupported, match=dtype if dtype != "mxfp4" else "Float4"):
        origami(name).seconds([Gemm(name="x", m=1024, n=1024, k=1024, dtype=dtype)])


@pytest.mark.parametrize("name", ["mi300x", "mi355x"])
def test_candidates_fit_the_device(install: Callable[..., Any], name: str) -> None:
    module = install(RELEASED)
    origami(name).seconds([SQUARE])
    configs = module.record.calls[0].configs
    assert {(c.mt.m, c.mt.n) for c in configs} >= {(16, 16), (64, 128), (256, 256)}
    assert all(c.occupancy * c.mt.m * c.mt.n * 4 <= 256 * 1024 for c in configs)
    assert all((c.mt.m + c.mt.n) * c.mt.k * 2 <= gpu(name).shared_memory_per_cu for c in configs)


def test_thin_products_bypass_the_caches(install: Callable[..., Any]) -> None:
    module = install(RELEASED, thin_rule=True)
    thin = Gemm(name="router", m=8192, n=8, k=4096)
    assert origami("mi300x").seconds([thin])[0] > 0.0
    assert any(c.cache_hints_b > 3 for call in module.record.calls for c in call.configs)


# -- Origami: what comes back ------------------------------------------------------------------------------------------


def test_launch_is_counted_once_in_both_variants(install: Callable[..., ModuleType]) -> None:
    tiny = Gemm(name="tiny", m=64, n=64, k=64)
    found = {}
    for variant in (RELEASED, DEVELOPMENT):
        install(variant)
        found[variant] = float(origami("mi300x").seconds([tiny])[0])
    launch = pick(load("mi300x"), "gemm.launch_us", "hipblaslt", "bf16", "", 3.0) * 1e-6
    assert found[DEVELOPMENT] - 4.5e-6 == pytest.approx(found[RELEASED] - launch)
    assert found[RELEASED] > launch


def test_cycles_become_seconds_at_the_sustained_clock(install: Callable[..., ModuleType]) -> None:
    install(RELEASED)
    device, efficiency = gpu("mi355x"), load("mi355x")
    slow, half, full = (
        Origami(*clock.settle(device, efficiency, mhz=mhz)).seconds([SQUARE])[0] for mhz in (600.0, 1200.0, 2400.0)
    )
    assert slow - half == pytest.approx(2.0 * (half - full), rel=1e-6)


def test_accumulating_costs_the_output_once_more(install: Callable[..., ModuleType]) -> None:
    install(RELEASED)
    plain = Gemm(name="x", m=4096, n=4096, k=4096, out_bytes=4.0)
    more = Gemm(name="x", m=4096, n=4096, k=4096, out_bytes=4.0, accumulate=True)
    a, b = origami("mi300x").seconds([plain, more])
    rate = gpu("mi300x").memory_bandwidth * pick(load("mi300x"), "gemm.memory", "hipblaslt", "bf16", "", 0.85)
    assert b - a == pytest.approx(4096 * 4096 * 4 / rate)


def test_no_product_beats_the_data_sheet(install: Callable[..., Any]) -> None:
    module = install(RELEASED)
    module.select_config = lambda *arguments: type("Result", (), {"latency": 1.0})()
    device = gpu("mi300x")
    big, wide = Gemm(name="big", m=8192, n=8192, k=8192), Gemm(name="wide", m=8192, n=8192, k=64)
    a, b = origami("mi300x").seconds([big, wide])
    assert a >= big.flops / device.peak["bf16"]
    assert b >= (2 * 8192 * 64 * 2 + 8192 * 8192 * 2) / device.memory_bandwidth


def test_a_shape_without_a_kernel_says_so(install: Callable[..., Any]) -> None:
    module = install(RELEASED)
    module.select_config = lambda *arguments: type("Result", (), {"latency": float("inf")})()
    with pytest.raises(Unsupported, match="no kernel for 4096x8192x2048 BFloat16 on gfx942"):
        origami("mi300x").seconds([SQUARE])


# The package itself, where tools/build_origami.py put it on the path.
_REAL = importlib.util.find_spec("origami")
real = pytest.mark.skipif(_REAL is None, reason="rocm-origami is not installed: tools/build_origami.py builds it")


@real
@pytest.mark.parametrize("name", ["mi300x", "mi355x"])
def test_the_package_itself_prices_products(name: str) -> None:
    """Laws through the real binding: more work takes longer, nothing beats the peak, large products come out in order."""
    model, device = origami(name), gpu(name)
    sizes = [Gemm(name="x", m=4096, n=n, k=4096) for n in (2048, 4096, 8192, 16384)]
    seconds = model.seconds(sizes)
    assert (np.diff(seconds) > 0).all()
    assert all(op.flops / time <= device.peak_of("bf16") * 1.2 for op, time in zip(sizes, seconds, strict=True))
    builtin = simulated(name).times(sizes).seconds
    assert (seconds / builtin > 0.5).all()
    assert (seconds / builtin < 2.5).all()


@real
def test_the_package_itself_is_scored_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    words = "kernels --gpu mi300x --dtype bf16 --no-cross-validate --gemm-backend origami --json"
    assert harness(words.split()) == 0
    tables = {table["title"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    lines = {line["family"]: line for line in tables["Dense products by origami beside ours"]["rows"]}
    assert {family: int(line["rows"]) for family, line in lines.items()} == {"ck": 21, "hipblaslt": 138}
    for line in lines.values():
        ours, theirs = (float(line[f"{whose}, large"].rstrip(" %")) for whose in ("ours", "theirs"))
        assert ours < theirs < 20
