"""However a training is split over two processes, it computes what one process computes. Slow: real processes."""

import re
from pathlib import Path

import numpy as np
import pytest
from measure_jobs import DEEPSEEK, GPT, LATENT, LLAMA, QWEN, job

from harness.measure import closed, spec
from harness.measure.closed import Trained

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
    done = closed.train(plan, tmp_path_factory.mktemp("trained"), "f", lambda _: None)
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
