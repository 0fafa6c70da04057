"""Times what every rank times: the laps of a shortened model's step, updates of whole stages, collectives."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from projector.benchmark import source, step_laps
from projector.benchmark.conditions import under
from projector.benchmark.device import Device
from projector.benchmark.exchange import groups_of, repeated, run_collective, several
from projector.benchmark.job import unheard
from projector.benchmark.layers_dtensor import shard
from projector.benchmark.layers_narrow import converted, fresh
from projector.benchmark.layers_parts import LayerSetup
from projector.benchmark.step_laps import Strip
from projector.benchmark.timings import Asked, Seconds, StageWanted
from projector.benchmark.update import Update, local
from projector.dataclass import dataclass
from projector.mechanisms.execution import strategies

strategies()  # defines their classes: what a rank is asked names some of them, and is read once this module is there
_COPIES = 3  # of a layer, so that one does not find its weights in a cache where the real model would not
_CACHES = 4.0  # weights and gradients of the layers exceed so many caches, where the model has as many


def run(asked: Asked, device: Device, kept: Callable[[Any], None] = unheard) -> dict[str, Any]:
    """Times everything of ``asked`` with the ranks that are joined (or alone); returns figures that JSON can hold.

    ``kept`` is called with the figures so far after each thing that a step can do without.
    """
    before, ranks = under(device), groups_of(asked)
    made = LayerSetup(asked.workload, device.place, ranks, asked.execution)
    layers = source.find(asked.layers, made)
    strip = _strip(asked, layers, device)
    saved = saved_bytes(strip, _token_source(made))
    if device.type == "cuda":
        device.torch.cuda.reset_peak_memory_stats(device.index)
    if asked.sharded:
        shard(strip, strip.layers, made, init_device_mesh(device.type, (dist.get_world_size(),)))
    sharing = asked.execution.data_parallel
    masters, in_each = sharing.master_bytes > 0, sharing.reduces_every_microbatch(asked.workload)
    update = Update([p for p in strip.parameters() if p.requires_grad], masters, apart=asked.ranks == 1)
    gc.collect()
    gc.disable()  # as trainers that collect on all ranks at once (Megatron-LM --manual-gc)
    try:
        before_each = _before_microbatch(strip, sync_last=asked.sharded and not in_each)
        laps = step_laps.laps(strip, _token_source(made), update, device, asked.budget, before_each)
        after = under(device) | _peak_bytes(device)
        like = torch.empty(0, dtype=update.own[0].dtype, device=device.place)
        separate_update = partial(_separate_update, masters, like)
        sizes, shapes = _shapes(strip), [tuple(p.shape) for p in update.own]
        del strip, update  # room for whole stages
        gc.collect()  # graphs refer to themselves
        if device.type == "cuda":
            device.torch.cuda.empty_cache()  # what is held in pieces serves no larger tensor
        result: dict[str, Any] = {
            "source": layers.name,
            "laps": {name: asdict(Seconds.of(times)) for name, times in laps.found.items()},
            "step": asdict(Seconds.of(laps.steps)),
            "update_short": _update_seconds(separate_update(shapes), asked.budget, device),
            "weights": {key: [size.dense, size.expert] for key, size in sizes.items()},
            "saved": dict(saved),
            "updates": {},
        }
        for stage in asked.stages:
            whole = separate_update([each for key, n in stage.counts for each in sizes[key].part(stage) * n])
            result["updates"][stage.key] = _update_seconds(whole, asked.budget, device)
            del whole
        result["conditions"] = {"before": before, "after layers": after, "after updates": under(device)}
        result = _mean_over_ranks(result) | {"collectives": []}
        for each in asked.collectives:
            kept(result)
            result["collectives"].append(_mean_over_ranks(run_collective(each, ranks, device, asked.budget)))
        result["conditions"]["after collectives"] = _mean_over_ranks(under(device))
    finally:
        gc.enable()
    return result


def _strip(asked: Asked, layers: source.Source, device: Device) -> step_laps.Strip:
    parts: list[tuple[str, bool, nn.Module]] = []
    one_of_each = [(part, layers.layer(part.kind)) for part in asked.parts]
    weights = sum(2 * p.numel() * p.element_size() for _, layer in one_of_each for p in layer.parameters())
    copies = max(1, min(_COPIES, round(_CACHES * device.cache_bytes() / max(weights, 1)) or 1))
    for part, layer in one_of_each:
        copies_of_layer = [layers.layer(part.kind) for _ in range(min(copies, part.count) - 1)]
        parts += [(part.key, part.replayed, each) for each in (layer, *copies_of_layer)]
    if not layers.name.startswith("megatron"):  # those cast by themselves
        for _, _, each in parts:
            converted(each, asked.workload, device, kept=not asked.sharded)
    return step_laps.Strip(layers.embedding(), parts, layers.head())


def _before_microbatch(strip: step_laps.Strip, *, sync_last: bool) -> Callable[[int], None]:
    """Returns a hook: weights are new in the first micro-batch; ``sync_last``: shards' gradients wait for the last."""
    whole: Any = strip

    def hear(micro: int) -> None:
        if micro == 0:
            fresh(strip)
        if sync_last:
            whole.set_requires_gradient_sync(micro == step_laps.MICROBATCHES - 1)

    return hear


