"""Lists, help and start-up."""

import subprocess
import sys
from typing import Any

import command_line
import pytest
from asked import says
from cli_command import ON_MI355X, ROOT, document, told

from projector import frameworks, posterior
from projector.errors import InputError
from projector.hardware import catalogue
from projector.parameter import FIELDS
from projector.projection import project
from projector.settle import launch
from projector.settle.support import Answer, supported
from projector.settle.workload import settle
from projector.workload import zoo
from tests.workloads import workload

HEAVY = ("shtab", "torch", "scipy", "pandas", "matplotlib", "rich")


def first_words(text):
    return {line.split()[0] for line in text.splitlines() if line.strip()}


def test_models():
    out = told("models")
    assert {name for name in zoo.names() if not zoo.is_template(name)} <= first_words(out)
    row = next(line for line in out.splitlines() if line.startswith("deepseek_v3 "))
    assert row.split()[1:4] == ["671.03", "37.55", "61"]


def test_gpus_and_frameworks():
    assert set(catalogue.gpu_names()) <= first_words(told("gpus"))
    assert set(frameworks.names()) <= first_words(told("frameworks"))
    says(told("frameworks"), "NVIDIA/Megatron-LM@")


@pytest.mark.parametrize("name", catalogue.machine_names()[:3])
def test_a_machine_is_listed_under_its_own_name(name):
    assert document("clusters", name)["clusters"][0]["name"] == name


@pytest.mark.parametrize("words", [["gpus"], ["performance", *ON_MI355X]], ids=lambda words: words[0])
def test_starts_light(words):
    code = (
        f"import sys; from projector.cli import run; run({words!r}); "
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert made.stderr.strip() == "[]"


def test_terminal_gets_styled_tables():
    shown, _ = command_line.on_terminal("stdout", "projector", "models", "mixtral")
    says(shown, "\x1b[", "mixtral_8x22b")


# ``projector constants``: names, filters, one document, lines that fit.


def listed(*words: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = document("constants", *words)["constants"]
    return found


def test_what_is_chosen_holds_or_matches_the_pattern() -> None:
    held = listed("reach")
    assert [each["name"] for each in held] == ["kernels.nearest_shapes.REACH"]
    assert set(held[0]) == {"name", *FIELDS}
    wild = listed("gpus.mi355x.peak_tflops*")
    assert {each["unit"] for each in wild} == {"TFLOP/s"}
    assert {each["kind"] for each in wild} == {"datasheet"}


def test_kinds_and_scored_ones_are_told_apart() -> None:
    fitted, scored = listed("--kind", "fitted"), listed("--scored")
    assert {each["kind"] for each in fitted} == {"fitted"}
    assert all(each["scored"] for each in scored)
    assert 0 < len(scored) < len(fitted)


# ``projector support``: its answers are those of a projection, whatever is asked.


PAIRS = (("h100_sxm", "megatron-lm"), ("mi355x", "primus"), ("b200", "torchtitan"), ("a100_sxm_80gb", "nemo"))


def answers(gpu: str, framework: str, topic: str, date: str = "", model: str = "mixtral_8x7b") -> list[Answer]:
    found = supported(zoo.load(model), catalogue.cluster(gpu), framework, date)
    return [each for each in found.answers if each.topic == topic]


def refuses(gpu: str, framework: str, **recipe: Any) -> bool:
    """Whether a plan of it is refused, or another framework's."""
    try:
        found = settle(workload("mixtral_8x7b", 8, framework, ep=8, **recipe), catalogue.cluster(gpu))
    except InputError:
        return True
    return bool(launch.unsupported_by_framework(found.workload))


@pytest.mark.parametrize(("gpu", "framework"), PAIRS)
def test_what_is_answered_is_what_a_plan_meets(gpu: str, framework: str) -> None:
    for each in answers(gpu, framework, "precision"):
        assert each.runs is not refuses(gpu, framework, precision=each.name)
    for each in answers(gpu, framework, "attention")[2:]:
        assert each.runs is None or each.runs is not refuses(gpu, framework, attention_backend=each.name)
    for each in answers(gpu, framework, "dispatcher"):
        flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": each.name}
        words = {"moe_token_dispatcher_type": each.name} if each.name in ("alltoall", "allgather") else flex
        if each.runs is not None:
            assert each.runs is not refuses(gpu, framework, **words), each


@pytest.mark.parametrize(("gpu", "framework"), PAIRS)
def test_schedules_are_those_that_the_framework_starts(gpu: str, framework: str) -> None:
    named = {each.name for each in answers(gpu, framework, "schedule") if each.runs}
    assert named == set(launch.own_schedules(framework))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_kernel_runs_from_the_month_on_that_is_told(direction: str) -> None:
    def of(date: str) -> Answer:
        (found,) = (
            each
            for each in answers("mi355x", "primus", "attention", date, "deepseek_v3")
            if each.name == f"{direction} of this model"
        )
        return found

    since = of("").since
    assert since
    year, month = int(since[:4]), int(since[5:])
    before = f"{year - (month == 1)}-{(month - 2) % 12 + 1:02d}"
    assert of(since).how == of("").how != of(before).how


def test_the_kernels_are_those_that_a_projection_prices() -> None:
    found = supported(zoo.load("llama3_8b"), catalogue.cluster("h100"), "megatron-lm")
    made = project(workload(tp=2), catalogue.cluster("h100"))
    kernels = made.resolved.execution.kernels
    assert any(each.topic == "attention" and each.how.startswith(kernels.attention) for each in found.answers)


def test_counts_are_those_of_the_posterior() -> None:
    found = document("support", "deepseek_v3", "h100", "megatron-lm")
    runs, sources = posterior.load().counts["h100_sxm × megatron-lm"]
    assert found["measured"]["both"] == {"runs": runs, "sources": sources}
    assert found["supported"]
    out = told("support", "deepseek_v3", "h100", "megatron-lm")
    assert f"{runs} runs of megatron-lm on h100_sxm" in " ".join(out.split())


@pytest.mark.parametrize("framework", frameworks.names())
def test_every_framework_has_an_answer(framework: str) -> None:
    for gpu in ("h100_sxm", "mi300x", "v100_sxm_32gb"):
        if gpu in catalogue.gpu_names():
            assert supported(zoo.load("llama3_8b"), catalogue.cluster(gpu), framework).answers
