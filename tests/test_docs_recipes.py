"""The recipes of the documentation, followed as a reader would: what a page says to write, written and used."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import indent
from types import ModuleType

import command_line
import numpy as np
import pytest
import yaml
from asked import put, refusal
from forgotten import forgotten

from projector import pipeline, project
from projector.collectives import algorithms, model
from projector.frameworks import profiles_io
from projector.hardware import catalogue, efficiency
from projector.hardware.types import GroupShape
from projector.mechanisms import Execution, data_parallel
from projector.mechanisms.execution import problems
from projector.mechanisms.strategy import strategies_in
from projector.memory.plan import plan
from projector.pipeline import schedules
from projector.settle.workload import settle
from projector.workload import value_checks, zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.docs_tools import ROOT, code


def module(text: str, folder: Path, name: str) -> ModuleType:
    """The Python file that a page shows, imported from ``folder``."""
    spec = spec_from_file_location(name, put(folder / f"{name}.py", text))
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def job(**changes: object) -> Workload:
    sizes = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096, "pp": 4, **changes}
    return Workload(model=zoo.load("llama3_8b"), recipe=Recipe(**sizes), gpus=16)


@pytest.fixture
def device(tmp_path) -> Path:
    """The two files of extend/gpu.md in one folder; the path of the cluster's."""
    gpu, cluster, _ = code("extend/gpu.md", "yaml")
    (tmp_path / "my_gpu.yaml").write_text(gpu, encoding="utf-8")
    return put(tmp_path / "my_cluster.yaml", cluster)


def test_a_what_if_of_a_few_lines(tmp_path) -> None:
    (tmp_path / "what_if.yaml").write_text(code("extend/gpu.md", "yaml")[2], encoding="utf-8")
    made, base = (catalogue.cluster(name).gpu for name in (str(tmp_path / "what_if.yaml"), "h100"))
    assert (made.memory_bandwidth, made.memory_bytes) == (4.8e12, 141 * 2**30)
    assert made.usable_memory_bytes / made.memory_bytes == base.usable_memory_bytes / base.memory_bytes


def test_a_gpu_of_ones_own(device: Path) -> None:
    found = catalogue.cluster(str(device))
    assert (found.gpu.name, found.gpus_per_node) == ("my_gpu", 8)
    made = project(job(), found)
    assert made.step_seconds > 0
    relatives = project(job(), catalogue.cluster("mi300x"))
    assert made.step_seconds > relatives.step_seconds, "a slower device with the constants of its architecture"
    assert efficiency.load("mi300x").get("gemm.waves", -1.0) != -1.0


def test_a_gpu_for_everybody(device: Path, tmp_path, monkeypatch) -> None:
    """Both files in the catalogue's folders, under the GPU's name: its default cluster, found by its alias."""
    home = tmp_path / "hardware"
    for folder in ("gpus", "clusters"):
        shutil.copytree(ROOT / "projector" / "hardware" / folder, home / folder)
    shutil.copy(tmp_path / "my_gpu.yaml", home / "gpus")
    own = yaml.safe_load(device.read_text(encoding="utf-8"))
    (home / "clusters" / "my_gpu.yaml").write_text(yaml.safe_dump({**own, "name": "my_gpu", "gpu": "my_gpu"}))
    monkeypatch.setattr(catalogue, "FOLDER", home)
    cached = (catalogue.gpu_names, catalogue.cluster_names, catalogue._gpu_file, catalogue._cluster_file,
              catalogue._aliases)  # fmt: skip
    with forgotten(monkeypatch, *cached):
        assert catalogue.find_gpu("AMD MY-GPU-128") == "my_gpu"
        assert project(job(), catalogue.default_cluster("my_gpu")).step_seconds > 0
    assert "my_gpu" not in catalogue.gpu_names()


