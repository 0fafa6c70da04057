"""The recipes of the documentation, followed as a reader would: what a page says to write, written and used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from projector import pipeline, project
from projector.errors import InputError
from projector.frameworks import profiles_io
from projector.hardware import catalogue, efficiency
from projector.pipeline import schedules
from projector.workload import vocabulary, zoo
from projector.workload.recipe import Recipe
from projector.workload.workload import Workload
from tests.docs_tools import DOCS, ROOT, code


def module(text: str, folder: Path, name: str) -> ModuleType:
    """The Python file that a page shows, imported from ``folder``."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def job(**changes: object) -> Workload:
    sizes = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096, "pp": 4, **changes}
    return Workload(model=zoo.load("llama3_8b"), recipe=Recipe(**sizes), gpus=16)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """The two files of extend/gpu.md in one folder; the path of the cluster's."""
    gpu, cluster = code("extend/gpu.md", "yaml")
    (tmp_path / "my_gpu.yaml").write_text(gpu, encoding="utf-8")
    (tmp_path / "my_cluster.yaml").write_text(cluster, encoding="utf-8")
    return tmp_path / "my_cluster.yaml"


def test_a_gpu_of_ones_own(device: Path) -> None:
    found = catalogue.cluster(str(device))
    assert (found.gpu.name, found.gpus_per_node) == ("my_gpu", 8)
    made = project(job(), found)
    assert made.step_seconds > 0
    relatives = project(job(), catalogue.cluster("mi300x"))
    assert made.step_seconds > relatives.step_seconds, "a slower device with the constants of its architecture"
    assert efficiency.load("mi300x").get("gemm.waves", -1.0) != -1.0


