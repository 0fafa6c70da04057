"""Several processes side by side: the same answers, their seconds, their mistakes, and what is done of a lost one."""

import math
import os
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from asked import refusal

from projector.errors import InputError, Problem
from projector.hardware import catalogue
from projector.projection import project
from projector.search import cores, found
from projector.search.cores import Clock
from projector.search.found import Limits, search
from projector.search.objective import Objective
from projector.search.remedies import remedies
from projector.search.space import Space, searched, space
from projector.workload import zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload

pytestmark = pytest.mark.skipif(cores.sys.platform != "linux", reason="processes are forked on Linux alone")
H100 = catalogue.cluster("h100")


def made() -> Space:
    recipe = Recipe(micro_batch_size=1, global_batch_size=128, seq_length=4096)
    held = {"cp": (1,), "vpp": (1,), "pp": (1, 2), "micro_batch_size": (1, 2), "recompute_granularity": ("none",)}
    held["data_parallel_sharding"] = ("optim",)
    return space(Workload(model=zoo.load("llama3.1_8b"), recipe=recipe, gpus=16), H100, only=held)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 1000])
def test_pieces_are_the_space(most: int) -> None:
    whole = made()
    pieces = whole.pieces(most)
    assert len(pieces) <= most
    shapes = [tuple(shape.items()) for piece in pieces for shape in piece.shapes()]
    assert sorted(shapes) == sorted(tuple(shape.items()) for shape in whole.shapes())
    assert sum(piece.points for piece in pieces) == whole.points
    alone = [{(shape["tp"], shape["micro_batch_size"]) for shape in piece.shapes()} for piece in pieces]
    assert all(not one & other for i, one in enumerate(alone) for other in alone[:i])  # no layer is priced twice


@pytest.mark.parametrize("seconds", [600.0, pytest.param(None, marks=pytest.mark.night)])
def test_as_many_processes_as_one_likes_find_the_same(monkeypatch, seconds: float | None) -> None:
    monkeypatch.setattr(found, "_LARGE", 0)
    one, three = (
        search(made(), H100, Objective(), Limits(top=4, jobs=jobs, seconds=seconds), explained=False) for jobs in (1, 3)
    )
    assert one.gap == three.gap == 0.0
    assert [each.value for each in one.best] == [each.value for each in three.best]
    assert one.counts.enumerated == three.counts.enumerated
    assert one.counts.points == three.counts.points
    assert sum(one.refused.values()) == sum(three.refused.values())
    assert three.counts.bounded >= 0


def test_each_in_its_own_process_in_order() -> None:
    clock = Clock()
    here = os.getpid()
    each = clock.beside([lambda tell, i=i: (i, os.getpid()) for i in range(5)], jobs=2)
    assert [i for i, _ in each] == list(range(5))
    assert len({pid for _, pid in each} | {here}) == 6
    assert clock.beside([lambda tell: os.getpid()] * 3, jobs=1) == [here] * 3


def test_the_clock_counts_the_longest_and_the_others() -> None:
    def spin(seconds: float) -> None:
        until = time.process_time() + seconds
        while time.process_time() < until:
            math.sqrt(2.0)

    clock = Clock()
    clock.beside([lambda tell: spin(0.2), lambda tell: spin(0.05)], jobs=2)
    assert clock.now() >= 0.2
    assert clock.others >= 0.05
    assert clock.others < clock.now()


def test_a_mistake_is_raised_here_and_a_lost_process_replaced() -> None:
    def wrong(tell: Any) -> int:
        raise InputError([Problem("a", "b", "c", "d")])

    here = os.getpid()

    def lost(tell: Any) -> int:
        if os.getpid() != here:
            os._exit(9)
        return 7

    refusal(Clock().beside, [wrong, lambda tell: 1], jobs=2, match="expected d")
    assert Clock().beside([lost, lambda tell: 1], jobs=2) == [7, 1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_tells_on_its_way(jobs: int) -> None:
    heard: list[tuple[int, str]] = []
    made = Clock().beside(
        [lambda tell, i=i: tell(f"half {i}") or i for i in range(3)], jobs, lambda *n: heard.append(n)
    )
    assert made == [0, 1, 2]
    assert sorted(heard) == [(i, f"half {i}") for i in range(3)]


def test_pieces_report_as_one_search(monkeypatch) -> None:
    monkeypatch.setattr(found, "_LARGE", 0)
    monkeypatch.setattr(cores, "_NEWS", 0.0)
    heard: list[Any] = []
    limits = Limits(top=1, jobs=2)
    made_of = search(made(), H100, Objective(), limits, explained=False, told=lambda *news: heard.append(news))
    assert len(heard) > 2
    assert heard[-1][0].enumerated == made_of.counts.enumerated
    assert min(best for _, best in heard if best is not None) <= made_of.best[0].value


def test_a_number_of_projections_is_one_process() -> None:
    limits = Limits(projections=3, jobs=8)
    searcher = found._Searcher(made(), H100, Objective(), limits, found.kernel_settings.DEFAULT, print, 1.0)
    assert searcher.jobs == 1
    assert replace(searcher, limits=Limits(seconds=1.0, jobs=8)).jobs == 8


# No change that ``performance`` offers for a run that does not fit beats what ``search`` finds for the same job.


DENSE: dict[str, Any] = {"micro_batch_size": 4, "global_batch_size": 64, "seq_length": 8192}
LONG: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 65536}
EXPERTS: dict[str, Any] = {"micro_batch_size": 8, "global_batch_size": 64, "seq_length": 4096, "ep": 8}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["megatron-lm", "primus", "torchtitan", "automodel", "pytorch", "deepspeed"])
@pytest.mark.parametrize(
    ("model", "recipe"), [("llama3.1_8b", DENSE), ("llama3.1_8b", LONG), ("deepseek_v3_16b", EXPERTS)]
)
def test_a_search_is_no_worse_than_a_remedy(
    model: str, recipe: dict[str, Any], framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projector.search.remedies._WANTED", 100)
    cluster = catalogue.default_cluster("h100_sxm")
    load = Workload(model=zoo.load(model), recipe=Recipe(**recipe), gpus=8, framework=framework)
    found = remedies(load, cluster, partial(project, cluster=cluster)).found
    asked = searched(load)  # other changes are those of a training's numbers, or of kernels: --vary
    clear = [each for each in found if each.change.more_gpus == 1 and each.projection.memory.order == 0]
    speeds = [each.projection.tgs for each in clear if {name for name, _ in each.change.fields} <= asked]
    if not speeds:
        pytest.skip("nothing that is searched makes it fit alone")
    best = search(space(load, cluster), cluster, Objective(name="tgs"), Limits(seconds=10), explained=False).best[0]
    assert best.projection.memory.order == 0
    assert best.projection.tgs >= max(speeds) * (1 - 1e-9)
