"""The table of a layer agrees with the step that it is a part of, and with what is known of a transformer."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from projector.__main__ import main
from projector.hardware import catalogue
from projector.hardware.efficiency import of
from projector.hardware.scaled import SCALES
from projector.hardware.types import Cluster
from projector.kernels import settings
from projector.settle.workload import settled
from projector.step.work import BlockWork, works
from projector.workload import zoo
from tests.workloads import workload

H100 = catalogue.default_cluster("h100_sxm")


def table(model: str = "llama3.1_8b", gpus: int = 8, cluster: Cluster = H100, **recipe: Any) -> dict[str, BlockWork]:
    resolved = settled(workload(model, gpus, **recipe), cluster, published=False)
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
    assert main([*case, "--seq-length", "4096", "--modules"]) == 0
    out = capsys.readouterr().out
    assert "layer_dense, 32 in the model" in out
    assert "bound by" in out
    assert main([*case, "--seq-length", "4096", "--csv", str(tmp_path)]) == 2
    assert main([*case, "--seq-length", "4096", "--tp", "3"]) == 2
    assert "Traceback" not in capsys.readouterr().err
