"""What a file of trainings may say: every mistake at once, and every switch of the trainer stated."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from asked import put, refusal
from measure_jobs import DEEPSEEK, GPT, LLAMA, QWEN, job
from tabled import tabled

from harness.cli import main as run_harness
from harness.evidence.offered import workloads
from harness.evidence.suite import load
from harness.measure import launch, spec, support
from projector.frameworks import resolve
from projector.workload.recipe import Recipe


def keys(value: object) -> list[str]:
    return [problem.key for problem in spec.parse(value, "f")[1]]


def test_a_list_and_a_mapping_of_trainings() -> None:
    plan, problems = spec.parse([job("a"), job("b", GPT)], "f")
    assert not problems
    assert [each.id for each in plan.jobs] == ["a", "b"]
    assert (plan.repeat, plan.threads, plan.device) == (1, 0, "")
    plan, problems = spec.parse({"device": "cpu", "repeat": 3, "threads": 1, "runs": [job("a")]}, "f")
    assert not problems
    assert (plan.repeat, plan.threads, plan.device) == (3, 1, "cpu")
    assert spec.parse(None, "f") == (spec.Plan(), [])


def test_a_profile_as_tprimat_writes_it() -> None:
    profile = {"enabled": True, "with_stack": True, "schedule": {"wait": 1, "active": 5}}
    stated = {"device": "cpu", "repeat": 2, "cooldown": 20, "profile": profile, "runs": [job("a")]}
    plan, problems = spec.parse(stated, "f")
    assert not problems
    assert plan.profile == spec.Profile(wait=1, warmup=1, active=5, with_stack=True)
    assert plan.cooldown == 20
    assert spec.parse({**stated, "profile": {**profile, "enabled": False}}, "f")[0].profile is None
    assert keys({**stated, "profile": {"with_stak": True, "active": 0}}) == [
        "measure.profile.with_stak",
        "measure.profile.active",
    ]


def test_every_switch_that_the_projector_would_assume_is_stated() -> None:
    plan, _ = spec.parse([job("a", QWEN, 2, ep=2), job("b", LLAMA, 2, pp=2)], "f")
    for each in plan.jobs:
        assert resolve(each.workload, "cpu", "x86_64").assumed == ()
        for name in ("data_parallel_sharding", "recompute_granularity", "overlap_grad_reduce", "sequence_parallel"):
            assert getattr(each.workload.recipe, name) is not None
    assert plan.jobs[1].workload.recipe.pipeline_schedule == "1f1b"


def test_every_mistake_at_once() -> None:
    value = {
        "device": "tpu",
        "repeat": 0,
        "treads": 2,
        "runs": [
            {**job("a b"), "steps": 2, "stepps": 4},
            {"model": LLAMA},
            job("c", tp=3, gpus=3),
            job("c", precision="mxfp8"),
            7,
            {**job("d"), "learning_rate": "fast", "seed": -1, "gpus": 0, "group": 3},
        ],
    }
    assert sorted(keys(value)) == sorted([
        "measure.treads", "measure.repeat", "measure.device", "measure.runs[0].stepps", "measure.runs[0].id",
        "measure.runs[0].steps", "measure.runs[1].id", "measure.runs[1].recipe", "measure.runs[2].recipe.tp",
        "measure.runs[2].recipe.tp", "measure.runs[2].recipe.tp", "measure.runs[3].recipe.precision", "measure.runs[4]",
        "measure.runs[5].group", "measure.runs[5].learning_rate", "measure.runs[5].gpus", "measure.runs[5].seed",
        "measure.runs[3].id",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("model", "recipe", "gpus", "found"),
    [
        *((tabled("trainings", name), *how) for name, *how in tabled("refusals", "trainer")),
        (LLAMA, {"cuda_graph_scope": ["full"]}, 1, "recipe.cuda_graph_scope"),
        ({**LLAMA, "window_size": 16}, {}, 1, "model.window_size"),
        ({**LLAMA, "mtp_num_layers": 1}, {}, 1, "model.mtp_num_layers"),
        ({**DEEPSEEK, "position_embedding_type": "alibi"}, {}, 1, "model.position_embedding_type"),
        ({**LLAMA, "num_query_groups": 1}, {"tp": 2}, 2, "recipe.tp"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused(model: dict, recipe: dict, gpus: int, found: str) -> None:
    assert keys([job("a", model, gpus, **recipe)]) == [f"measure[0].{found}"]


def test_every_field_of_a_recipe_is_settled_free_or_refused() -> None:
    """A field that the trainer never looks at must not be taken in silence."""
    plan, _ = spec.parse([job("a")], "f")
    work = plan.jobs[0].workload
    for name, value in (("numa_binding", True), ("moe_expert_capacity_factor", 1.5), ("main_grads_dtype", "bf16")):
        stated = replace(work, recipe=replace(work.recipe, **{name: value}))
        assert [problem.key for problem in support.problems(stated)] == [f"recipe.{name}"]
    assert (
        support.problems(
            replace(work, recipe=Recipe(micro_batch_size=1, global_batch_size=4, seq_length=32, precision="fp32"))
        )
        == []
    )


def test_files_that_are_no_plan(tmp_path) -> None:
    for text, found in (("a: 1", "['a']"), ("[]", "list"), ("measure: []", "measure"), ("measure: 3", "measure")):
        assert found in str(refusal(spec.read, put(tmp_path / "plan.yaml", text)))
    refusal(spec.read, tmp_path / "none.yaml", match="does not exist")


def test_one_training_may_stand_alone_in_a_file(tmp_path) -> None:
    path = put(tmp_path / "alone.yaml", yaml.safe_dump({key: value for key, value in job("x").items() if key != "id"}))
    assert [each.id for each in spec.read(path).jobs] == ["alone"]


def test_a_suite_of_trainings(tmp_path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({"suite": "s", "measure": {"repeat": 2, "runs": [job("a"), job("b", GPT)]}}))
    made = load(path)
    assert made.runs == ()
    assert [each.id for each in made.plan.jobs] == ["a", "b"]
    assert [each.model.name for each in workloads([path])] == ["small_llama", "small_gpt"]
    case = {
        "id": "a", "model": "llama3.1_8b", "gpu": "h100_sxm", "gpus": 8,
        "recipe": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 8192},
    }  # fmt: skip
    path.write_text(
        yaml.safe_dump({"suite": "s", "measure": [job("a"), {**job("b"), "steps": 0}], "cases": [case], "gates": {}})
    )
    assert [problem.key for problem in refusal(load, path).problems] == ["gates", "measure[1].steps", "measure: a"]


def test_an_optional_plan_is_skipped_with_a_reason_where_there_is_no_device(monkeypatch, capsys) -> None:
    torch = pytest.importorskip("torch")
    plan = spec.read(Path(__file__).parents[3] / "suites" / "gpu.yaml")
    assert {job.workload.gpus for job in plan.jobs} == {1, 2, 4, 8}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        launch, "_lacks", lambda job, _: "no rows" if job.workload.recipe.fp8_recipe == "rowwise" else ""
    )
    some, words = launch.possible(plan, "gpu.yaml")
    assert {job.workload.recipe.fp8_recipe for job in some.jobs} == {None, "tensorwise"}
    assert "skipped: gpu.yaml: dense-b4-mbs4-fp8-rows no rows" in words
    assert {job.workload.gpus for job in some.jobs} == {1, 2}
    assert any("wants 8 of 2 devices" in word for word in words)
    assert launch.possible(replace(plan, optional=False), "gpu.yaml")[0].jobs == plan.jobs
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert launch._lacks(plan.jobs[0], "cpu") == ""
    blocks = replace(plan.jobs[3].workload.recipe, fp8_recipe="blockwise")
    job = replace(plan.jobs[3], workload=replace(plan.jobs[3].workload, recipe=blocks))
    refusal(launch.host, replace(plan, device="cpu", jobs=(job,)), "gpu.yaml", match="scaled blockwise")
    assert run_harness(["run", "gpu", "--mode", "both"]) == 0
    assert "torch sees no GPU here" in capsys.readouterr().err
