"""The table of a layer agrees with the step that it is a part of, and with what is known of a transformer."""

import csv
import json
from pathlib import Path
from typing import Any

import command_line
import pytest
from asked import refusal, says

from projector import project
from projector.__main__ import main
from projector.hardware import catalogue
from projector.hardware.efficiency import of
from projector.hardware.scaled import SCALES
from projector.hardware.types import Cluster
from projector.kernels import settings
from projector.projection import Projection
from projector.settle.workload import settle_checked
from projector.step.work import BlockWork, works
from projector.workload import zoo
from tests.workloads import workload

H100 = catalogue.default_cluster("h100_sxm")


def table(model: str = "llama3.1_8b", gpus: int = 8, cluster: Cluster = H100, **recipe: Any) -> dict[str, BlockWork]:
    resolved = settle_checked(workload(model, gpus, **recipe), cluster, published=False)
    found = works(resolved, cluster, of(cluster.gpu), "simulate", settings.DEFAULT)
    return {each.name: each for each in found}


@pytest.mark.parametrize("recipe", [{}, {"tp": 2, "recompute_granularity": "full"}])
def test_operators_add_up_to_the_block(recipe: dict[str, Any]) -> None:
    for each in table(**recipe).values():
        device = each.time.forward.device + each.time.backward.device
        bare = sum(work.seconds - work.hidden for work in each.works)
        assert bare <= device * (1 + 1e-12)
        if not any(work.hidden for work in each.works):
            assert bare == pytest.approx(device, rel=1e-12)


def test_products_are_those_of_the_model() -> None:
    """Forward: two FLOP for each weight of the layer and token, and of attention two products over the causal half."""
    model, tokens = zoo.load("llama3.1_8b"), 4096
    for tp in (1, 2):
        found = table(tp=tp)["layer_dense"]
        h, f, kv = model.hidden_size, model.ffn_hidden_size, model.num_query_groups * model.kv_channels
        products = 2 * tokens * (h * (2 * h + 2 * kv) + 3 * h * f) + 2 * tokens * tokens * h
        flops = {phase: sum(w.flops for w in found.works if w.phase == phase) for phase in ("forward", "weight")}
        assert tp * flops["forward"] == pytest.approx(products)
        assert tp * flops["weight"] == pytest.approx(products - 2 * tokens * tokens * h)
        assert found.number == model.num_layers


def test_what_binds_follows_from_intensity() -> None:
    long, short = table()["layer_dense"], table(seq_length=128)["layer_dense"]
    binds = {work.operator: work.bound for work in long.works}
    assert (binds["fc1"], binds["core_attn"], binds["act"]) == ("compute", "compute", "memory")
    of_short = next(work for work in short.works if work.operator == "fc1")
    assert of_short.bound == "memory"
    assert of_short.intensity is not None
    assert of_short.intensity < short.ridge


def test_an_exchange_is_bound_by_the_links_it_takes() -> None:
    near = {work.operator: work.bound for work in table(tp=2)["layer_dense"].works}
    far = {work.operator: work.bound for work in table(gpus=64, tp=32)["layer_dense"].works}
    thin = SCALES["inter_bandwidth"](H100, 0.05)
    slow = {work.operator: work.bound for work in table(gpus=64, tp=32, cluster=thin)["layer_dense"].works}
    assert near["fc2.ar"] == "link"
    assert far["fc2.ar"] in ("fabric", "links")
    assert slow["fc2.ar"] == "fabric"


def test_the_command_shows_writes_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    case = ("layers", "--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--mbs", "1", "--gbs", "64")
    file = tmp_path / "layers.csv"
    assert main([*case, "--seq-length", "4096", "--json", "--csv", str(file)]) == 0
    blocks = json.loads(capsys.readouterr().out)["blocks"]
    assert [each["name"] for each in blocks] == ["embedding", "layer_dense", "head"]
    rows = list(csv.DictReader(file.open()))
    assert len(rows) == sum(len(each["operators"]) for each in blocks)
    assert {row["bound"] for row in rows} >= {"compute", "memory", "host"}
    out = command_line.told("projector", *case, "--seq-length", "4096", "--modules")
    says(out, "layer_dense, 32 in the model", "bound by")
    assert main([*case, "--seq-length", "4096", "--csv", str(tmp_path)]) == 2
    assert "Traceback" not in command_line.refused("projector", *case, "--seq-length", "4096", "--tp", "3")


# A step whose micro-batches enter at both ends: two copies of every stage, and what that costs and hides.


CLUSTER = catalogue.cluster("h100_sxm")
MOE = {"global_batch_size": 256, "ep": 8, "moe_token_dispatcher_type": "alltoall", "recompute_granularity": "none"}


def made(model: str = "llama3_8b", gpus: int = 16, **changes: object) -> Projection:
    return project(workload(model, gpus, **{"pp": 4} | changes), CLUSTER)


def test_two_copies_of_the_parameters() -> None:
    one, two = made(pipeline_schedule="1f1b"), made(pipeline_schedule="dualpipe")
    for pair in zip(two.memory.ranks, reversed(two.memory.ranks), strict=True):
        assert pair[0].parameters == pair[1].parameters
    held, alone = (sum(rank.parameters for rank in each.memory.ranks) for each in (two, one))
    assert held == pytest.approx(2 * alone)
    for name in ("weights", "gradients"):
        both = [sum(rank.components[name] for rank in each.memory.ranks) for each in (two, one)]
        assert both[0] == pytest.approx(2 * both[1])


def test_less_bubble_and_more_around_the_pipeline() -> None:
    one, two = made(pipeline_schedule="zb-h1"), made(pipeline_schedule="dualpipe")
    assert two.breakdown["bubble_s"] < one.breakdown["bubble_s"]
    assert two.breakdown["optimizer_s"] > one.breakdown["optimizer_s"]
    assert sum(two.breakdown.values()) == pytest.approx(two.step_seconds)
    work = [sum(each.breakdown[key] for key in ("compute_s", "host_s", "tp_s")) for each in (one, two)]
    assert work[1] == pytest.approx(work[0], rel=0.25)  # stages at the ends are longer: here they share a rank


def test_copies_exchange_their_gradients_even_without_data_parallelism() -> None:
    alone, two = (made(gpus=8, tp=2, pipeline_schedule=name) for name in ("zb-h1", "dualpipe"))
    assert two.resolved.workload.dp == 1
    assert two.breakdown["dp_s"] > alone.breakdown["dp_s"]


def test_an_exchange_of_tokens_hides_beside_the_other_direction() -> None:
    shown, hidden = (
        made("mixtral_8x7b", 32, pipeline_schedule="dualpipe", overlap_moe_expert_parallel_comm=flag, **MOE)
        for flag in (False, True)
    )
    assert hidden.breakdown["ep_s"] < 0.5 * shown.breakdown["ep_s"]
    assert hidden.step_seconds < shown.step_seconds


def test_it_takes_an_even_number_of_micro_batches() -> None:
    caught = refusal(made, pipeline_schedule="dualpipe", global_batch_size=60)
    (problem,) = caught.problems
    assert problem.key == "recipe.global_batch_size"
    assert "a multiple of 2 for dualpipe, not 15 micro-batches" in problem.expected


@pytest.mark.parametrize(("name", "vpp"), [("hanayo", 2), ("hanayo", 4), ("v-1f1b", 2), ("dualpipe-v", 2)])
def test_the_other_new_orders_make_a_step(name: str, vpp: int) -> None:
    found = made(pipeline_schedule=name, vpp=vpp)
    assert sum(found.breakdown.values()) == pytest.approx(found.step_seconds)
    assert found.memory.allocated > 0
