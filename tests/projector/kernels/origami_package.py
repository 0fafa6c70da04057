"""A stand-in for the module ``origami``: the names, arguments and refusals of its binding, an arithmetic of our own."""

from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

RELEASED, DEVELOPMENT = "0.0.3", "development"
_BITS = {"Float": 32, "XFloat32": 32, "Half": 16, "BFloat16": 16, "Int8": 8}
_BITS |= {"Float8": 8, "Float8_fnuz": 8, "Float6": 6, "Float4": 4}
_INSTRUCTIONS = {
    "gfx90a": {"Float": (16, 16, 4), "Half": (16, 16, 16), "BFloat16": (16, 16, 16), "Int8": (16, 16, 16)},
    "gfx942": {"Float": (16, 16, 4), "Half": (16, 16, 16), "BFloat16": (16, 16, 16), "Int8": (16, 16, 32)}
    | {"Float8_fnuz": (16, 16, 32), "XFloat32": (16, 16, 32)},
    "gfx950": {"Float": (16, 16, 4), "Half": (16, 16, 32), "BFloat16": (16, 16, 32), "Int8": (16, 16, 32)}
    | {"Float8": (16, 16, 128), "Float4": (16, 16, 128), "XFloat32": (16, 16, 32)},
}


@dataclass
class Dim3:
    m: int
    n: int
    k: int


@dataclass
class Config:
    mt: Any = None
    mi: Any = None
    occupancy: int = 1
    cache_hints_a: int = 0
    cache_hints_b: int = 0


@dataclass
class Prob:
    size: Any = None
    batch: int = 1
    a_transpose: Any = None
    b_transpose: Any = None
    a_dtype: Any = None
    b_dtype: Any = None
    c_dtype: Any = None
    d_dtype: Any = None
    mi_dtype: Any = None
    a_mx_block_size: int = -1
    b_mx_block_size: int = -1


@dataclass
class Hardware:
    arch: str
    units: int
    lds: int
    mem1_perf_ratio: float
    mem2_perf_ratio: float
    mem3_perf_ratio: float
    L2_capacity: int
    khz: int

    def get_recommended_matrix_instruction(self, dtype: Any) -> Dim3:
        return Dim3(*_INSTRUCTIONS[self.arch].get(dtype.name, (0, 0, 0)))


@dataclass
class Call:
    """What one ``select_config`` was given."""

    problem: Prob
    hardware: Hardware
    configs: list[Config]


@dataclass
class Record:
    """Everything that the module was asked."""

    calls: list[Call] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)


def build(variant: str, *, without_types: tuple[str, ...] = (), thin_rule: bool = False) -> ModuleType:
    """The module in one of its variants. ``thin_rule``: refuses thin products unless an operand bypasses the caches."""
    module: Any = ModuleType("origami")
    record = Record()
    module.record = record
    module.data_type_t = Enum("data_type_t", [name for name in _BITS if name not in without_types])
    module.transpose_t = Enum("transpose_t", ["T", "N"])
    module.architecture_t = Enum("architecture_t", [*_INSTRUCTIONS, "gfx1201"])
    module.dim3_t, module.config_t, module.problem_t = Dim3, Config, Prob
    module.datatype_to_bits = lambda dtype: _BITS[dtype.name]

    def made(arch: Any, units: int, lds: int, l2: int, khz: int) -> Hardware:
        hertz = khz * 1e3
        return Hardware(arch.name, units, lds, 17e12 / hertz, 7.3e12 / hertz, 1.5 * 4e12 / hertz, l2, khz)

    def cycles(problem: Prob, hardware: Hardware, configs: list[Config]) -> Any:
        record.calls.append(Call(problem, hardware, configs))
        p, best = problem.size, None
        for c in configs:
            bypass = c.cache_hints_a > 3 or c.cache_hints_b > 3
            if thin_rule and bypass != (min(p.m, p.n) <= 2 * c.mt.m and max(p.m, p.n) > 10 * min(p.m, p.n)):
                continue
            bits = _BITS[problem.a_dtype.name]
            tiles = -(-p.m // c.mt.m) * -(-p.n // c.mt.n) * problem.batch
            steps = -(-p.k // c.mt.k)
            products = c.mt.m * c.mt.n * c.mt.k * bits / 16 / 1024
            moved = (c.mt.m + c.mt.n) * c.mt.k * bits / 8 * min(tiles, hardware.units) / hardware.mem3_perf_ratio
            latency = -(-tiles // hardware.units) * (1500 + steps * (500 + max(products, 0.25 * moved)))
            best = latency if best is None else min(best, latency)
        if best is None:
            raise RuntimeError("no valid configurations")
        return type("Result", (), {"latency": best + (9900.0 if variant == DEVELOPMENT else 0.0), "config": None})()

    if variant == DEVELOPMENT:
        module.model_t = Enum("model_t", ["gemm", "attention"])

        def hardware_for(
            arch: Any, N_CU: int, lds_capacity: int, rf_capacity: int, L2_capacity: int, compute_clock_khz: int
        ) -> Hardware:
            record.registers.append(rf_capacity)
            return made(arch, N_CU, lds_capacity, L2_capacity, compute_clock_khz)

        def select(problem: Prob, hardware: Hardware, configs: list[Config], model: Any) -> Any:
            assert model is module.model_t.gemm
            return cycles(problem, hardware, configs)
    else:

        def hardware_for(  # type: ignore[misc]
            arch: Any, N_CU: int, lds_capacity: int, L2_capacity: int, compute_clock_khz: int
        ) -> Hardware:
            return made(arch, N_CU, lds_capacity, L2_capacity, compute_clock_khz)

        def select(problem: Prob, hardware: Hardware, configs: list[Config]) -> Any:  # type: ignore[misc]
            return cycles(problem, hardware, configs)

    module.get_hardware_for_arch = hardware_for
    module.select_config = select
    found: ModuleType = module
    return found