def test_a_gpu_for_everybody(device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files in the catalogue's folders, under the GPU's name: its default cluster, found by its alias."""
    home = tmp_path / "hardware"
    for folder in ("gpus", "clusters"):
        shutil.copytree(ROOT / "projector" / "hardware" / folder, home / folder)
    shutil.copy(tmp_path / "my_gpu.yaml", home / "gpus")
    own = yaml.safe_load(device.read_text(encoding="utf-8"))
    (home / "clusters" / "my_gpu.yaml").write_text(yaml.safe_dump({**own, "name": "my_gpu", "gpu": "my_gpu"}))
    monkeypatch.setattr(catalogue, "_HERE", home)
    cached = (catalogue.gpu_names, catalogue.cluster_names, catalogue._gpu_file, catalogue._cluster_file,
              catalogue._aliases)  # fmt: skip
    for each in cached:
        each.cache_clear()
    try:
        assert catalogue.find_gpu("AMD MY-GPU-128") == "my_gpu"
        assert project(job(), catalogue.default_cluster("my_gpu")).step_seconds > 0
    finally:
        monkeypatch.undo()
        for each in cached:
            each.cache_clear()
    assert "my_gpu" not in catalogue.gpu_names()


def test_a_gpu_with_mistakes_names_all_of_them(device: Path) -> None:
    wrong = device.parent / "my_gpu.yaml"
    text = (
        wrong.read_text(encoding="utf-8")
        .replace("compute_units: 256", "compute_units: 25")
        .replace("tdp_watts: 750", "")
    )
    wrong.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        catalogue.gpu(str(wrong))
    assert len(caught.value.problems) >= 2


def test_a_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = code("extend/schedule.md", "python")
    made = module(text, tmp_path, "eager_1f1b")
    monkeypatch.setitem(schedules._REGISTRY, made.GENERATOR.name, made.GENERATOR)
    words = (*vocabulary.SCHEDULES, "eager-1f1b")
    monkeypatch.setattr(vocabulary, "CHOICES", {**vocabulary.CHOICES, "pipeline_schedule": words})
    schedules._spellings.cache_clear()
    try:
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
    finally:
        monkeypatch.undo()
        schedules._spellings.cache_clear()
        pipeline.compile.cache_clear()


def test_where_a_schedule_is_named() -> None:
    """The page names every place that lists schedules; a further one in the code must be named there too."""
    page = (DOCS / "extend" / "schedule.md").read_text(encoding="utf-8")
    for path in (ROOT / "projector").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        listed = {
            name for name in ("looped_bfs", "looped-bfs", "zb_1p", "zb-1p") if re.search(rf'["\']{name}["\']', text)
        }
        own = path.parent.name == "schedules" and path.name != "__init__.py"
        if listed and not own:
            assert str(path.relative_to(ROOT)) in page, f"{path}: {listed}"


def test_a_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = code("extend/framework.md", "yaml")
    home = tmp_path / "profiles"
    shutil.copytree(ROOT / "projector" / "frameworks" / "profiles", home)
    (home / "my_trainer.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(profiles_io, "_FOLDER", home)
    cached = (profiles_io.names, profiles_io.load, profiles_io.find, profiles_io._aliases)
    for each in cached:
        each.cache_clear()
    try:
        assert profiles_io.find("MyTrainer 2.1") == "my_trainer"
        found, parent = profiles_io.load("my_trainer"), profiles_io.load("megatron-lm")
        assert found.execution["launch_us"] == 6.0
        assert set(parent.execution) <= set(found.execution)
        assert found.rules[: len(parent.rules)] == parent.rules
        assert len(found.rules) == len(parent.rules) + 1
        (home / "my_trainer.yaml").write_text(text.replace("launch_us: 6.0", "lauch_us: fast"), encoding="utf-8")
        profiles_io.load.cache_clear()
        with pytest.raises(InputError, match="launch_us"):
            profiles_io.load("my_trainer")
    finally:
        monkeypatch.undo()
        for each in cached:
            each.cache_clear()


def test_a_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.ingest.logs import registry
    from harness.ingest.logs.events import Step
    from harness.ingest.logs.source import Source

    (text,) = code("extend/dialect.md", "python")
    made = module(text, tmp_path, "made_up")
    monkeypatch.setattr(registry, "LINES", (*registry.LINES, made))
    monkeypatch.setattr(registry, "_BY_NAME", {**registry._BY_NAME, made.NAME: made})
    log = tmp_path / "train.log"
    lines = [f"[train] it={i} t=0.5{i % 10}s tok/s/gpu=9100 loss=2.31" for i in range(30)]
    log.write_text("\n".join(["starting", *lines, "[train] it=x t=s", ""]), encoding="utf-8")
    source = Source(log)
    assert registry.detect(source) == "made-up"
    steps = [event for event in registry.events_of(source, "made-up") if isinstance(event, Step)]
    assert len(steps) == 30
    assert steps[3].tokens_per_s == 9100


def test_the_case_and_the_suite(tmp_path: Path) -> None:
    """The case of start/your-run.md is projected; the suite of start/suite-and-gate.md is read, its runs selected."""
    from harness import suite
    from projector.__main__ import main

    (case,) = code("start/your-run.md", "yaml")
    path = tmp_path / "my_case.yaml"
    path.write_text(case, encoding="utf-8")
    assert main(["performance", "--config", str(path), "--json"]) == 0
    (text,) = code("start/suite-and-gate.md", "yaml")
    (tmp_path / "my_runs.yaml").write_text(
        (ROOT / "measured" / "runs" / "simumax_a100.yaml").read_text("utf-8"), "utf-8"
    )
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    found = suite.load(tmp_path / "mine.yaml", ROOT / "measured" / "runs")
    assert len(found.runs) > 20
    assert found.runs[-1].id == "next-cluster"
    assert set(found.gate["simulate"]) == {"mape", "worst", "coverage", "kendall_tau", "interval_coverage"}


def test_the_python_example(capsys: pytest.CaptureFixture) -> None:
    (text,) = code("start/your-run.md", "python")
    exec(compile(text, "start/your-run.md", "exec"), {})
    assert float(capsys.readouterr().out.split()[0]) > 0


def test_exit_code_two_names_file_key_found_and_expected(tmp_path: Path) -> None:
    """The sample of reference/exit-codes.md has the form of real messages."""
    (sample,) = code("reference/exit-codes.md", "text")
    assert re.match(r"^\S+: [\w.\[\]]+: found .+, expected .+$", sample.strip())
    text = (ROOT / "suites" / "moe.yaml").read_text("utf-8").replace("ep: 8, pp: 4", "ep: 7, pp: 4")
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "harness", "run", "bad.yaml", "--measured", str(ROOT / "measured" / "runs")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 2
    assert re.match(r"^bad\.yaml: cases\[0\]\.recipe\.ep: found '?7'?, expected .+", done.stderr.strip()), done.stderr
