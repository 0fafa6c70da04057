"""What a forward leaves for its backward is counted of whole layers and of those whose weights are shards, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from projector.benchmark.device import Device
from projector.frameworks import resolve
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A group of two of which this process is the first; what it sends goes nowhere."""
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_half_the_heads_and_widths_leave_more_than_half_and_less_than_all(cpu: Device) -> None:
    import torch
    import torch.distributed as dist

    from projector.benchmark import held, insitu, source
    from projector.benchmark.layers_parallel import Group, Ranks
    from projector.benchmark.layers_parts import Made

    sizes = {"num_layers": 1, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4}
    model = zoo.load("llama3_8b", **sizes, num_query_groups=2, kv_channels=16, vocab_size=512)
    recipe = Recipe(tp=2, micro_batch_size=1, global_batch_size=1, seq_length=32, precision="fp32")
    work = Workload(model=model, recipe=recipe, gpus=2, framework="pytorch")
    execution = resolve(work, cpu.vendor, cpu.arch).execution

    def counted(tp: Group) -> float:
        layers = source.find("torch", Made(work, "cpu", Ranks(tp=tp), execution))
        parts = [("layer dense", False, layers.layer(model.layer_kinds[0]))]
        strip = insitu.Strip(layers.embedding(), parts, layers.head())
        ids = torch.zeros(1, 32, dtype=torch.int64)
        return held.saved(strip, lambda: (ids, ids))["layer dense"]

    whole, split = counted(Group()), counted(Group(2, 0, dist.group.WORLD))
    assert 0.5 * whole < split < whole