def test_a_gpu_with_mistakes_names_all_of_them(device: Path) -> None:
    wrong = device.parent / "my_gpu.yaml"
    text = (
        wrong.read_text(encoding="utf-8")
        .replace("compute_units: 256", "compute_units: 25")
        .replace("tdp_watts: 750", "")
    )
    assert len(refusal(catalogue.gpu, str(put(wrong, text))).problems) >= 2


def test_a_schedule(tmp_path, monkeypatch) -> None:
    (text,) = code("extend/schedule.md", "python")
    (tmp_path / "eager_1f1b.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(schedules, "__path__", [*schedules.__path__, str(tmp_path)])
    monkeypatch.setattr(schedules, "_REGISTRY", schedules._registered())
    schedules._spellings.cache_clear()
    monkeypatch.setattr(value_checks, "CHOICES", {**value_checks.CHOICES, "pipeline_schedule": schedules.words()})
    mine = ("projector.pipeline.schedules.eager_1f1b",)
    with forgotten(monkeypatch, schedules._spellings, pipeline.compile, modules=mine):
        assert pipeline.find("eager 1F1B") == "eager_1f1b"
        ones = np.ones(4)

        def seconds(name: str, message: float) -> float:
            compiled = pipeline.compile(name, 4, 1, 16)
            return float(pipeline.evaluate(compiled, ones, ones, ones, message, True).makespan)

        assert seconds("eager_1f1b", 0.0) == seconds("1f1b", 0.0), "no message, nothing to hide"
        assert seconds("eager_1f1b", 0.5) < seconds("1f1b", 0.5), "messages have time to arrive"
        cluster = catalogue.cluster("h100_sxm")
        eager, usual = (project(job(pipeline_schedule=name), cluster) for name in ("eager-1f1b", "1f1b"))
        assert eager.step_seconds > 0
        assert eager.memory.allocated > usual.memory.allocated, "it keeps more micro-batches alive"


def test_a_collective_algorithm(tmp_path, monkeypatch) -> None:
    """A file in the folder is all there is to do; it is taken where it is the fastest, and no bound is passed."""
    (text,) = code("extend/collective.md", "python")
    (tmp_path / "halving.py").write_text(text, encoding="utf-8")
    cluster, shape = catalogue.cluster("h100_sxm"), GroupShape(64, 8)
    usual = float(model.seconds_of("all_reduce", 1e6, shape, cluster))
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.setattr(model, "ALGORITHMS", algorithms.discovered())
    with forgotten(monkeypatch, modules=(f"{algorithms.__name__}.halving",)):
        names = {cost.algorithm for cost in model.costs("all_reduce", shape, cluster)}
        assert "halving.simple" in names
        assert {"ring.simple", "tree.simple"} <= names
        for size in (1e3, 1e6, 1e9):
            seconds = float(model.seconds_of("all_reduce", size, shape, cluster))
            assert seconds >= model.bandwidth_bound("all_reduce", size, shape, cluster) * (1 - 1e-12)
        assert float(model.seconds_of("all_reduce", 1e6, shape, cluster)) <= usual
        assert not {c.algorithm for c in model.costs("all_reduce", GroupShape(48, 8), cluster)} & {"halving.simple"}


def test_no_file_lists_the_schedules() -> None:
    """A schedule is one file: its name stands nowhere else in the code."""
    for path in (ROOT / "projector").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        listed = re.findall(r'["\'](?:looped[_-]bfs|zb[_-]1p|dualpipe[_-]v)["\']', text)
        own = path.parent.name == "schedules" and path.name != "__init__.py"
        loader = path.parent.name == "intake"  # what another framework calls it
        assert own or loader or not listed, f"{path}: {listed}"


def test_a_framework(tmp_path, monkeypatch) -> None:
    (text,) = code("extend/framework.md", "yaml")
    home = tmp_path / "profiles"
    shutil.copytree(ROOT / "projector" / "frameworks" / "profiles", home)
    (home / "my_trainer.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(profiles_io, "_FOLDER", home)
    cached = (profiles_io.names, profiles_io.load, profiles_io.find, profiles_io._aliases)
    with forgotten(monkeypatch, *cached):
        assert profiles_io.find("MyTrainer 2.1") == "my_trainer"
        found, parent = profiles_io.load("my_trainer"), profiles_io.load("megatron-lm")
        assert found.execution["runtime"]["launch_us"] == 6.0
        assert set(parent.execution) <= set(found.execution)
        assert found.rules[: len(parent.rules)] == parent.rules
        assert len(found.rules) == len(parent.rules) + 1
        (home / "my_trainer.yaml").write_text(text.replace("launch_us: 6.0", "lauch_us: 6.0"), encoding="utf-8")
        profiles_io.load.cache_clear()
        refusal(profiles_io.load, "my_trainer", match="launch_us")


def test_a_strategy(tmp_path, monkeypatch) -> None:
    """The file that the page shows, beside those that are there: a profile's words find it, and a run uses it."""
    (text,), (stated,) = code("extend/strategy.md", "python"), code("extend/strategy.md", "yaml")
    (tmp_path / "patient_fsdp.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(data_parallel, "__path__", [*data_parallel.__path__, str(tmp_path)])
    with forgotten(monkeypatch, strategies_in, modules=(f"{data_parallel.__name__}.patient_fsdp",)):
        said = yaml.safe_load(stated)["execution"]
        assert problems("mine", "execution", said, {}) == []
        execution = Execution.of(**said)
        assert execution.data_parallel.name == "patient_fsdp"
        assert execution.data_parallel.hidden_share(False) == 0.8
        own = settle(job(pp=1, data_parallel_sharding="optim_grads_params"), catalogue.cluster("h100_sxm"))
        used = dataclasses.replace(own, execution=execution)
        gpu = catalogue.gpu("h100_sxm")
        assert plan(used, gpu).components["gradients"] > 4 * plan(own, gpu).components["gradients"]
    refusal(Execution.of, **said, kind=KeyError)


def test_a_recipe_field(tmp_path) -> None:
    """Declared and read as the page says in a copy of the package: everything else follows."""
    (field,), (change,) = code("extend/recipe-field.md", "python"), code("extend/recipe-field.md", "diff")
    home = tmp_path / "projector"
    shutil.copytree(ROOT / "projector", home, ignore=shutil.ignore_patterns("__pycache__"))
    before, after = ([line[1:] for line in change.splitlines() if line[0] in signs] for signs in (" -", " +"))
    for path, old, new in (
        (
            home / "workload" / "recipe.py",
            "    device_memory_fraction: ",
            indent(field, "    ") + "    device_memory_fraction: ",
        ),
        (home / "step" / "cycle.py", "\n".join(before), "\n".join(after)),
    ):
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path.name}: {old}"
        path.write_text(text.replace(old, new), encoding="utf-8")
    line, *_ = code("extend/recipe-field.md", "sh")[0].splitlines()

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *shlex.split(line)[1:], *more, "--json"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    often, seldom = (json.loads(run("--manual-gc-interval", every).stdout) for every in ("1", "100"))
    assert seldom["recipe"]["manual_gc_interval"] == 100
    seconds = [next(iter(made["projections"].values()))["breakdown"]["other_s"] for made in (often, seldom)]
    assert seconds[0] > seconds[1], "the mechanism reads it"
    refused = run("--set", "manual_gc_interval=0")
    assert refused.returncode == 2
    assert "a number from 1 to 100000" in refused.stderr
    args = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "micro_batch_size": 1,
            "global_batch_size": 8, "seq_length": 32, "max_position_embeddings": 32, "manual_gc_interval": 7}  # fmt: skip
    module = "projector.intake.megatron_args"
    ask = f"from {module} import from_mapping as f; print(f({args}, 'f').recipe.manual_gc_interval)"
    loaded = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
                            capture_output=True, text=True, check=True)  # fmt: skip
    assert loaded.stdout.strip() == "7"


