"""Every experiment that Primus ships, where its checkout is at hand: loaded or refused by name; a dozen read by hand."""

import os
from pathlib import Path

import pytest
import yaml
from asked import refusal

from projector.errors import Unsupported
from projector.hardware import catalogue
from projector.intake import primus
from projector.intake.loaded import Loaded
from projector.projection import project
from projector.workload.layout import chunks, virtual_stages

ROOT = Path(os.environ.get("PRIMUS_EXAMPLES", Path(__file__).parents[4] / "shared/inputs/primus"))
FILES = sorted(ROOT.glob("examples/*/configs/**/*.yaml"))
#: Files beside the experiments that are none: module names to quantise, a form with blanks to fill in.
NO_EXPERIMENTS = ("lfm2_8B_A1B-FP8-te-precision.yaml", "native_hf_to_megatron_sft.template.yaml")
REASONS = ("not a language model",)
pytestmark = pytest.mark.skipif(not FILES, reason="no checkout of Primus beside this project (PRIMUS_EXAMPLES)")


def _id(path: Path) -> str:
    return "/".join(path.parts[-4:])


def _load(name: str) -> Loaded:
    return primus.load(ROOT / "examples" / name, env={})


def _outcome(path: Path) -> tuple[Loaded | None, str]:
    """The workload, or the reason why there is none."""
    try:
        return primus.load(path, env={}), ""
    except Unsupported as error:
        return None, str(error)


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=_id(p), marks=pytest.mark.night if i % 6 else ()) for i, p in enumerate(FILES)]
)
def test_loads_or_says_why_not(path: Path) -> None:
    if path.name in NO_EXPERIMENTS:
        refusal(primus.load, path, env={})
        return
    loaded, reason = _outcome(path)
    if loaded is None:
        assert any(word in reason for word in REASONS), reason
        return
    assert loaded.cluster in ("mi300x", "mi325x", "mi355x")
    assert any(text.startswith("cluster=") for text in loaded.assumed)
    assert loaded.recipe.recompute_granularity is not None
    assert loaded.recipe.data_parallel_sharding is not None
    assert all(
        any(word in reason for word in (*REASONS, "attention", "dense MLP")) for reason in loaded.model.unsupported
    )


@pytest.mark.parametrize("path", FILES[::9], ids=_id)
def test_projects_or_says_why_not(path: Path) -> None:
    if path.name in NO_EXPERIMENTS:
        return
    loaded, reason = _outcome(path)
    if loaded is None or loaded.recipe is None:
        assert any(word in reason for word in REASONS), reason
        return
    try:
        gpus = 8 * loaded.recipe.tp * loaded.recipe.pp * loaded.recipe.cp
        made = project(loaded.workload(gpus), catalogue.cluster(loaded.cluster or ""))
    except Unsupported as error:
        reason = str(error)
    if reason:
        assert any(word in reason for word in REASONS), reason
        return
    assert 0.01 < made.step_seconds < 10_000
    assert 0.005 < made.mfu < 0.9


BY_HAND = yaml.safe_load((Path(__file__).parent / "data/primus_by_hand.yaml").read_text())


@pytest.mark.parametrize("name", BY_HAND)
def test_read_by_hand(name: str) -> None:
    loaded, expected = _load(name), dict(BY_HAND[name])
    recipe = loaded.recipe
    if "batch of 64 GPUs" in expected:
        assert loaded.workload(64).recipe.global_batch_size == expected.pop("batch of 64 GPUs")
    if "stages" in expected:
        assert virtual_stages(recipe) == expected.pop("stages")
    if "adapter" in expected:
        assert [recipe.lora.dim, [*recipe.lora.targets]] == expected.pop("adapter")
    if "counts" in expected:
        made = project(loaded.workload(8 * recipe.tp * recipe.pp), catalogue.cluster(loaded.cluster or ""))
        found = chunks(loaded.model, made.resolved.workload.recipe)
        assert [len(chunk.layers) for chunk in found] == expected.pop("counts")
    for key, value in expected.items():
        held = getattr(recipe if hasattr(recipe, key) else loaded.model, key)
        assert ([*held] if isinstance(held, tuple) else held) == value, key
