"""``--gemm-backend``, ``--gpu-clock-mhz``, ``--power-cap-watts`` and the variables that Primus reads for them."""

import sys
from argparse import Namespace
from functools import partial

import pytest
from asked import refusal
from cli_command import MIXTRAL, ON_MI355X, VARIABLES, refused
from tabled import tabled

from projector.cli.megatron_switches import take
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


def test_backends_that_are_not_there_are_refused_with_everything_else(monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", None)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (misspelt,) = refused("performance", *ON_MI355X, "--gemm-backend", "orgami")
    assert misspelt == "--gemm-backend: found 'orgami', expected a known name; nearest: origami"
    flags = ("--cluster", "nowhere", "--gemm-backend", "origami")
    nowhere, missing = refused("performance", "--config", MIXTRAL, *flags)
    assert nowhere.startswith("--cluster")
    assert "rocm-origami" in missing


def test_origami_on_other_devices_is_unsupported(monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", build(RELEASED))
    flags = ("--cluster", "h100_sxm", "--target-nodes", "8", "--gemm-backend", "origami")
    (line,) = refused("performance", "--config", MIXTRAL, *flags)
    assert line == "unsupported: GEMM backend origami knows gfx90a, gfx942, gfx950, not h100_sxm (hopper)"


# Switches of Megatron-LM that are no field by themselves, on the command line of the projector.


def _taken(rest: str, **stated: str) -> tuple[dict[str, str], list[str]]:
    parsed = Namespace(neutral=(), stated={key: (f"--{key}", text) for key, text in stated.items()})
    left = take(parsed, rest.split())
    return {key: text for key, (_, text) in parsed.stated.items()}, left


@pytest.mark.parametrize(("rest", "stated", "fields"), tabled("refusals", "megatron_switches"))
def test_they_mean_what_a_script_that_gives_them_means(
    rest: str, stated: dict[str, str], fields: dict[str, str]
) -> None:
    assert _taken(rest, **stated) == (fields, [])


@pytest.mark.parametrize(
    "rest",
    [
        "--foo",
        "--swiglu",
        "--num-layers-per-virtual-pipeline-stage 4",
        "--data-parallel-sharding-strategy optim_grads",
        "--lr 1e-4",
        "word",
    ],
)
def test_what_decides_no_field_is_left_for_the_error(rest: str) -> None:
    assert _taken(rest) == ({}, rest.split())


def test_a_word_behind_a_switch_is_left_as_well() -> None:
    assert _taken("--bf16 maybe")[1] == ["maybe"]


@pytest.mark.parametrize(("rest", "stated"), tabled("refusals", "contradicting_flags"))
def test_a_contradiction_is_a_mistake(rest: str, stated: dict[str, str]) -> None:
    refusal(_taken, rest, **stated, match=rest.split()[-1])
