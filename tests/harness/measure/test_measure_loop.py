"""The closed loop of a suite: trained, ingested, layers timed between the rounds, projected. Slow: real processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from measure_jobs import LLAMA, job

from projector.benchmark import fabric
from projector.hardware import catalogue
from projector.hardware.types import Cluster

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
#: A training that other work disturbs is not tried again: how good its figures are is no matter here.
ONCE = "import sys; from harness import cli; from harness.measure import loop; loop._TRIALS = 1; sys.exit(cli.main())"


def suite_file(folder: Path, **words: object) -> Path:
    runs = [{**job("a", LLAMA, 1, 6), "group": "g"}, job("b", LLAMA, 2, 6, pp=2)]
    path = folder / "loop.yaml"
    path.write_text(
        yaml.safe_dump({"suite": "loop", "measure": {"device": "cpu", "threads": 1, **words, "runs": runs}})
    )
    return path


def test_a_suite_measures_in_rounds_and_scores_both_modes(tmp_path) -> None:
    path = suite_file(tmp_path, repeat=2)
    document = yaml.safe_load(path.read_text())
    document["gate"] = {"benchmark": {"coverage": 1.0, "shrink": 10.0}, "simulate": {"coverage": 1.0}}
    path.write_text(yaml.safe_dump(document))
    out = tmp_path / "out"
    words = ["run", str(path), "--mode", "both", "--out", str(out), "--no-plots"]
    done = subprocess.run([sys.executable, "-c", ONCE, *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in json.loads((out / "results.json").read_text())["rows"] if row["fit"] == "uncalibrated"]
    assert {(row["run_id"], row["predictor"]) for row in rows} >= {
        (i, m) for i in "ab" for m in ("simulate", "benchmark")
    }
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert row["measured_step_seconds"] > 0
        if row["predictor"] == "benchmark":
            assert 0.0 < row["measured_share"] <= 1.0  # how much is a matter of who else runs on this machine
    own = out / "measured" / "loop"
    assert {each.name for each in own.glob("*.log")} == {"a.log", "b.log"}
    assert len(re.findall("using world size: 2", (own / "b.log").read_text())) == 2
    assert {(row["run_id"], row["group"]) for row in rows} == {("a", "g"), ("b", "")}
    assert "loop benchmark shrink: " in (out / "report.md").read_text()
    for timed in ("a.json", "b.json", "b.alone.json"):
        found = json.loads((own / "timings" / timed).read_text())["timings"]["conditions"]["while timed"]
        assert set(found) == {"without_core", "cores_of_others", "cores", "processes"}
    in_turns(done.stderr.splitlines())
    (described,) = own.glob("machine-*/*.cluster.yaml")
    sound(catalogue.cluster(str(described)))


def in_turns(told: list[str]) -> None:
    """A job's layers are timed between the repetitions of its training, the machine is probed once."""
    turns = [text for text in told if text.startswith(("trained", "timed"))]
    each = ["trained {0} (1 of 2)", "timed layers of {0}", "trained {0} (2 of 2)"]
    wanted = [text.format(name) for name in "ab" for text in each]
    wanted.insert(-1, "timed layers of b, each rank alone")  # for the shrink test
    assert turns == wanted
    assert sum(text.startswith("probed") for text in told) == 1


def sound(cluster: Cluster) -> None:
    assert cluster.gpus_per_node >= 2
    for found, grid in ((cluster.intra.latency, fabric._LATENCIES), (cluster.intra.bandwidth, fabric._BANDWIDTHS)):
        assert grid[0] * 0.99 <= found <= grid[-1] * 1.01  # which of them is a matter of who else runs on this machine
