"""``--gemm-backend``, ``--gpu-clock-mhz``, ``--power-cap-watts`` and the variables that Primus reads for them."""

import sys
from argparse import Namespace
from functools import partial

import command_line
import pytest
from cli_command import MIXTRAL, ON_MI355X, VARIABLES, projector
from tabled import tabled

from projector.cli import run
from projector.cli.megatron_switches import take
from projector.errors import InputError
from tests.projector.kernels.origami_package import RELEASED, build


@pytest.fixture
def document(document):
    return partial(document, *ON_MI355X)


def parts(made):
    return made["projections"]["simulate"]["breakdown"]


def test_a_clock_moves_compute_and_neither_network_nor_memory(document):
    slow, fast = document("--gpu-clock-mhz", "1000"), document("--gpu-clock-mhz", "2000")
    assert slow["settings"] == ["gpu_clock_mhz=1000", "sustained_clock_mhz=1000"]
    assert 1.3 < parts(slow)["compute_s"] / parts(fast)["compute_s"] <= 2.0
    assert parts(slow)["optimizer_s"] == pytest.approx(parts(fast)["optimizer_s"])
    assert slow["memory"] == fast["memory"]
    # The peak that MFU is stated against is the data sheet's at any clock.
    a, b = (made["projections"]["simulate"] for made in (slow, fast))
    assert a["mfu"] * a["step_seconds"] == pytest.approx(b["mfu"] * b["step_seconds"])


def test_origami_prices_the_dense_products(document, monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", build(RELEASED))
    ours, theirs = document(), document("--gemm-backend", "origami")
    assert theirs["settings"] == ["gemm_backend=origami"]
    assert parts(theirs)["compute_s"] != parts(ours)["compute_s"]
    assert parts(theirs)["optimizer_s"] == parts(ours)["optimizer_s"]


def test_what_is_set_is_printed():
    done = projector("performance", *ON_MI355X, "--gpu-clock-mhz", "1000")
    assert done.code == 0
    assert "Set: gpu_clock_mhz=1000" in done.out
    assert "Set: sustained_clock_mhz=1000" in done.out


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--gpu-clock-mhz", value) for value in ("0", "-1500", "1.7", "fast", "nan")),
        *(("--power-cap-watts", value) for value in ("0", "-5", "1kW")),
    ],
)
def test_what_is_no_clock_or_power_is_refused_in_one_line(flag, value):
    (line,) = projector("performance", *ON_MI355X, flag, value).refused()
    assert f"{flag}: found {value!r}, expected a number of " in line


def test_backends_that_are_not_there_are_refused_with_everything_else(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", None)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert run(["performance", *ON_MI355X, "--gemm-backend", "orgami"]) == 2
    assert run(["performance", "--config", MIXTRAL, "--cluster", "nowhere", "--gemm-backend", "origami"]) == 2
    misspelt, nowhere, missing = capsys.readouterr().err.splitlines()
    assert misspelt == "--gemm-backend: found 'orgami', expected a known name; nearest: origami"
    assert nowhere.startswith("--cluster")
    assert "rocm-origami" in missing


def test_variables_are_blamed_for_what_they_say(monkeypatch):
    monkeypatch.setenv("PRIMUS_GPU_CLOCK_MHZ", "fast")
    monkeypatch.setenv("PRIMUS_GEMM_BACKEND", "nobody")
    clock, backend = command_line.refused("projector", "performance", *ON_MI355X).splitlines()
    assert clock.startswith("PRIMUS_GPU_CLOCK_MHZ: found 'fast'")
    assert backend.startswith("PRIMUS_GEMM_BACKEND: found 'nobody'")


def test_origami_on_other_devices_is_unsupported(monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", build(RELEASED))
    flags = ("--cluster", "h100_sxm", "--target-nodes", "8", "--gemm-backend", "origami")
    assert command_line.refused("projector", "performance", "--config", MIXTRAL, *flags) == (
        "unsupported: GEMM backend origami knows gfx90a, gfx942, gfx950, not h100_sxm (hopper)\n"
    )


@pytest.mark.parametrize("model", ["vit_era5", "llama_nemotron_ultra_253b"])
def test_layers_of_a_model_with_parts_that_do_nothing(model: str) -> None:
    done = projector("layers", "--model", model, "--gpu", "h200", "--gpus", "64", "--gbs", "64", "--tp", "8")
    assert (done.code, done.err) == (0, "")
    assert "\nall " in done.out


# Switches of Megatron-LM that are no field by themselves, on the command line of the projector.


def _taken(rest: str, **stated: str) -> tuple[dict[str, str], list[str]]:
    parsed = Namespace(stated={key: (f"--{key}", text) for key, text in stated.items()})
    left = take(parsed, rest.split())
    return {key: text for key, (_, text) in parsed.stated.items()}, left


@pytest.mark.parametrize(
    ("rest", "stated", "fields"),
    tabled("refusals", "megatron_switches"),
)
def test_they_mean_what_a_script_that_gives_them_means(
    rest: str, stated: dict[str, str], fields: dict[str, str]
) -> None:
    assert _taken(rest, **stated) == (fields, [])


@pytest.mark.parametrize(
    "rest", ["--foo", "--swiglu", "--num-layers-per-virtual-pipeline-stage 4", "--lr 1e-4", "word"]
)
def test_what_decides_no_field_is_left_for_the_error(rest: str) -> None:
    assert _taken(rest) == ({}, rest.split())


def test_a_word_behind_a_switch_is_left_as_well() -> None:
    assert _taken("--bf16 maybe")[1] == ["maybe"]


@pytest.mark.parametrize(("rest", "stated"), tabled("refusals", "contradicting_flags"))
def test_a_contradiction_is_a_mistake(rest: str, stated: dict[str, str]) -> None:
    with pytest.raises(InputError, match=rest.split()[-1]):
        _taken(rest, **stated)


def test_on_the_command_line() -> None:
    job = "--model gpt2 --gpu h100 --gpus 8 --micro-batch-size 1 --global-batch-size 8 --seq-length 1024"
    done = projector(
        "performance", *job.split(), "--bf16", "--use-distributed-optimizer", "--tensor-model-parallel-size", "2"
    )
    assert "data-parallel sharding optim" in done.out
    assert done.code == 0


def test_a_switch_whose_field_has_more_words_may_stand_alone() -> None:
    run = ("performance", "--model", "deepseek_v2_lite", "--gpu", "h100", "--gpus", "8", "--ep", "8", "--gbs", "64")
    alone, said = (
        projector(*run, "--mbs", "1", "--seq-length", "4096", "--moe-grouped-gemm", *word, "--json")
        for word in ((), ("te",))
    )
    assert alone.document["recipe"]["moe_grouped_gemm"] == "te"
    assert alone.document == said.document
