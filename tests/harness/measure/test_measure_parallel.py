"""However a training is split over two processes, it computes what one process computes. Slow: real processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from measure_jobs import DEEPSEEK, GPT, LATENT, LLAMA, QWEN, job

from harness.measure import spec, train_plan
from harness.measure.train_plan import Trained
from projector.benchmark import fabric
from projector.hardware import catalogue
from projector.hardware.types import Cluster

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

MODELS = {"llama": LLAMA, "gpt": GPT, "qwen": QWEN, "deepseek": DEEPSEEK, "latent": LATENT}
SPLITS: dict[str, dict] = {
    "dp2": {},
    "fsdp2": {"data_parallel_sharding": "optim_grads_params"},
    "tp2": {"tp": 2},
    "pp2-1f1b": {"pp": 2},
    "pp2-gpipe": {"pp": 2, "pipeline_schedule": "gpipe"},
    "pp2-interleaved": {"pp": 2, "vpp": 2},
    "pp2-bfs": {"pp": 2, "vpp": 2, "pipeline_schedule": "looped-bfs"},
    "ep2": {"ep": 2},
}


#: One of each kind of split in every run; at night every split of one model, and of the others those that their own parts
#: (tied tables, experts, latent heads) change.
CASES = [("llama", "fsdp2"), ("llama", "pp2-interleaved"), ("gpt", "tp2"), ("qwen", "ep2"), ("deepseek", "pp2-gpipe")]
_OTHERS = {
    "gpt": ("dp2", "pp2-1f1b", "pp2-interleaved"),
    "qwen": ("fsdp2", "pp2-1f1b"),
    "deepseek": ("dp2", "ep2"),
    "latent": ("tp2", "fsdp2"),
}
NIGHT = [("llama", split) for split in SPLITS if split != "ep2" and ("llama", split) not in CASES]
NIGHT += [(model, split) for model, splits in _OTHERS.items() for split in splits]
NARROW = ("bf16", "fp8")


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory) -> dict[str, Trained]:
    """Every model on one process, and the splits of it that are asked for, in two starts of processes."""
    mine = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params for item in mine if "split" in item.fixturenames]
    splits = [(each["model"], each["split"]) for each in asked]
    jobs = [job(f"{name}-one", model, 1, 6) for name, model in MODELS.items()]
    jobs += [
        job(f"{name}-{kind}", MODELS[name], 1, 4, precision=kind) for name in ("llama", "deepseek") for kind in NARROW
    ]
    jobs += [job(f"{model}-{split}", MODELS[model], 2, 4, **SPLITS[split]) for model, split in splits]
    rows: dict[str, str] = {"precision": "fp8", "fp8_recipe": "rowwise", "data_parallel_sharding": "optim_grads_params"}
    jobs += [job("llama-fp8-fsdp2", LLAMA, 2, 4, **rows)]
    for gpus, name, split in ((1, "one", {}), (2, "ep2", {"ep": 2})):
        jobs += [job(f"even-{name}", DEEPSEEK, gpus, 4, moe_router_force_load_balancing=True, **split)]
    plan, problems = spec.parse({"device": "cpu", "threads": 1, "runs": jobs}, "f")
    assert not problems
    done = train_plan.train(plan, tmp_path_factory.mktemp("trained"), "f", lambda _: None)
    return {each.run.id: each for each in done}


@pytest.mark.parametrize("model", MODELS)
def test_loss_falls(trained: dict[str, Trained], model: str) -> None:
    first, *_, last = trained[f"{model}-one"].losses
    assert first == pytest.approx(np.log(512), abs=0.15)  # an untrained model knows nothing
    assert last < first - 0.05


@pytest.mark.parametrize(
    ("model", "split"), [*CASES, *(pytest.param(*case, marks=pytest.mark.night) for case in NIGHT)]
)
def test_a_split_training_computes_the_same(trained: dict[str, Trained], model: str, split: str) -> None:
    one, two = trained[f"{model}-one"], trained[f"{model}-{split}"]
    assert two.losses == pytest.approx(one.losses[:4], rel=2e-5)
    assert norms(two.path) == pytest.approx(norms(one.path)[:4], rel=2e-3)
    assert two.run.gpus == 2


def norms(path: Path) -> list[float]:
    return [
        float(line.partition("grad norm:")[2].split("|")[0])
        for line in path.read_text().splitlines()
        if "grad norm:" in line
    ]


def test_routing_in_turns(trained: dict[str, Trained]) -> None:
    assert trained["even-ep2"].losses == pytest.approx(trained["even-one"].losses, rel=2e-5)
    assert trained["even-one"].losses != trained["deepseek-one"].losses[:4]


def test_narrow_types_stay_near_fp32(trained: dict[str, Trained]) -> None:
    for name in ("llama", "deepseek"):
        bf16, fp8 = (trained[f"{name}-{kind}"] for kind in NARROW)
        wide = trained[f"{name}-one"].losses[:4]
        assert bf16.losses == pytest.approx(wide, rel=5e-3)
        assert fp8.losses == pytest.approx(wide, rel=2e-2)
        assert fp8.losses != bf16.losses
        assert fp8.run.recipe.precision == "fp8"
    assert trained["llama-fp8-fsdp2"].losses == pytest.approx(trained["llama-one"].losses[:4], rel=2e-2)


def test_the_log_has_every_step_once(trained: dict[str, Trained]) -> None:
    found = re.findall(
        r"per iteration \(ms\): [0-9.]+|of [0-9.]+ ms without a core", trained["llama-one"].path.read_text()
    )
    assert len(found) == 6


# The closed loop of a suite: trained, ingested, layers timed between the rounds, projected. Slow: real processes.


pytest.importorskip("torch")
#: A training that other work disturbs is not tried again, and the probe is short: how good figures are is no matter here.
ONCE = (
    "import sys; from harness import cli; from harness.measure import suite_trainings as trained; trained._TRIALS = 1;"
    "trained._LARGEST, trained._MOST, trained._MESSAGE = {'cpu': 128}, 0.01, 2**18; sys.exit(cli.main())"
)


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
