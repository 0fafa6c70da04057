"""Settings of kernels that a user may change: who prices the dense products, at which clock, under which power limit."""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.errors import Problem, collecting_into, raise_all
from projector.hardware import clock
from projector.hardware.types import Efficiency, Gpu
from projector.kernels import backends


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings. ``gpu_clock_mhz`` and ``power_cap_watts``: see :mod:`projector.hardware.clock`; None: as the device
    sustains."""

    gemm_backend: str = backends.BUILTIN
    gpu_clock_mhz: float | None = None
    power_cap_watts: float | None = None

    def check(self, where: str = "--gemm-backend") -> None:
        """Raises :class:`InputError` for a backend (named by ``where``) that is unknown or cannot be imported here."""
        problems: list[Problem] = []
        for value, key in ((self.gpu_clock_mhz, "--gpu-clock-mhz"), (self.power_cap_watts, "--power-cap-watts")):
            if value is not None and not 0.0 < value < float("inf"):
                problems.append(Problem(key, "", value, "a number above 0"))
        with collecting_into(problems):
            backends.check(self.gemm_backend, where)
        raise_all(problems)

    def device(self, gpu: Gpu, efficiency: Efficiency) -> tuple[Gpu, Efficiency]:
        """Returns the device as kernel models see it."""
        return clock.settle(gpu, efficiency, mhz=self.gpu_clock_mhz, watts=self.power_cap_watts)

    def stated(self, gpu: Gpu, efficiency: Efficiency) -> tuple[str, ...]:
        """Returns ``key=value`` of everything that is not the default, and the clock that it gives on this device."""
        found = [] if self.gemm_backend == backends.BUILTIN else [f"gemm_backend={self.gemm_backend}"]
        if self.gpu_clock_mhz is not None:
            limit = " (above boost)" if self.gpu_clock_mhz > gpu.boost_clock_mhz else ""
            found.append(f"gpu_clock_mhz={self.gpu_clock_mhz:g}{limit}")
        if self.power_cap_watts is not None:
            limit = " (not below the TDP: no effect)" if self.power_cap_watts >= gpu.tdp_watts else ""
            found.append(f"power_cap_watts={self.power_cap_watts:g}{limit}")
        if self.gpu_clock_mhz is not None or self.power_cap_watts is not None:
            found.append(f"sustained_clock_mhz={clock.sustained_mhz(*self.device(gpu, efficiency)):.0f}")
        return tuple(found)


DEFAULT = Settings()
