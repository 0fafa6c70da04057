"""The catalogue: every file loads, its physics holds, names of the field are found, mistakes are all reported."""

from dataclasses import replace
from pathlib import Path

import command_line
import pytest
import yaml
from asked import put, refusal, says
from tabled import tabled

import projector as pj
from projector.hardware import catalogue, efficiency, what_if
from projector.hardware.catalogue import _table, machine_names, machine_of
from projector.hardware.gpu_file import read_gpu
from projector.hardware.types import Cluster
from projector.hardware.yaml_file import read_described

GPU_FOLDER = Path(catalogue.__file__).parent / "gpus"
EXPECTED = {
    *("a100_pcie_80gb", "a100_sxm_40gb", "a100_sxm_80gb", "h100_sxm", "h100_pcie", "h100_sxm_96gb_500w", "h200", "h800"),
    *("b200", "b300", "gb200", "gb300", "mi250x", "mi300a", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x"),
    *("v100_sxm_16gb", "v100_sxm_32gb", "cpu"),
}  # fmt: skip


def test_every_named_gpu_is_there_with_a_default_cluster() -> None:
    assert set(catalogue.gpu_names()) >= EXPECTED
    for name in catalogue.gpu_names():
        cluster = catalogue.default_cluster(name)
        assert cluster.gpu.name == name == catalogue.gpu(name).name
        assert cluster.gpu.peak_clock_mhz <= cluster.gpu.boost_clock_mhz


@pytest.mark.parametrize("name", catalogue.cluster_names())
def test_clusters_are_faster_inside_than_between_nodes(name: str) -> None:
    cluster = catalogue.cluster(name)
    assert cluster.name == name
    assert cluster.intra.bandwidth >= cluster.inter.bandwidth
    assert cluster.intra.latency <= cluster.inter.latency
    assert cluster.sources


@pytest.mark.parametrize(("text", "name"), tabled("names", "gpus_by_free_text"))
def test_names_of_the_field_are_found(text: str, name: str | None) -> None:
    assert catalogue.find_gpu(text) == name


def test_every_gpu_of_the_corpus_is_found(shared: Path) -> None:
    tables = sorted((shared / "corpus").glob("*.yaml"))
    lines = [line for path in tables for line in path.read_text("utf-8").splitlines()]
    stated = {line.split(":", 1)[1].strip() for line in lines if line.strip().startswith(("gpu:", "accelerator:"))}
    assert len(stated) > 20
    assert [text for text in stated - {"null"} if catalogue.find_gpu(text) is None] == []


def test_unknown_names_say_the_nearest() -> None:
    for name, nearest in (("mi335x", "mi355x"), ("h100_63gb", "h100_sxm_64gb"), ("b201", "b200")):
        refusal(catalogue.gpu, name, match=nearest)
    refusal(catalogue.cluster, "mi335x", match="mi355x")


def test_a_host_is_grace_where_its_file_says_so_or_a_domain_spans_hosts() -> None:
    hosts = {name: catalogue.default_cluster(name).host for name in ("gh200", "gb200", "h100", "h200_nvl")}
    assert hosts == {"gh200": "grace", "gb200": "grace", "h100": "x86", "h200_nvl": "x86"}


def test_hosts_of_an_nvlink_domain_change_but_the_domain_stays() -> None:
    cluster = catalogue.default_cluster("GB200", gpus_per_node=8)
    assert (cluster.gpus_per_host, cluster.gpus_per_node) == (8, 72)
    half = catalogue.default_cluster("mi300x", gpus_per_node=4)
    assert (half.gpus_per_host, half.gpus_per_node, half.intra.size) == (4, 4, 8)
    assert catalogue.default_cluster("h100", gpus_per_node=16).intra.size == 16
    refusal(catalogue.default_cluster, "mi300x", gpus_per_node=16)
    refusal(catalogue.default_cluster, "h100", gpus_per_node=0)


def test_all_mistakes_of_a_gpu_file_at_once(tmp_path) -> None:
    chip = yaml.safe_load((GPU_FOLDER / "mi300x.yaml").read_text("utf-8"))
    chip |= {"compute_units": 200, "vendor": "amdd", "hbm": 3, "memory_gib": -1, "tdp_watts": True}
    chip["peak_tflops"]["bf15"] = 1
    chip["sources"] = chip["sources"][1:]
    path = put(tmp_path / "bad.yaml", yaml.safe_dump(chip))
    caught = refusal(read_gpu, path)
    keys = {problem.key for problem in caught.problems}
    assert keys >= {"vendor", "hbm", "memory_gib", "tdp_watts", "peak_tflops.bf15", "peak_tflops.bf16", "sources"}
    assert all(problem.where == str(path) for problem in caught.problems)


def test_all_mistakes_of_a_cluster_file_at_once(tmp_path) -> None:
    path = tmp_path / "bad.yaml"
    text = (
        "name: x\ngpu: h1000\ngpus_per_node: 6\ngpus_per_host: 4\nintra: {topology: star, bandwith_gbs: 3}\ninter: 5\n"
    )
    path.write_text(text, encoding="utf-8")
    caught = refusal(catalogue.cluster, str(path))
    keys = {problem.key for problem in caught.problems}
    assert keys >= {
        "gpu", "gpus_per_host", "intra.topology", "intra.bandwith_gbs", "intra.bandwidth_gbs", "inter", "sources",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["a: [1\n", "- 1\n", ""])
def test_broken_yaml_is_one_problem(tmp_path, text: str) -> None:
    assert len(refusal(catalogue.gpu, str(put(tmp_path / "broken.yaml", text))).problems) == 1


# Machines that clouds rent: their network is what the provider states, and all names find them.


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


@pytest.mark.parametrize(("text", "machine", "gpu", "technology"), tabled("names", "machines"))
def test_machines_are_found_by_their_names(text: str, machine: str, gpu: str, technology: str) -> None:
    cluster = catalogue.cluster(text)
    assert (machine_of(text), cluster.gpu.name, cluster.inter.technology) == (machine, gpu, technology)
    assert catalogue.knows_cluster(text)


def test_a_label_is_no_name_of_a_machine_and_an_unknown_one_is_refused_with_the_nearest() -> None:
    assert machine_of("nvidia-h100-80gb") is None
    assert machine_of("nvidia-h100-80gb", "gke") == "a3-highgpu-8g"
    refusal(catalogue.cluster, "p5.49xlarge", match=r"p5\.48xlarge")


# A file of hardware on a base: what it states counts, with a source of its own; everything else is the base's.

FASTER = {
    "name": "faster",
    "title": "HGX H100 with adapters twice as fast",
    "base": "clusters/h100_sxm",
    "inter": {"bandwidth_gbs": 100.0, "nics_per_node": None},
    "sources": [{"title": "a data sheet", "kind": "datasheet", "values": ["inter.bandwidth_gbs"]}],
}


def read(tmp_path, **changes: object) -> Cluster:
    return catalogue.cluster(str(put(tmp_path / "own.yaml", yaml.safe_dump({**FASTER, **changes}))))


def test_what_is_not_stated_is_the_base_s(tmp_path) -> None:
    found, base = read(tmp_path), catalogue.cluster("h100_sxm")
    inter = replace(base.inter, bandwidth=100e9, nics_per_node=None)
    assert found == replace(base, name="faster", inter=inter, sources=found.sources)
    assert "inter.bandwidth_gbs: datasheet, a data sheet" in found.sources
    assert not any("nics_per_node" in line for line in found.sources), "what is not there has no source"
    assert sum("inter.bandwidth_gbs" in line for line in found.sources) == 1
    assert "inter, inter.bandwidth_gbs: assumed, for a what-if" in read(tmp_path, sources=[]).sources


def test_a_name_alone_is_the_gpu_or_the_cluster_whose_keys_the_file_states(tmp_path) -> None:
    made = []
    for name in ("clusters/h100_sxm", "h100_sxm", "h100"):
        (tmp_path / "own.yaml").write_text(f"base: {name}\nname: own\ninter: {{bandwidth_gbs: 25}}\n")
        made.append(catalogue.cluster(str(tmp_path / "own.yaml")))
    assert made[0] == made[1] == made[2]
    assert made[0].inter.bandwidth == 25e9
    made = []
    for name, key in (
        ("gpus/h100_sxm", "memory_bandwidth_tbs: 4.0"),
        ("h100_sxm", "memory_bandwidth_tbs: 4.0"),
        ("h100", "hbm_bytes_per_s: 4e12"),  # which YAML takes for text
    ):
        (tmp_path / "own.yaml").write_text(f"base: {name}\n{key}\n")
        made.append(catalogue.gpu(str(tmp_path / "own.yaml")))
    assert made[0] == made[1] == made[2]
    assert made[0].memory_bandwidth == 4e12
    assert made[0].peak == catalogue.gpu("h100_sxm").peak


@pytest.mark.parametrize(
    ("changes", "expected"), [*tabled("refusals", "hardware_files"), ({"base": ["clusters/h100_sxm"]}, "base: found")]
)
def test_mistakes_name_the_file_and_the_key(tmp_path, changes: dict[str, object], expected: str) -> None:
    caught = refusal(read, tmp_path, **changes)
    assert "own.yaml" in str(caught)
    assert expected in str(caught)


def test_names_are_never_the_base_s() -> None:
    """What a GPU is called belongs to it alone: an alias of two would name one of them."""
    files = sorted(Path(catalogue.__file__).parent.glob("gpus/*.yaml"))
    aliases = [alias for file in files for alias in read_described(file).get("aliases", ())]
    assert len(aliases) == len(set(aliases))


# What if a GPU had another figure: on the command line and in a file of two lines on a base.


RUN = ("--model", "llama3.1_8b", "--gpus", "8", "--tp", "2", "--gbs", "64")
FIGURES = {
    "gpu.memory_bandwidth_tbs": (6.7, lambda c: c.gpu.memory_bandwidth, 6.7e12),
    "gpu.hbm_bytes_per_s": (6.7e12, lambda c: c.gpu.memory_bandwidth, 6.7e12),
    "gpu.memory_gib": (160, lambda c: c.gpu.usable_memory_bytes, 2 * 79.1 * 2**30),
    "gpu.peak_flops.bf16": (2 * 989.4e12, lambda c: c.gpu.flops_per_clock["bf16"], 8192),
    "gpu.tdp_watts": (500, lambda c: c.gpu.tdp_watts, 500),
    "cluster.inter.bandwidth_gbs": (100, lambda c: c.inter.bandwidth, 100e9),
    "cluster.intra.latency_s": (1e-6, lambda c: c.intra.latency, 1e-6),
    "cluster.host_link_gbs": (30, lambda c: c.host_link, 30e9),
}


@pytest.mark.parametrize("key", FIGURES)
def test_a_figure_is_what_is_stated_and_nothing_else_changes(key: str) -> None:
    base = catalogue.cluster("h100")
    stated, read, expected = FIGURES[key]
    made = what_if.changed(base, {key: stated}, "--set")
    assert read(made) == pytest.approx(expected)
    assert read(made) != read(base)
    own = {key.split(".")[0]: made}
    same = own.get("gpu") or made
    assert (same.gpu if key.startswith("cluster") else same.intra) == (base.gpu if "cluster" in own else base.intra)
    assert made.gpu.name == base.gpu.name  # its kernels and what was measured on it count on


def test_what_is_stated_as_it_is_changes_nothing() -> None:
    base = catalogue.cluster("h100")
    same = {"cluster.inter.bandwidth_gbs": base.inter.bandwidth / 1e9, "cluster.gpus_per_node": base.gpus_per_node}
    assert replace(what_if.changed(base, same, "--set"), sources=base.sources) == base


@pytest.mark.parametrize(("stated", "expected"), tabled("refusals", "what_if"))
def test_mistakes_name_the_key(stated: dict[str, object], expected: str) -> None:
    refusal(what_if.changed, catalogue.cluster("h100"), stated, "--set", match=expected)


def own_gpu(tmp_path, **content: object) -> str:
    return str(put(tmp_path / "own.yaml", yaml.safe_dump({"base": "gpus/h100_sxm", **content})))


@pytest.mark.parametrize("name", sorted(set(catalogue.cluster_names()) & set(catalogue.gpu_names())))
def test_a_gpu_on_a_base_runs_the_kernels_of_the_base_in_its_hosts(tmp_path, name: str) -> None:
    (tmp_path / "own.yaml").write_text(f"base: {name}\nname: own\n")
    found, usual = catalogue.cluster(str(tmp_path / "own.yaml")), catalogue.default_cluster(name)
    gpu = replace(found.gpu, name=name, title=usual.gpu.title, base="")
    assert replace(found, name=usual.name, gpu=gpu) == usual
    assert efficiency.of(found.gpu).parameters == efficiency.of(usual.gpu).parameters


def test_a_file_on_a_base_says_the_same_as_the_flag(tmp_path) -> None:
    file = own_gpu(tmp_path, memory_bandwidth_tbs=4)
    words = {"model": "llama3.1_8b", "gpus": 8, "tp": 2, "gbs": 64}
    by_file, by_flag = pj.project(gpu=file, **words), pj.project(gpu="h100", set="gpu.hbm_bytes_per_s=4e12", **words)
    assert by_file.step_seconds == by_flag.step_seconds < pj.project(gpu="h100", **words).step_seconds
    assert pj.project(gpu=own_gpu(tmp_path), **words).step_seconds == pj.project(gpu="h100", **words).step_seconds
    assert [text for text in by_file.assumed if "what-if" in text] == ["memory_bandwidth_tbs (assumed, for a what-if)"]


def test_answers_say_that_it_is_assumed(tmp_path) -> None:
    flag = ("--gpu", "h100", "--set", "gpu.hbm_bytes_per_s=4e12")
    for command in ("performance", "memory"):
        told = command_line.run("projector", command, *RUN, *flag).stdout
        says(told, "80 GB, changed", "Assumed: gpu.hbm_bytes_per_s=4e+12 (assumed, for a what-if)")
    asked = command_line.run("projector", "ask", *RUN[:4], *flag, "--budget", "0").stdout
    assert "Assumed: gpu.hbm_bytes_per_s=4e+12 (assumed, for a what-if)" in asked
    assert "--set gpu.hbm_bytes_per_s=4e12" in asked  # the command says it again
    file = own_gpu(tmp_path, name="mine", memory_bandwidth_tbs=4, tdp_watts=500)
    told = command_line.run("projector", "performance", *RUN, "--gpu", file).stdout
    assert "Assumed: memory_bandwidth_tbs, tdp_watts (assumed, for a what-if)" in told


def test_measured_kernels_are_of_the_gpu_as_it_is() -> None:
    words = (*RUN, "--gpu", "h100", "--set", "gpu.hbm_bytes_per_s=4e12", "--profiling-mode", "both")
    done = command_line.run("projector", "performance", *words)
    assert done.returncode == 2
    assert "kernels were measured" in done.stderr