def test_a_dialect(tmp_path, monkeypatch) -> None:
    from harness.evidence.ingest.logs import dialect, registry
    from harness.evidence.ingest.logs.events import Step
    from harness.evidence.ingest.logs.source import Source

    (text,) = code("extend/dialect.md", "yaml")
    (tmp_path / "made-up.yaml").write_text(text, encoding="utf-8")
    (made,) = dialect.read_all(tmp_path)
    monkeypatch.setattr(registry, "LINES", (*registry.LINES, made))
    monkeypatch.setattr(registry, "_MARKS", (*registry._MARKS, (made.marks, made)))
    monkeypatch.setattr(registry, "_BY_NAME", {**registry._BY_NAME, made.name: made})
    log = tmp_path / "train.log"
    lines = [f"[train] it={i} t=0.5{i % 10}s tok/s/gpu=9100 loss=2.31" for i in range(30)]
    source = Source(put(log, "\n".join(["starting", *lines, "[train] it=x t=s", ""])))
    assert registry.detect(source) == "made-up"
    steps = [event for event in registry.events_of(source, "made-up") if isinstance(event, Step)]
    assert len(steps) == 30
    assert (steps[3].tokens_per_s, steps[3].loss) == (9100, 2.31)


def test_a_predictor(tmp_path) -> None:
    """The file that the page shows, in the working directory, scored by the page's command."""
    (text,) = code("extend/predictor.md", "python")
    (tmp_path / "my_rules.py").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "measured" / "runs" / "primus_mi300x.yaml", tmp_path / "mine.yaml")
    line, *_ = code("extend/predictor.md", "sh")[0].splitlines()
    _, _, program, *words = shlex.split(line)

    def run(*words: str) -> command_line.Done:
        return command_line.run(program, *words, cwd=tmp_path)

    words[words.index("suites/dense.yaml") : words.index("suites/dense.yaml") + 1] = ["--runs", "mine.yaml"]
    done = run(*words, "--out", "out")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))["rows"]
    mine = [row for row in rows if row["predictor"] == "rule-of-thumb"]
    projected = [row for row in mine if row["status"] == "ok"]
    assert {row["gpu"] for row in projected} == {"mi300x"}
    assert {round(row["projected_tgs"]) for row in projected if row["fit"] == "uncalibrated"} == {10_000}
    assert any(row["error"] is not None for row in projected)
    assert any(row["reason"].startswith("no rule for mi3") for row in mine)
    wrong = run(*[word.replace("my_rules:RuleOfThumb", "my_rules:Rule,my_rule:X,calculonn") for word in words])
    assert wrong.returncode == 2
    assert len(wrong.stderr.strip().splitlines()) == 3
    assert "calculon" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_the_case_and_the_suite(tmp_path) -> None:
    """The case of start/your-run.md is projected; the suite of start/suite-and-gate.md is read, its runs selected."""
    from harness.evidence import suite
    from projector.__main__ import main

    (case,) = code("start/your-run.md", "yaml")
    assert main(["performance", "--config", str(put(tmp_path / "my_case.yaml", case)), "--json"]) == 0
    (text,) = code("start/suite-and-gate.md", "yaml")
    (tmp_path / "my_runs.yaml").write_text(
        (ROOT / "measured" / "runs" / "simumax_a100.yaml").read_text("utf-8"), "utf-8"
    )
    found = suite.load(put(tmp_path / "mine.yaml", text), ROOT / "measured" / "runs")
    assert len(found.runs) > 20
    assert found.runs[-1].id == "next-cluster"
    assert set(found.gate["simulate"]) == {"mape", "worst", "coverage", "kendall_tau", "interval_coverage"}


