"""Step time and memory of transformer-perf-estimates: layers, 1F1B pipeline, data parallelism (its ``totals``). Facts of
arXiv:2410.00273, section 3, and of the tool, transformer-perf-estimates@54278b0."""

from __future__ import annotations

from functools import lru_cache

from harness.predictors.tpe.layer import STRATEGIES, Grid, Shape, Timed, layer, timed
from harness.predictors.tpe.system import System, Transfer
from projector.dataclass import dataclass
from projector.errors import Problem, raise_all


@dataclass(frozen=True)
class Config:
    """A configuration. ``tp2`` divides the sequence (and SUMMA's weights); ``panels``: number of SUMMA's panels."""

    dp: int
    tp: int
    pp: int
    mbs: int
    tp2: int = 1
    panels: int = 1

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.tp2 * self.pp


@dataclass(frozen=True)
class Placed:
    """The number of GPUs of each group that share a fast domain."""

    tp: int = 1
    tp2: int = 1
    dp: int = 1
    pp: int = 1


@dataclass(frozen=True)
class Estimate:
    """Seconds, bytes and FLOP of one GPU; communication, arithmetic and memory are summed over its micro-batches."""

    seconds: float
    flops: float
    arithmetic: float
    memory_exposed: float
    tensor: float
    data: float
    pipeline: float
    bubble: float
    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def memory(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class _Layer:
    """One layer and micro-batch, summed over operations."""

    forward: Timed
    backward: Timed
    flops: float
    weights: float
    saved: float
    handed: float  # bytes that go on to the next stage: the input of the last norm


def estimate(
    strategy: str, shape: Shape, config: Config, placed: Placed, system: System, global_batch_size: int
) -> Estimate:
    """Estimates a step. Raises :class:`InputError` where a size cannot be divided as the configuration says."""
    wrong = _problems(strategy, shape, config, placed, system, global_batch_size)
    raise_all(wrong)
    grid = Grid(config.mbs, config.tp, config.tp2, placed.tp, placed.tp2, config.panels)
    one_layer = _one_layer(strategy, shape, grid, system)
    return _step(strategy == "2d-seqp", one_layer, shape.depth // config.pp, config, placed, system, global_batch_size)


@lru_cache(maxsize=100_000)
def _one_layer(strategy: str, shape: Shape, grid: Grid, system: System) -> _Layer:
    operations = layer(strategy, shape, grid, system)
    return _Layer(
        forward=Timed(*map(sum, zip(*(timed(o.forward, o, system) for o in operations), strict=True))),
        backward=Timed(*map(sum, zip(*(timed(o.backward, o, system) for o in operations), strict=True))),
        flops=sum(o.forward.flops + o.backward.flops for o in operations),
        weights=sum(o.weights for o in operations),
        saved=sum(o.saved for o in operations),
        handed=next(o for o in operations if o.name == "ln1").saved,
    )


def _step(
    sequence: bool, one: _Layer, layers: int, config: Config, placed: Placed, system: System, global_batch_size: int
) -> Estimate:
    batches = global_batch_size // config.dp // config.mbs
    both = batches * layers
    total, communication, arithmetic, exposed = map(sum, zip(one.forward, one.backward, strict=True))
    # In its sequence form the weights are replicated over tp2, which reduces gradients and shards states with dp.
    copies, near = (config.dp * config.tp2, placed.dp * placed.tp2) if sequence else (config.dp, placed.dp)
    pipeline = 2 * batches * _hop(one.handed, config.pp, placed.pp, system)
    stages = total * both + pipeline
    bubble = (config.pp - 1) * stages / batches
    gathered = system.collective(Transfer("allgather", one.weights, copies, near))
    data = sum(gathered + (layers - 1) * max(gathered - t.total, 0.0) for t in (one.forward, one.backward))
    weights = one.weights * layers
    return Estimate(
        seconds=stages + bubble + data,
        flops=one.flops * both,
        arithmetic=arithmetic * both,
        memory_exposed=exposed * both,
        tensor=communication * both,
        data=data,
        pipeline=pipeline,
        bubble=bubble,
        weights=weights,
        gradients=weights,
        optimizer=6 * weights / copies,  # fp32 copy, momentum and variance: three times two weights of two bytes
        activations=one.saved * layers * min(config.pp, batches),
    )


def _hop(volume: float, pp: int, near: int, system: System) -> float:
    """Returns the mean seconds of a message between stages. The tool's slow links cost nothing as soon as some are fast."""
    if pp == 1:
        return 0.0
    seconds = system.collective(Transfer("p2p", volume, 2, near))
    return seconds if near == 1 else seconds * (pp - 1 - int(pp / near - 1)) / (pp - 1)


def _problems(
    strategy: str, shape: Shape, config: Config, placed: Placed, system: System, global_batch_size: int
) -> list[Problem]:
    def wrong(key: str, problems: object, expected: str) -> Problem:
        return Problem("tpe", key, str(problems), expected)

    if strategy not in STRATEGIES:
        return [wrong("strategy", strategy, " | ".join(STRATEGIES))]
    counts = {**vars(shape), **vars(config), **{f"placement.{k}": v for k, v in vars(placed).items()}}
    too_low = [
        wrong(k, v, "a whole number of 1 or more")
        for k, v in {**counts, "global_batch_size": global_batch_size}.items()
        if isinstance(v, bool) or not isinstance(v, int) or v < 1
    ]
    if too_low:
        return too_low
    problems = [
        wrong(f"placement.{k}", near, f"a divisor of {k} = {getattr(config, k)}")
        for k, near in vars(placed).items()
        if getattr(config, k) % near
    ]
    # Its own placements multiply to the domain; its pipeline groups may span several.
    if placed.tp * placed.tp2 * placed.dp * placed.pp > system.domain:
        problems.append(wrong("placement", tuple(vars(placed).values()), f"a product of at most {system.domain} GPUs"))
    rules = {
        ("pp", config.pp, f"a divisor of depth {shape.depth}"): shape.depth % config.pp,
        ("tp", config.tp, f"a divisor of {shape.h} heads and of width {shape.e}"): shape.h % config.tp
        or shape.e % config.tp,
        ("tp2", config.tp2, "1 (1d has no second dimension)"): strategy == "1d" and config.tp2 > 1,
        ("global_batch_size", global_batch_size, f"a multiple of dp x mbs = {config.dp * config.mbs}"): (
            global_batch_size % (config.dp * config.mbs)
        ),
        ("h", shape.h, f"a divisor of width {shape.e}"): shape.e % shape.h,
    }
    return problems + [wrong(*rule) for rule, broken in rules.items() if broken]
