"""A GPU is asked what it can do: a plan beyond it is refused everywhere, a run beyond it is a doubt."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from asked import refusal, says
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from projector import frameworks
from projector.__main__ import main
from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.hardware.architectures import ATTENTION, TRANSPORTS, known, precisions
from projector.search.explore import changes
from projector.search.space import space
from projector.settle import capable
from projector.settle.workload import settle
from projector.workload.field_facts import about_of
from projector.workload.recipe import Recipe
from tests import workloads

_IMPOSSIBLE = tabled("refusals", "beyond_a_gpu")


@pytest.mark.parametrize(("job", "gpu", "asked", "able"), _IMPOSSIBLE)
def test_what_a_gpu_cannot_do_is_refused_with_what_it_can(
    capsys, job: tuple[str, ...], gpu: str, asked: tuple[str, ...], able: str
) -> None:
    assert main(["performance", *job, "--gpu", gpu, *asked]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    says(said.err, f"what {catalogue.find_gpu(gpu)} (", able)


_A_GPU_EACH = {catalogue.gpu(name).arch: name for name in catalogue.gpu_names()}.values()


@pytest.mark.parametrize("framework", frameworks.names())
def test_what_a_framework_does_by_itself_is_something_that_the_gpu_can(framework: str) -> None:
    for gpu in _A_GPU_EACH:
        cluster = catalogue.default_cluster(gpu)
        precision = "bf16" if "bf16" in precisions(cluster.gpu) else "fp16"
        for date in ("", "2022-06", "2024-06"):
            load = workloads.workload("mixtral_8x7b", 8, framework, ep=8, precision=precision)
            made = settle(replace(load, framework_date=date), cluster).workload.recipe
            assert not capable.problems(made, cluster.gpu), (gpu, date)


@given(
    gpu=st.sampled_from(catalogue.gpu_names()),
    precision=st.sampled_from(about_of(Recipe)["precision"].choices),
    backend=st.sampled_from((None, *about_of(Recipe)["attention_backend"].choices)),
    library=st.sampled_from((None, "deepep", "hybridep", "mega_moe")),
)
def test_a_plan_runs_where_the_catalogue_says_so_and_a_run_that_exists_always(
    gpu: str, precision: str, backend: str | None, library: str | None
) -> None:
    cluster = catalogue.default_cluster(gpu)
    dispatch = {} if library is None else {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": library}
    load = workloads.workload(
        "mixtral_8x7b", 8, "primus", ep=8, precision=precision, attention_backend=backend, **dispatch
    )
    kernels, transports = (known(cluster.gpu.arch, kind) for kind in (ATTENTION, TRANSPORTS))
    able = precision in cluster.gpu.peak
    able &= backend not in ("flash", "fa2", "fa3", "fa4", "fused") or kernels is None or backend in kernels
    able &= library is None or transports is None or library in transports
    assert able == (not capable.problems(load.recipe, cluster.gpu))
    if able:
        with suppress(Unsupported):
            settle(load, cluster)
        return
    refusal(settle, load, cluster, match="runs: ")
    if backend != "fa4":
        doubts = [text for text in settle(load, cluster, published=True).assumed if "as the run says" in text]
        assert len(doubts) == len(capable.problems(load.recipe, cluster.gpu))


def test_every_architecture_of_the_catalogue_is_known_by_source_and_words() -> None:
    words = {
        ATTENTION: about_of(Recipe)["attention_backend"].choices,
        TRANSPORTS: ("deepep", "hybridep", "mega_moe", "nvls"),
    }
    for name in catalogue.gpu_names():
        gpu = catalogue.gpu(name)
        assert precisions(gpu)
        for kind, allowed in words.items():
            entries = known(gpu.arch, kind)
            assert entries is not None, f"{name}: {gpu.arch}"
            assert all(word in allowed and len(source) > 20 for word, source in entries.items())


@pytest.mark.parametrize("gpu", catalogue.gpu_names())
def test_nothing_is_offered_that_the_gpu_cannot_do(gpu: str) -> None:
    cluster = catalogue.default_cluster(gpu)
    precision = "fp16" if "fp16" in cluster.gpu.peak else "fp32"
    load = workloads.workload("mixtral_8x7b", 8, "primus", ep=8, precision=precision, data_parallel_sharding="optim")
    offered = [
        change.on(load).recipe for kind in ("precision", "experts") for change in changes(kind, load, cluster.gpu)
    ]
    varied = {"precision": ()} if "fp8" in cluster.gpu.peak else {}
    axes = space(load, cluster, vary=varied).layers
    offered += [replace(load.recipe, **option) for axis in axes for option in axis]
    assert not [problem for recipe in offered for problem in capable.problems(recipe, cluster.gpu)]
    assert ("mxfp8" in {recipe.precision for recipe in offered}) == ("mxfp8" in cluster.gpu.peak or gpu == "cpu")


def test_a_log_of_what_no_source_knows_is_a_doubt(capsys, tmp_path, shared: Path) -> None:
    text = (shared / "logs_wild" / "bs_meg_n64.log").read_text()
    run = tmp_path / "run.log"
    run.write_text(
        text.replace("fp16 ............................................ True", "fp16 .............. False").replace(
            "bf16 ............................................ False", "bf16 .............. True"
        )
    )
    assert main(["performance", "--config", str(run), "--gpu", "v100"]) == 0
    assert "precision=bf16 as the run says, though it is beyond what v100_sxm_32gb" in capsys.readouterr().out
    assert main(["performance", "--config", str(run), "--gpu", "v100", "--precision", "fp8"]) == 2
