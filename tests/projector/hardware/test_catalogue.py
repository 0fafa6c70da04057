"""The catalogue: every file loads, its physics holds, names of the field are found, mistakes are all reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from projector.errors import InputError
from projector.hardware import catalogue
from projector.hardware.gpu_file import read_gpu

GPU_FOLDER = Path(catalogue.__file__).parent / "gpus"
EXPECTED = {
    *(
        "a100_pcie_80gb",
        "a100_sxm_40gb",
        "a100_sxm_80gb",
        "h100_sxm",
        "h100_pcie",
        "h100_sxm_96gb_500w",
        "h200",
        "h800",
    ),
    *("b200", "b300", "gb200", "gb300", "mi250x", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x"),
    *("v100_sxm_16gb", "v100_sxm_32gb", "cpu"),
}


def test_every_named_gpu_is_there_with_a_default_cluster() -> None:
    assert set(catalogue.gpu_names()) >= EXPECTED
    for name in catalogue.gpu_names():
        cluster = catalogue.default_cluster(name)
        assert cluster.gpu.name == name == catalogue.gpu(name).name
        assert cluster.gpus_per_node % cluster.gpus_per_host == 0


@pytest.mark.parametrize("name", catalogue.gpu_names())
def test_peak_is_rate_times_units_times_clock(name: str) -> None:
    gpu = catalogue.gpu(name)
    assert gpu.flops_per_clock
    for dtype, rate in gpu.flops_per_clock.items():
        assert gpu.peak[dtype] == pytest.approx(rate * gpu.compute_units * gpu.peak_clock_mhz * 1e6, rel=0.03)
    assert gpu.usable_memory_bytes < gpu.memory_bytes
    assert gpu.peak_clock_mhz <= gpu.boost_clock_mhz
    assert gpu.sources


@pytest.mark.parametrize("name", catalogue.cluster_names())
def test_clusters_are_faster_inside_than_between_nodes(name: str) -> None:
    cluster = catalogue.cluster(name)
    assert cluster.name == name
    assert cluster.intra.bandwidth >= cluster.inter.bandwidth
    assert cluster.intra.latency <= cluster.inter.latency
    assert cluster.sources


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AMD Instinct MI300X VF", "mi300x"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA H200 NVL", "h200_nvl"),
        ("B200-SXM", "b200"),
        ("NVIDIA Blackwell GPU (B200-SXM-180GB)", "b200"),
        ("NVIDIA Blackwell Ultra GPU (GB300)", "gb300"),
        ("H100-SXM-96GB-HBM2e-500W", "h100_sxm_96gb_500w"),
        ("A800-80GB", "a800_sxm_80gb"),
        ("NVIDIA H200-NVL-141GB", "h200_nvl"),
        ("NVIDIA L40S", "l40s"),
        ("GH200", "gh200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", None),
        ("H100", "h100_sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI250X GCD", "mi250x"),
        ("a100 sxm 40gb", "a100_sxm_40gb"),
        ("NVIDIA H200-SXM5-141GB", "h200"),
        ("mi355x", "mi355x"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm_80gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie_80gb"),
        ("Tesla V100-SXM2-32GB", "v100_sxm_32gb"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI250X / MI250", "mi250x"),
        ("8x MI355X", "mi355x"),
        ("TPU v5p", None),
        ("", None),
    ],
)
def test_names_of_the_field_are_found(text: str, name: str | None) -> None:
    assert catalogue.find_gpu(text) == name


def test_every_gpu_of_the_corpus_is_found(shared: Path) -> None:
    tables = sorted((shared / "corpus").glob("*.yaml"))
    lines = [line for path in tables for line in path.read_text("utf-8").splitlines()]
    stated = {line.split(":", 1)[1].strip() for line in lines if line.strip().startswith(("gpu:", "accelerator:"))}
    assert len(stated) > 20
    assert [text for text in stated - {"null"} if catalogue.find_gpu(text) is None] == []


def test_unknown_names_say_the_nearest() -> None:
    with pytest.raises(InputError, match="mi355x"):
        catalogue.gpu("mi335x")
    with pytest.raises(InputError, match="mi355x"):
        catalogue.cluster("mi335x")


def test_a_host_is_grace_where_its_file_says_so_or_a_domain_spans_hosts() -> None:
    hosts = {name: catalogue.default_cluster(name).host for name in ("gh200", "gb200", "h100", "h200_nvl")}
    assert hosts == {"gh200": "grace", "gb200": "grace", "h100": "x86", "h200_nvl": "x86"}


def test_hosts_of_an_nvlink_domain_change_but_the_domain_stays() -> None:
    cluster = catalogue.default_cluster("GB200", gpus_per_node=8)
    assert (cluster.gpus_per_host, cluster.gpus_per_node) == (8, 72)
    half = catalogue.default_cluster("mi300x", gpus_per_node=4)
    assert (half.gpus_per_host, half.gpus_per_node, half.intra.size) == (4, 4, 8)
    assert catalogue.default_cluster("h100", gpus_per_node=16).intra.size == 16
    with pytest.raises(InputError):
        catalogue.default_cluster("mi300x", gpus_per_node=16)
    with pytest.raises(InputError):
        catalogue.default_cluster("h100", gpus_per_node=0)


def test_own_files_are_read(tmp_path: Path) -> None:
    chip = yaml.safe_load((GPU_FOLDER / "h100_sxm.yaml").read_text("utf-8"))
    chip["name"] = "own"
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(chip), encoding="utf-8")
    fabric = {"name": "wire", "topology": "switch", "bandwidth_gbs": 100, "latency_us": 1}
    values = ["intra.bandwidth_gbs", "intra.latency_us", "inter.bandwidth_gbs", "inter.latency_us"]
    system = {
        "name": "own_system",
        "gpu": str(tmp_path / "own.yaml"),
        "gpus_per_node": 4,
        "intra": fabric,
        "inter": fabric,
        "sources": [{"title": "measured here", "kind": "published", "values": values}],
    }
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(system), encoding="utf-8")
    cluster = catalogue.cluster(str(tmp_path / "system.yaml"))
    assert cluster.gpu.name == "own"
    assert cluster.intra.bandwidth == 100e9


def test_all_mistakes_of_a_gpu_file_at_once(tmp_path: Path) -> None:
    chip = yaml.safe_load((GPU_FOLDER / "mi300x.yaml").read_text("utf-8"))
    chip |= {"compute_units": 200, "vendor": "amdd", "hbm": 3, "memory_gib": -1, "tdp_watts": True}
    chip["peak_tflops"]["bf15"] = 1
    chip["sources"] = chip["sources"][1:]
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(chip), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_gpu(path)
    keys = {problem.key for problem in caught.value.problems}
    assert keys >= {"vendor", "hbm", "memory_gib", "tdp_watts", "peak_tflops.bf15", "peak_tflops.bf16", "sources"}
    assert all(problem.where == str(path) for problem in caught.value.problems)


def test_all_mistakes_of_a_cluster_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    text = (
        "name: x\ngpu: h1000\ngpus_per_node: 6\ngpus_per_host: 4\nintra: {topology: star, bandwith_gbs: 3}\ninter: 5\n"
    )
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        catalogue.cluster(str(path))
    keys = {problem.key for problem in caught.value.problems}
    assert keys >= {
        "gpu",
        "gpus_per_host",
        "intra.topology",
        "intra.bandwith_gbs",
        "intra.bandwidth_gbs",
        "inter",
        "sources",
    }


@pytest.mark.parametrize("text", ["a: [1\n", "- 1\n", ""])
def test_broken_yaml_is_one_problem(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        catalogue.gpu(str(path))
    assert len(caught.value.problems) == 1


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        catalogue.cluster(str(tmp_path / "none.yaml"))