def test_the_python_example() -> None:
    (text,) = code("start/your-run.md", "python")
    text = text.replace("pj.search(", "pj.search(budget=0.1, ")  # what it finds in seconds is for tests of searches
    names: dict[str, object] = {}
    exec(compile(text, "start/your-run.md", "exec"), names)
    assert repr(names["p"]).startswith("llama3_70b on 512")


def test_exit_code_two_names_file_key_found_and_expected(tmp_path) -> None:
    """The sample of reference/exit-codes.md has the form of real messages."""
    (sample,) = code("reference/exit-codes.md", "text")
    assert re.match(r"^\S+: [\w.\[\]]+: found .+, expected .+$", sample.strip())
    text = (ROOT / "suites" / "moe.yaml").read_text("utf-8").replace("ep: 8, pp: 4", "ep: 7, pp: 4")
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    done = command_line.run("harness", "run", "bad.yaml", "--measured", ROOT / "measured" / "runs", cwd=tmp_path)
    assert done.returncode == 2
    assert re.match(r"^bad\.yaml: cases\[0\]\.recipe\.ep: found '?7'?, expected .+", done.stderr.strip()), done.stderr


def test_a_layer_of_ones_own(tmp_path, monkeypatch) -> None:
    """The gate of extend/layer.md: its weights, operators, saved tensors and replay reach every figure from one file."""
    from projector.layers import lower

    (text,) = code("extend/layer.md", "python")
    made = module(text, tmp_path, "attention_gated")
    monkeypatch.setattr(lower, "ATTENTIONS", ((made.applies, made.attention), *lower.ATTENTIONS))
    plain = job(pp=1, tp=8)
    cluster = catalogue.cluster("h100_sxm")

    def gated(**changes: object) -> Workload:
        model = replace(plain.model, family="gated")
        return replace(plain, model=model, recipe=replace(plain.recipe, **changes))

    before, after = project(plain, cluster), project(gated(), cluster)
    layers, tokens, width, h = 32, 4096, 4096 // 8, 4096
    assert after.memory.ranks[0].parameters - before.memory.ranks[0].parameters == layers * width * h
    grown = after.memory.components["activations"] - before.memory.components["activations"]
    assert grown == layers * 2 * 2 * tokens * width  # the gate and the product
    assert after.step_seconds > before.step_seconds
    whole = project(gated(recompute_granularity="full"), cluster)
    assert whole.memory.allocated < after.memory.allocated
    replayed = lower.layer(plain.model.layer_kinds[0], whole.resolved).recompute
    assert {"gate", "gated"} <= {op.name for op in replayed}


