"""Dense matrix products by AMD Origami, where the package ``rocm-origami`` (Python module ``origami``) is installed.

Origami ranks candidate tiles; its cycles order kernels well and are no clock. Binding read in ROCm/rocm-libraries
``shared/origami/python/src/origami/bindings.cpp`` (development versions of 2026) and in the released 0.0.3; the two
differ in ``get_hardware_for_arch`` (``rf_capacity`` after the LDS) and ``select_config`` (a fourth argument ``model_t``).

What this adapter corrects
- The rate of device memory: the package divides its constant by a memory clock of two thirds of the compute clock, which
  read in compute cycles is 1.5 times the constant and above the data sheet. Ours: data sheet × ``gemm.memory``.
- The clock: cycles become seconds at the sustained clock, with the device's memory and last-level cache at their own
  clocks. The package knows neither power nor throttling.
- Launch: 0.0.3 has no such term, newer versions 4.5 µs counted at 2.2 GHz. A product of one tile tells which it is.
- FP8 tiles 128 deep or more, FP4 tiles 256: at 64, fixed costs per iteration leave FP8 as slow as BF16.
- gfx942 XF32: the 16-row entry of its instruction table is four times too fast; the 32-row one is used. gfx90a BF16:
  twice the silicon's rate; priced by FP16, whose rate is the same. FP8 on gfx942 is the FNUZ type, on gfx950 the OCP one.
- K is rounded up to the shallowest tile: 0.0.3 adds up to 50,000 cycles for one that no tile divides
  (ROCm/rocm-libraries#1941, #1535), where a kernel masks one iteration.
- Candidates: tiles of 16 to 256 rows and columns (Primus passes none below 64, on which router products take more than
  twice as long) whose accumulators fit the registers, so that large ones get no second work-group for free.
- An output that is read and added to costs its bytes once more, and no product beats instruction peak or data sheet
  bandwidth.

What it cannot correct
- Small and thin products: every iteration carries fixed costs in cycles, so they come out a multiple too slow.
- Whole waves only, where libraries hide tails; tail balance weighs too much against large tiles (ROCm/tritonBLAS#76).
- In 0.0.3, a cache-hit cap that expects KiB where bytes are passed, and 8-bit integers at half their rate on gfx950.
- FP8 scale schemes, packed tiles of a work-group, FNUZ against OCP rates; emulated XF32 on gfx950 is left out.
- No grouped products (our model prices them), no accuracy published by its authors, one shape per call.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from projector.dataclass import dataclass
from projector.errors import InputError, Problem, Unsupported
from projector.hardware.clock import sustained_mhz
from projector.hardware.types import Efficiency, Gpu
from projector.kernels.constants import element_bytes, pick
from projector.kernels.protocol import FloatArray
from projector.operators.types import Gemm
from projector.parameter import parameter

_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
_REGISTERS = parameter(
    512 * 1024, unit="B", kind="datasheet", source="vector and accumulator registers of one CDNA compute unit"
)
_LAUNCH_CYCLES = parameter(
    9900.0, unit="cycles", kind="published", source="kernel launch of newer versions of Origami, 4.5 µs at 2.2 GHz"
)
_LAUNCH_CYCLES_GHZ = parameter(2.2, unit="GHz", kind="published", source="clock at which Origami states its launch")
_NON_TEMPORAL = parameter(4, kind="published", source="Origami: cache hints from this value on bypass the caches")

# Operand type here: (data types of the binding in order of preference, block of scales, None where it has none).
_TYPES: dict[str, tuple[tuple[str, ...], int]] = {
    "bf16": (("BFloat16",), 0),
    "fp16": (("Half",), 0),
    "fp32": (("Float",), 0),
    "tf32": (("XFloat32",), 0),
    "int8": (("Int8",), 0),
    "mxfp8": (("Float8",), 32),
    "mxfp6": (("Float6",), 32),
    "mxfp4": (("Float4",), 32),
    "fp4": (("Float4",), 32),
    "nvfp4": (("Float4",), 16),
}
# FP8 by architecture; int8 has the same matrix rate and width, for builds without the type.
_FP8 = {"gfx942": ("Float8_fnuz", "Int8"), "gfx950": ("Float8", "Int8")}
_OUTPUTS = {1.0: "Float8", 2.0: "BFloat16", 4.0: "Float"}
_SIDES = (16, 32, 64, 128, 256)
_DEPTHS = {32: (16, 32), 16: (32, 64, 128), 8: (128, 256), 4: (256, 512)}  # by operand bits
_OCCUPANCY = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class _Machine:
    """The figures of a device that the package needs. Rates: bytes a second; clocks: MHz."""

    arch: str
    units: int
    shared_memory: int
    l2_per_die: int
    nominal_mhz: float
    sustained_mhz: float
    memory_rate: float


@dataclass(frozen=True, slots=True)
class _Product:
    """One product as BLAS counts it (column major: its rows are our columns). ``types``: operand, matrix unit, output."""

    m: int
    n: int
    k: int
    batch: int
    layout: str
    types: tuple[str, str, str]
    scale_block: int


class Origami:
    """A GEMM backend on one gfx90a, gfx942 or gfx950 device.

    Raises ``InputError`` where the package is missing, ``Unsupported`` on any other device.
    """

    def __init__(self, gpu: Gpu, efficiency: Efficiency) -> None:
        if gpu.arch not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise Unsupported(f"GEMM backend origami knows {known}, not {gpu.name} ({gpu.arch})")
        self._package = _package()
        self._gpu = gpu
        self._efficiency = efficiency

    @staticmethod
    def importable() -> None:
        """Raises ``InputError`` where the package is missing."""
        _package()

    def seconds(self, ops: Sequence[Gemm]) -> FloatArray:
        """Returns the device seconds, (n,). Raises ``Unsupported`` for a type or shape without a kernel in the package."""
        return np.array([self._seconds(op) for op in ops], dtype=np.float64)

    def _seconds(self, op: Gemm) -> float:
        machine = self._machine(op)
        cycles = _cycles(self._package, machine, self._product(op))
        launch = pick(self._efficiency, "gemm.launch_us", "hipblaslt", op.dtype, op.scaling) * 1e-6
        if _counts_launch(self._package, machine):
            cycles, launch = cycles - _LAUNCH_CYCLES, _LAUNCH_CYCLES / (_LAUNCH_CYCLES_GHZ * 1e9)
        output = float(op.m) * op.n * op.batch * op.out_bytes
        again = output if op.accumulate else 0.0
        operands = (float(op.m) * op.k + float(op.n) * op.k) * op.batch * element_bytes(op.dtype)
        floor = max(
            op.flops / (self._gpu.peak_of(op.dtype) * max(1.0, self._gpu.boost_clock_mhz / self._gpu.peak_clock_mhz)),
            (operands + output + again) / self._gpu.memory_bandwidth,
        )
        return launch + max(cycles / (machine.sustained_mhz * 1e6) + again / machine.memory_rate, floor)

    def _machine(self, op: Gemm) -> _Machine:
        gpu, found = self._gpu, self._efficiency
        share = min(pick(found, "clock.matrix", "hipblaslt", op.dtype, op.scaling, 0.0), 1.0)
        memory = min(pick(found, "gemm.memory", "hipblaslt", op.dtype, op.scaling), 1.0)
        return _Machine(
            arch=gpu.arch,
            units=gpu.compute_units,
            shared_memory=int(gpu.shared_memory_per_cu),
            l2_per_die=int(gpu.l2_bytes / gpu.dies),
            nominal_mhz=gpu.peak_clock_mhz,
            sustained_mhz=share * gpu.peak_clock_mhz if share > 0.0 else sustained_mhz(gpu, found),
            memory_rate=gpu.memory_bandwidth * memory,
        )

    def _product(self, op: Gemm) -> _Product:
        names, block = _data_types(self._gpu.arch, op.dtype)
        operand = next((name for name in names if hasattr(self._package.data_type_t, name)), None)
        if operand is None:
            raise Unsupported(f"GEMM backend origami: this build has no data type {names[0]} for {op.dtype}")
        unit = "Half" if (self._gpu.arch, operand) == ("gfx90a", "BFloat16") else operand
        output = _OUTPUTS.get(op.out_bytes, "BFloat16")
        if not hasattr(self._package.data_type_t, output):
            output = "BFloat16"
        return _Product(
            m=op.n, n=op.m, k=op.k, batch=op.batch, layout=op.layout, types=(operand, unit, output), scale_block=block
        )


def _data_types(arch: str, dtype: str) -> tuple[tuple[str, ...], int]:
    if dtype == "fp8" and arch in _FP8:
        return _FP8[arch], 0
    if dtype not in _TYPES:
        raise Unsupported(f"GEMM backend origami has no {dtype} products on {arch}")
    return _TYPES[dtype]


def _package() -> Any:
    expected = "the package rocm-origami for --gemm-backend origami; tools/build_origami.py builds it without ROCm"
    try:
        found = importlib.import_module("origami")
    except ImportError as error:
        raise InputError([Problem("Python environment", "origami", f"no such module: {error}", expected)]) from error
    if not hasattr(found, "select_config") or not hasattr(found, "get_hardware_for_arch"):
        # PyPI has an unrelated bit-packing library of this module name.
        other = str(getattr(found, "__file__", None) or "another module of that name")
        raise InputError([Problem("Python environment", "origami", other, expected)])
    return found


@cache
def _hardware(package: Any, machine: _Machine) -> Any:
    """Returns the device at its nominal clock, where the cache in the compute clock domain has its stated rate per cycle."""
    known = {
        "arch": getattr(package.architecture_t, machine.arch, None),
        "N_CU": machine.units,
        "lds_capacity": machine.shared_memory,
        "L2_capacity": machine.l2_per_die,
        "compute_clock_khz": round(machine.nominal_mhz * 1e3),
    }
    if known["arch"] is None:
        raise Unsupported(f"GEMM backend origami: this build does not know {machine.arch}")
    try:
        found = package.get_hardware_for_arch(**known, rf_capacity=_REGISTERS)
    except TypeError:
        found = package.get_hardware_for_arch(**known)
    found.mem3_perf_ratio = machine.memory_rate / (machine.sustained_mhz * 1e6)
    found.mem2_perf_ratio = found.mem2_perf_ratio * machine.nominal_mhz / machine.sustained_mhz
    return found


@cache
def _instruction(package: Any, machine: _Machine, unit: str) -> tuple[int, int, int]:
    """Returns the matrix instruction of a type, (m, n, k). The package prices an unknown one like its fastest ones."""
    if unit == "XFloat32":
        if machine.arch != "gfx942":
            raise Unsupported(f"GEMM backend origami: no tf32 matrix instruction on {machine.arch}")
        return (32, 32, 4)
    found = _hardware(package, machine).get_recommended_matrix_instruction(getattr(package.data_type_t, unit))
    if not found.m * found.n * found.k:
        raise Unsupported(f"GEMM backend origami: no {unit} matrix instruction on {machine.arch}")
    return int(found.m), int(found.n), int(found.k)


@cache
def _configurations(package: Any, machine: _Machine, operand: str, unit: str, hint: str) -> tuple[Any, ...]:
    """Returns the candidate kernels: tiles whose slices fit shared memory and whose accumulators fit half the registers.

    ``hint``: the operand (``a``, ``b``) that bypasses the caches, or nothing.
    """
    instruction = _instruction(package, machine, unit)
    bits = package.datatype_to_bits(getattr(package.data_type_t, operand))
    found = []
    for rows, columns, depth, occupancy in (
        (r, c, d, o) for r in _SIDES for c in _SIDES for d in _depths(bits) for o in _OCCUPANCY
    ):
        slices = (rows + columns) * depth * bits // 8
        accumulators = rows * columns * 4
        if occupancy * accumulators > _REGISTERS // 2 or slices > machine.shared_memory or depth < instruction[2]:
            continue
        made = package.config_t()
        made.mt, made.mi = package.dim3_t(rows, columns, depth), package.dim3_t(*instruction)
        made.occupancy = occupancy
        if hint:
            setattr(made, f"cache_hints_{hint}", _NON_TEMPORAL)
        found.append(made)
    return tuple(found)


def _depths(bits: int) -> tuple[int, ...]:
    return _DEPTHS.get(bits, _DEPTHS[4])


@lru_cache(maxsize=200_000)
def _cycles(package: Any, machine: _Machine, product: _Product) -> float:
    """Returns the cycles of the best candidate. Raises ``Unsupported`` where the package refuses every one."""
    operand, unit, _ = product.types
    refused: object = "every candidate refused"
    # Thin products need one operand to bypass the caches, all others must not: the package refuses the rest.
    for hint in ("", "b", "a"):
        candidates = list(_configurations(package, machine, operand, unit, hint))
        try:
            latency = float(_select(package, _problem(package, product), _hardware(package, machine), candidates))
        except (RuntimeError, ValueError) as error:
            refused = error
            continue
        if 0.0 < latency < 1e15:
            return latency
    shape = f"{product.n}x{product.m}x{product.k} {operand}"
    raise Unsupported(f"GEMM backend origami has no kernel for {shape} on {machine.arch}: {refused}")


def _select(package: Any, problem: Any, hardware: Any, candidates: list[Any]) -> float:
    model = getattr(package, "model_t", None)
    if model is not None:
        try:
            return float(package.select_config(problem, hardware, candidates, model.gemm).latency)
        except TypeError:  # builds that have the enumeration and not yet the argument
            pass
    return float(package.select_config(problem, hardware, candidates).latency)


def _problem(package: Any, product: _Product) -> Any:
    operand, unit, output = (getattr(package.data_type_t, name) for name in product.types)
    made = package.problem_t()
    step = _depths(package.datatype_to_bits(operand))[0]
    made.size = package.dim3_t(product.m, product.n, -(-product.k // step) * step)
    made.batch = product.batch
    made.a_transpose, made.b_transpose = (getattr(package.transpose_t, letter) for letter in product.layout)
    made.a_dtype = made.b_dtype = operand
    made.c_dtype = made.d_dtype = output
    made.mi_dtype = unit
    made.a_mx_block_size = made.b_mx_block_size = product.scale_block
    return made


@cache
def _counts_launch(package: Any, machine: _Machine) -> bool:
    """Returns whether cycles contain a kernel launch: then no product is shorter, however small."""
    unit = "Half"
    depth = 64
    tiny = _Product(m=64, n=64, k=depth, batch=1, layout="TN", types=(unit, unit, unit), scale_block=0)
    return _cycles(package, machine, tiny) >= _LAUNCH_CYCLES