def _token_source(made: LayerSetup) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    shape = (made.workload.recipe.micro_batch_size, made.length)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(made.model.vocab_size, shape, device=made.place)
        return ids, ids.roll(-1, dims=1)

    return draw


def _peak_bytes(device: Device) -> dict[str, float]:
    """Returns the largest number of bytes that the shortened model held."""
    if device.type == "cpu":
        return {}
    cuda = device.torch.cuda
    named = {"allocated": cuda.max_memory_allocated, "reserved": cuda.max_memory_reserved}
    return {f"peak_{name}_bytes": float(ask(device.index)) for name, ask in named.items()}


@dataclass(frozen=True)
class _Weights:
    """Shapes of a part's weights on this rank (or of its shard of them); those of routed experts stand apart."""

    of_dense: tuple[tuple[int, ...], ...]
    of_experts: tuple[tuple[int, ...], ...]

    @property
    def dense(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.of_dense)

    @property
    def expert(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.of_experts)

    def part(self, stage: StageWanted) -> list[tuple[int, ...]]:
        """Returns the shapes of what one rank updates."""
        if stage.share == stage.expert_share == 1.0:
            return [*self.of_dense, *self.of_experts]
        return [(max(1, round(stage.share * self.dense + stage.expert_share * self.expert)),)]


def _shapes(strip: step_laps.Strip) -> dict[str, _Weights]:
    """Returns the weights of every part by its key."""

    def weights_of(module: nn.Module) -> _Weights:
        named = [("experts" in name.split("."), tuple(local(p).shape)) for name, p in module.named_parameters()]
        return _Weights(tuple(s for routed, s in named if not routed), tuple(s for routed, s in named if routed))

    parts = {"embedding": weights_of(strip.embedding), "head": weights_of(strip.head)}
    for name, layer in zip(strip.names, strip.layers, strict=True):
        parts.setdefault(name, weights_of(layer))
    return parts


def _separate_update(masters: bool, like: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> Update:
    """Returns an update of weights that nothing else uses, with gradients."""
    weights = [nn.Parameter(torch.zeros(shape, dtype=like.dtype, device=like.device)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    return Update(weights, masters, apart=True)


def _update_seconds(update: Update, budget: float, device: Device) -> dict[str, Any]:
    def seconds_of_step() -> float:
        start = time.perf_counter()
        update.step()
        device.synchronize()
        return time.perf_counter() - start

    return repeated(seconds_of_step, device, budget, warm=2, fewest=8, most=398)


def _mean_over_ranks(result: Any) -> Any:
    """Returns the mean over all ranks: times of a step that they take together differ by core and device."""
    if not several():
        return result
    results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(results, result)
    return _merged(results)


def _merged(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _merged([value[key] for value in values if key in value]) for key in first}
    if isinstance(first, list | tuple):
        return [_merged(items) for items in zip(*values, strict=True)]
    return statistics.fmean(values) if isinstance(first, float | int) else first


# Bytes that the forward of each part leaves for its backward: counted while layers run, beside what the book says.
_FORWARD = "forward "


class _SavedBytes:
    """Takes the place of stamps: counts at each seam the bytes saved since the one before."""

    def __init__(self, weights: frozenset[int]) -> None:
        self._seen = set(weights)
        self._since = 0.0
        self.found: dict[str, float] = {}

    def take(self, name: str) -> None:
        if name.startswith(_FORWARD):  # of equal parts, the first
            self.found.setdefault(name.removeprefix(_FORWARD), self._since)
        self._since = 0.0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        for storage in _storages(tensor):
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self._since += storage.nbytes()
        return tensor


def saved_bytes(strip: Strip, draw: Callable[[], tuple[Any, Any]]) -> Mapping[str, float]:
    """Returns the bytes by part of one micro-batch, each storage once where it is first saved, without weights and
    buffers."""
    excluded = (*strip.parameters(), *strip.buffers())
    count: Any = _SavedBytes(frozenset(storage.data_ptr() for each in excluded for storage in _storages(each)))
    with torch.autograd.graph.saved_tensors_hooks(count.pack, lambda tensor: tensor):
        loss = strip(*draw(), count)
    del loss
    found: Mapping[str, float] = count.found
    return found


def _storages(tensor: Any) -> Iterator[torch.UntypedStorage]:
    """Yields the storage of a tensor, or those inside one that wraps others (a shard, a collective under way)."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor.untyped_storage()
        return
    for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
        if isinstance(part, torch.Tensor):  # and no mesh
            yield from _storages(part)
