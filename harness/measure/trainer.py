"""Trains one job on this process's rank: forward and backward by its schedule, gradients, clip, Adam."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining

from harness.measure import support
from harness.measure.gradients import Gradients
from harness.measure.model import Ranks, Stage, initialise, place, split
from harness.measure.spec import Job
from projector.benchmark.device import Device
from projector.benchmark.layers_dtensor import shard
from projector.benchmark.layers_narrow import converted, fresh
from projector.benchmark.layers_parts import LayerSetup, torch_dtype
from projector.benchmark.update import ADAM
from projector.dataclass import dataclass
from projector.frameworks import resolve
from projector.workload.layout import chunks
from projector.workload.workload import Workload

_SKEW = 3.0  # exponent of the skew: some tokens are more frequent, so that the loss can fall


def batch(torch: Any, vocabulary: int, samples: int, length: int, seed: int, step: int) -> tuple[Any, Any]:
    """Returns (tokens, labels) of one global batch, int64 [samples, length] on the CPU; labels are the next tokens.
    Token numbers are uniform numbers to the power of :data:`_SKEW`: about as uneven as words of a language."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    drawn = torch.rand((samples, length + 1), generator=generator).pow_(_SKEW)
    tokens = (drawn * vocabulary).long().clamp_(max=vocabulary - 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@dataclass(frozen=True, slots=True)
class Result:
    """The mean loss of the global batch before the update, and the norm of its gradient."""

    loss: float
    grad_norm: float


class Trainer:
    """The training of a job on ``device``, that of this process. All ranks make theirs together."""

    def __init__(self, job: Job, device: Device) -> None:
        self.job, self.workload, self.device = job, job.workload, device.place
        recipe, model = self.workload.recipe, self.workload.model
        self.ranks: Ranks = place(self.workload, device.type)
        self.micro = self.workload.num_microbatches
        own_chunks = [chunk for chunk in chunks(model, recipe) if chunk.rank == self.ranks.pp_rank]
        self.numbers = [chunk.index * recipe.pp + chunk.rank for chunk in own_chunks]
        execution = resolve(self.workload, device.vendor, device.arch).execution
        context = LayerSetup(self.workload, device.place, self.ranks.whole, execution)
        self.stages = [Stage(context, chunk) for chunk in own_chunks]
        self.tied = not model.untie_embeddings_and_output_weights
        partial: list[torch.nn.Parameter] = []
        for stage in self.stages:
            initialise(stage, self.tied, job.seed)
            partial += split(stage, self.ranks)
            if self.tied and stage.embedding is not None and stage.head is not None:
                stage.head.output.weight = stage.embedding.table.weight
        self.sharded = recipe.data_parallel_sharding != "no_shard" and self.workload.dp > 1
        for stage in self.stages:
            converted(stage.layers, self.workload, device, kept=not self.sharded)
        if self.sharded:
            for stage in self.stages:
                shard(stage, stage.layers.values(), context, self.ranks.mesh["dp"])
        self.gradients = Gradients(self.workload, self.stages, self.ranks, partial, self.sharded)
        weights = [weight.own for weight in self.gradients.weights]
        self.optimizer = torch.optim.Adam(weights, lr=job.learning_rate, fused=True, **ADAM)
        self.schedule = _schedule(self) if recipe.pp > 1 else None

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns this rank's samples of a step, on its device."""
        recipe = self.workload.recipe
        tokens, labels = batch(
            torch, self.workload.model.vocab_size, recipe.global_batch_size, recipe.seq_length, self.job.seed, step
        )
        share = recipe.global_batch_size // self.ranks.dp_size
        part = slice(self.ranks.dp_rank * share, (self.ranks.dp_rank + 1) * share)
        return tokens[part].to(self.device), labels[part].to(self.device)

    def step(self, tokens: Tensor, labels: Tensor) -> Result:
        """Makes one step on a batch: micro-batches, reduction, clip, update."""
        for stage in self.stages:
            fresh(stage)
        loss = self._pipelined(tokens, labels) if self.schedule is not None else self._unpipelined(tokens, labels)
        self.gradients.reduce()
        norm = self.gradients.clip()
        self.optimizer.step()
        self.gradients.clear()
        return Result(float(self._mean(loss)), float(norm))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss of one micro-batch."""
        head = next(stage.head for stage in self.stages if stage.head is not None)
        return head.loss(logits, labels)

    def _unpipelined(self, tokens: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros((), device=self.device)
        size = self.workload.recipe.micro_batch_size
        stage: Any = self.stages[0]
        for i, (inputs, wanted) in enumerate(zip(torch.split(tokens, size), torch.split(labels, size), strict=True)):
            if self.sharded:
                stage.set_requires_gradient_sync(i == self.micro - 1)
            loss = self.loss(stage(inputs), wanted) / self.micro
            torch.autograd.backward(loss)
            total += loss.detach()
        return total

    def _pipelined(self, tokens: Tensor, labels: Tensor) -> Tensor:
        losses: list[Tensor] = []
        last = self.workload.recipe.pp - 1
        schedule: Any = self.schedule
        if self.ranks.pp_rank == 0:
            schedule.step(tokens)
        elif self.ranks.pp_rank == last:
            schedule.step(target=labels, losses=losses)
        else:
            schedule.step()
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)

    def _mean(self, loss: Tensor) -> Tensor:
        """Returns the loss of the last stage, averaged over data-parallel ranks, on every rank."""
        if self.workload.gpus == 1:
            return loss
        share = loss / (self.ranks.dp_size * self.workload.recipe.tp)
        dist.all_reduce(share)
        return share


def _schedule(trainer: Trainer) -> Any:
    """Returns the schedule of torch.distributed.pipelining over this rank's stages."""
    workload, recipe = trainer.workload, trainer.workload.recipe
    total = recipe.pp * len(trainer.stages)
    stages = [
        pipelining.PipelineStage(
            stage, number, total, torch.device(trainer.device), *_example(workload, stage), group=trainer.ranks.pp
        )
        for stage, number in zip(trainer.stages, trainer.numbers, strict=True)
    ]
    kind = getattr(pipelining, support.SCHEDULES[recipe.pipeline_schedule or ""])
    multi = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    return kind(stages if multi else stages[0], trainer.micro, loss_fn=trainer.loss)


def _example(workload: Workload, stage: Stage) -> tuple[Tensor, Tensor]:
    """Returns the input and the output of a stage for one micro-batch, as tensors without data."""
    recipe = workload.recipe
    size, length = recipe.micro_batch_size, recipe.seq_length

    def states(width: int) -> Tensor:
        dtype = torch_dtype(recipe.precision)
        return torch.empty(size * length, width, dtype=dtype, device="meta", requires_grad=True)

    hidden = states(workload.model.hidden_size)
    entry = torch.empty(size, length, dtype=torch.int64, device="meta") if stage.embedding is not None else hidden
    return entry, hidden if stage.head is None else states(workload.padded_vocab_size // recipe.tp)
