"""No change that ``performance`` offers for a run that does not fit beats what ``search`` finds for the same job."""

from functools import partial
from typing import Any

import pytest

from projector.hardware import catalogue
from projector.projection import project
from projector.search.found import Limits, search
from projector.search.objective import Objective
from projector.search.remedies import remedies
from projector.search.space import searched, space
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

DENSE: dict[str, Any] = {"micro_batch_size": 4, "global_batch_size": 64, "seq_length": 8192}
LONG: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 65536}
EXPERTS: dict[str, Any] = {"micro_batch_size": 8, "global_batch_size": 64, "seq_length": 4096, "ep": 8}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["megatron-lm", "primus", "torchtitan", "automodel", "pytorch", "deepspeed"])
@pytest.mark.parametrize(
    ("model", "recipe"), [("llama3.1_8b", DENSE), ("llama3.1_8b", LONG), ("deepseek_v3_16b", EXPERTS)]
)
def test_a_search_is_no_worse_than_a_remedy(model: str, recipe: dict[str, Any], framework: str) -> None:
    cluster = catalogue.default_cluster("h100_sxm")
    load = Workload(model=zoo.load(model), recipe=Recipe(**recipe), gpus=8, framework=framework)
    found = remedies(load, cluster, partial(project, cluster=cluster), wanted=100).found
    asked = searched(load)  # other changes are those of a training's numbers, or of kernels: --vary
    clear = [each for each in found if each.change.more_gpus == 1 and each.projection.memory.order == 0]
    speeds = [each.projection.tgs for each in clear if {name for name, _ in each.change.fields} <= asked]
    if not speeds:
        pytest.skip("nothing that is searched makes it fit alone")
    best = search(space(load, cluster), cluster, Objective(name="tgs"), Limits(seconds=10), explained=False).best[0]
    assert best.projection.memory.order == 0
    assert best.projection.tgs >= max(speeds) * (1 - 1e-9)
