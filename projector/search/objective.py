"""The quantities that a search can minimise."""

from __future__ import annotations

from projector.dataclass import dataclass
from projector.workload.workload import Workload

#: The objectives by name, in words.
OBJECTIVES = {
    "step": "seconds of a step",
    "tgs": "GPU-seconds of a token (tokens/s/GPU at their highest)",
    "cost": "price of a token",
    "energy": "joules of a token at the rated power of the boards",
    "memory": "bytes of the fullest rank, then seconds",
}
_TIE = 1e-12  # weight of a second against a byte: breaks ties only


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a search minimises. ``name``: one of :data:`OBJECTIVES`; ``price``: of a GPU-hour, in the user's currency;
    ``watts``: of one board."""

    name: str = "tgs"
    price: float = 1.0
    watts: float = 1.0

    def value(self, load: Workload, seconds: float, memory: float = 0.0) -> float:
        """Returns the value of a configuration of ``seconds`` a step and ``memory`` bytes; smaller is better. Of lower
        bounds of both it is a bound."""
        if self.name == "memory":
            return memory + _TIE * seconds
        if self.name == "step":
            return seconds
        gpu_seconds = seconds * load.gpus / load.tokens_per_step
        return gpu_seconds * {"tgs": 1.0, "cost": self.price / 3600, "energy": self.watts}[self.name]

    def told(self, value: float) -> str:
        """Returns ``value`` as text, in the unit that people use."""
        if self.name == "tgs":
            return f"{1 / value:,.1f} tokens/s/GPU"
        if self.name == "memory":
            return f"{value / 2**30:.1f} GiB"
        return f"{value:.3f} s" if self.name == "step" else f"{value:.4g} ({OBJECTIVES[self.name]})"