def test_a_configuration(tmp_path, monkeypatch) -> None:
    from projector.errors import Unsupported
    from projector.intake import dialect as engine

    (text,), (python,) = code("extend/configuration.md", "yaml"), code("extend/configuration.md", "python")
    (tmp_path / "madeup.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(engine, "_FOLDER", tmp_path)
    load = module(python, tmp_path, "made_up_loader").load
    train = {"tokens_per_sample": 4096, "samples": 2, "accumulate": 4, "dtype": "bfloat16", "shard": 2, "log_every": 3}
    content = {"checkpoint": "meta-llama/Llama-3.1-8B", "train": train, "dropout": 0.1, "optimizer": "adamw_torch"}
    assert engine.dialect("madeup").fits(content)
    made = load(content, "f", model=None)
    recipe = made.workload(16).recipe
    assert (recipe.seq_length, recipe.micro_batch_size, recipe.global_batch_size) == (4096, 2, 8 * 16)
    assert (recipe.data_parallel_sharding, recipe.optimizer, recipe.main_params_dtype) == (
        "optim_grads",
        "adamw",
        "bf16",
    )
    assert (made.ignored, made.unmodelled) == (("log_every",), ("dropout=0.1",))
    assert load({**content, "kernel": 7}, "f", model=None).unmodelled == ("dropout=0.1", "kernel=7 (unknown)")
    for slip in ({"train": {**train, "dtype": "int3"}}, {"acumulate": 2}):
        refusal(load, {**content, **slip}, "f", model=None, match=r"dtype|accumulate")
    refusal(load, {**content, "quantize": True}, "f", model=None, match="weights in 4 bits", kind=Unsupported)
    engine.dialect.cache_clear()
