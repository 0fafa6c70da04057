"""What if a GPU had another figure: on the command line and in a file of two lines on a base."""

import command_line
import pytest
import yaml

import projector as pj
from projector.errors import InputError
from projector.hardware import catalogue, what_if

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


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"gpu.hbm": 4e12}, r"--set: gpu\.hbm: found 'hbm'"),
        ({"gpu.memory_bandwidth_tbs": 4e12}, "a number from 0.001 to 1000"),
        ({"gpu.peak_tflops": 3, "gpu.peak_tflops.bf16": 4}, "peak_tflops: found 3"),
        ({"gpu.memory_gib": "much"}, r"--set: gpu\.memory_gib: found 'much'"),
        ({"cluster.inter.bandwidth": 4}, "nearest: bandwidth_gbs"),
        ({"cluster.gpus_per_node": 16}, "another value: one of intra, inter"),
    ],
)
def test_mistakes_name_the_key(stated: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        what_if.changed(catalogue.cluster("h100"), stated, "--set")


def own_gpu(tmp_path, **content: object) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"base": "gpus/h100_sxm", **content}))
    return str(path)


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
        assert "80 GB, changed" in told
        assert "Assumed: gpu.hbm_bytes_per_s=4e+12 (assumed, for a what-if)" in told
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
