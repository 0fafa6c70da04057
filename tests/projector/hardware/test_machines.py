"""Machines that clouds rent: their network is what the provider states, and all names find them."""

from __future__ import annotations

import pytest

from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.machines import _table, machine_names, machine_of


def test_every_machine_has_a_cluster_whose_adapters_carry_its_line_rate() -> None:
    for entry in _table():
        cluster = catalogue.cluster(entry["names"][0])
        hosts = cluster.gpus_per_node // cluster.gpus_per_host
        assert cluster.intra.bandwidth >= cluster.inter.bandwidth
        assert entry["source"]
        if "network" in entry:
            assert cluster.name == entry["names"][0]
            assert cluster.inter.bandwidth * cluster.gpus_per_host * 8 / 1e9 == pytest.approx(entry["network"]["gbits"])
            assert cluster.inter.nics_per_node == entry["network"]["nics"] * hosts
        assert all(catalogue.cluster(name) == cluster for name in entry["names"])
    names = [name for entry in _table() for name in entry["names"]]
    assert len({name.lower() for name in names}) == len(names)
    assert not set(machine_names()) & set(catalogue.cluster_names())


@pytest.mark.parametrize(
    ("text", "machine", "gpu", "technology"),
    [
        ("ml.p5.48xlarge", "p5.48xlarge", "h100_sxm", "efa"),
        ("Standard_ND96isr_H100_v5", "ND96isr_H100_v5", "h100_sxm", ""),
        ("standard_nd96amsr_a100_v4", "ND96amsr_A100_v4", "a100_sxm_80gb", ""),
        ("A3-ULTRAGPU-8G", "a3-ultragpu-8g", "h200", "roce"),
        ("a4x-highgpu-4g", "a4x-highgpu-4g", "gb200", "roce"),
        ("BM.GPU.MI300X.8", "BM.GPU.MI300X.8", "mi300x", "roce"),
    ],
)
def test_names_of_the_field_are_found(text: str, machine: str, gpu: str, technology: str) -> None:
    cluster = catalogue.cluster(text)
    assert (machine_of(text), cluster.gpu.name, cluster.inter.technology) == (machine, gpu, technology)
    assert catalogue.knows_cluster(text)


def test_a_label_is_no_name_of_a_machine_and_an_unknown_one_is_refused_with_the_nearest() -> None:
    assert machine_of("nvidia-h100-80gb") is None
    assert machine_of("nvidia-h100-80gb", "gke") == "a3-highgpu-8g"
    with pytest.raises(InputError, match=r"p5\.48xlarge"):
        catalogue.cluster("p5.49xlarge")
