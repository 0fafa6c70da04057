"""What every rank times: the laps of a shortened model's step, updates of whole stages, collectives at their sizes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from projector.benchmark import insitu, source
from projector.benchmark.device import Device
from projector.benchmark.exchange import groups_of, run_collective
from projector.benchmark.layers_parts import Made
from projector.benchmark.timings import Asked, StageWanted, summary
from projector.benchmark.update import Update, local

__all__ = ["run"]

_WARM = 3  # steps that fill caches, allocators and autograd's buffers
_FEWEST, _MOST = 8, 400  # steps
_COPIES = 3  # of a layer, so that one does not find its weights in a cache where the real model would not
_CACHES = 4.0  # weights and gradients of the layers exceed so many caches, where the model has as many


def run(asked: Asked, device: Device) -> dict[str, Any]:
    """Times everything of ``asked`` with the ranks that are joined (or alone); figures that JSON can hold."""
    ranks = groups_of(asked)
    made = Made(asked.workload, device.place, ranks, asked.execution)
    layers = source.find(asked.layers, made)
    strip = _strip(asked, layers, device)
    if asked.sharded:
        _shard(strip, device)
    sharing = asked.execution.data_parallel
    masters, in_each = sharing.master_bytes > 0, sharing.reduces_every_microbatch(asked.workload.recipe)
    update = Update([p for p in strip.parameters() if p.requires_grad], masters)
    gc.collect()
    gc.disable()  # as trainers that collect on all ranks at once (Megatron-LM --manual-gc)
    try:
        found = insitu.laps(
            strip,
            _drawer(made),
            update,
            _together(device),
            cuda=device.type == "cuda",
            microbatches=min(2, asked.microbatches),
            warm=_WARM,
            samples=_MOST,
            last=_last_reduces(strip) if asked.sharded and not in_each else None,
            enough=_enough(asked.budget, device),
        )
        short = _update_seconds(_spare([tuple(p.shape) for p in update.own], update, 1.0), asked.budget, device)
        result: dict[str, Any] = {
            "source": layers.name,
            "laps": {name: summary(times) for name, times in found.found.items()},
        }
        result["step"] = summary(found.steps)
        result["update short"] = short
        shapes = _shapes(strip)
        del strip
        result["updates"] = {}
        for stage in asked.stages:
            spare = _spare(_stage_shapes(stage, shapes), update, stage.share)
            result["updates"][stage.key] = _update_seconds(spare, asked.budget, device)
        del update
        result["collectives"] = [run_collective(each, ranks, device, asked.budget) for each in asked.collectives]
    finally:
        gc.enable()
    return _mean_over_ranks(result)


def _strip(asked: Asked, layers: source.Source, device: Device) -> insitu.Strip:
    parts: list[tuple[str, bool, nn.Module]] = []
    first = [(part, layers.layer(part.kind)) for part in asked.parts]
    weights = sum(2 * p.numel() * p.element_size() for _, layer in first for p in layer.parameters())
    copies = max(1, min(_COPIES, round(_CACHES * device.cache_bytes() / max(weights, 1)) or 1))
    for part, layer in first:
        more = [layers.layer(part.kind) for _ in range(min(copies, part.count) - 1)]
        parts += [(part.key, part.replayed, each) for each in (layer, *more)]
    return insitu.Strip(layers.embedding(), parts, layers.head())


def _shard(strip: insitu.Strip, device: Device) -> None:
    """FSDP2 over all ranks: every layer a unit, the rest another (pytorch/torchtitan parallelize.py)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in strip.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(strip, mesh=mesh)


def _last_reduces(strip: insitu.Strip) -> Callable[[bool], None]:
    """Gradients of shards wait for the last micro-batch."""
    whole: Any = strip

    def hear(last: bool) -> None:
        whole.set_requires_gradient_sync(last)

    return hear


def _drawer(made: Made) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    shape = (made.workload.recipe.micro_batch_size, made.length)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(made.model.vocab_size, shape, device=made.place)
        return ids, ids.roll(-1, dims=1)

    return draw


def _together(device: Device) -> Callable[[], None]:
    def start() -> None:
        device.synchronize()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()

    return start


def _enough(budget: float, device: Device) -> Callable[[int, float], bool]:
    """Whether to stop, the same answer on every rank: rank 0 has the watch."""

    def enough(steps: int, seconds: float) -> bool:
        done = steps >= _FEWEST and seconds > budget
        if dist.is_initialized() and dist.get_world_size() > 1:
            word = torch.tensor([float(done)], device=device.place)
            dist.broadcast(word, 0)
            done = bool(word.item())
        return done

    return enough


def _shapes(strip: insitu.Strip) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of the weights of every part, by its key; of a sharded one those of this rank's shard."""

    def of(module: nn.Module) -> list[tuple[int, ...]]:
        return [tuple(local(p).shape) for p in module.parameters()]

    found = {"embedding": of(strip.embedding), "head": of(strip.head)}
    for name, layer in zip(strip.names, strip.layers, strict=True):
        found.setdefault(name, of(layer))
    return found


def _stage_shapes(stage: StageWanted, shapes: Mapping[str, list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    found = [shape for key, count in stage.counts for shape in shapes[key] * count]
    found += shapes["embedding"] if stage.embedding else []
    return found + (shapes["head"] if stage.head else [])


def _spare(shapes: Sequence[tuple[int, ...]], like: Update, share: float) -> Update:
    """An update of weights that nothing else uses, with gradients; ``share``: of the elements, where ranks divide them."""
    options: dict[str, Any] = {"dtype": like.own[0].dtype, "device": like.own[0].device}
    if share < 1.0:
        shapes = [(max(1, round(share * sum(torch.Size(shape).numel() for shape in shapes))),)]
    weights = [nn.Parameter(torch.zeros(shape, **options)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    return Update(weights, any(m is not p for m, p in zip(like.masters, like.own, strict=True)), apart=True)


def _update_seconds(update: Update, budget: float, device: Device) -> list[float]:
    times: list[float] = []
    together = _together(device)
    enough = _enough(budget / 4, device)
    began = time.perf_counter()
    for number in range(_MOST):
        together()
        start = time.perf_counter()
        update.step()
        device.synchronize()
        if number >= 2:
            times.append(time.perf_counter() - start)
            if enough(len(times), time.perf_counter() - began):
                break
    return summary(times)


def _mean_over_ranks(result: dict[str, Any]) -> dict[str, Any]:
    """Times of all ranks: those of a step that they take together differ by what each core and device is worth."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return result
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, result)
    mean: dict[str, Any] = _merged(found)
    return mean


def _merged(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _merged([value[key] for value in values]) for key in first}
    if isinstance(first, list | tuple):
        return [_merged(items) for items in zip(*values, strict=True)]
    return statistics.fmean(values) if isinstance(first, float | int) else first
