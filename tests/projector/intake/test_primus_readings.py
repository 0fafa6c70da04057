"""Primus experiments of every framework by the table of ``data/primus.yaml``: what is set, and what it is read as."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from asked import put, refusal

from projector.errors import InputError, Unsupported
from projector.frameworks import resolve
from projector.intake import detect, primus
from projector.intake.loaded import Loaded
from projector.workload import parameters
from projector.workload.validate import problems
from tests.projector.intake.primus_tree import checkout, experiment

TABLE = yaml.safe_load((Path(__file__).parent / "data/primus.yaml").read_text())


def cases() -> Iterator[Any]:
    """Each case over what is usual of its kind."""
    usual = TABLE["defaults"]
    for kind, table in TABLE.items():
        for name, case in table.items() if kind != "defaults" else ():
            whole = {"framework": kind, **usual[kind], **case}
            whole["set"] = {**usual[kind].get("set", {}), **case.get("set", {})}
            yield pytest.param(whole, id=f"{kind}: {name}")


def read(root: Path, case: Mapping[str, Any]) -> Loaded:
    place = {key: case[key] for key in ("preset", "framework", "config", "trainer", "folder") if case.get(key)}
    folder = root if case.get("bare") else checkout(root)
    return primus.load(experiment(folder, **{**place, **case["set"]}), env=case.get("env", {}))


def plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("case", [*cases()])
def test_an_experiment_is_read_as_the_table_says(tmp_path: Path, case: Mapping[str, Any]) -> None:
    for key, kind in (("refused", InputError), ("unsupported", Unsupported)):
        if key in case:
            refusal(read, tmp_path, case, match=case[key], kind=kind)
            return
    loaded = read(tmp_path, case)
    work = loaded.workload(case.get("gpus", 8))
    assert (problems(work) == ()) is not case.get("unsound", False)
    for place, value in case.get("is", {}).items():
        held = work if place.startswith(("recipe", "model")) else loaded
        assert plain(attrgetter(place)(held)) == value, place
    assert case.get("said", "") in "\n".join(loaded.assumed)
    assert case.get("unsaid", "nothing of the kind") not in "\n".join(loaded.assumed)
    assert set(case.get("ignored", "").split()) <= set(loaded.ignored)


BRIDGE = {**TABLE["defaults"]["post_trainer"], "set": {}}


def test_a_preset_that_repeats_maxtexts_defaults_changes_no_named_model(tmp_path: Path) -> None:
    """Presets of 2025 hold all of base.yml; what the experiment itself says of a named model counts."""
    root = checkout(tmp_path)
    preset = root / "primus/configs/models/maxtext/llama3_8B.yaml"
    preset.write_text(
        "model_name: llama3-8b\nbase_num_decoder_layers: 16\nbase_emb_dim: 2048\nnum_experts: 1\nvocab_size: 32_000\n"
        "logits_via_embedding: false\nbase_moe_mlp_dim: 7168\nnum_experts_per_tok: 1\nhead_dim: 128\n"
    )
    whole = primus.load(experiment(root, "llama3_8B", "maxtext"), env={}).model
    assert (whole.num_layers, whole.hidden_size, whole.vocab_size, whole.moe) == (32, 4096, 128256, None)
    cut = primus.load(experiment(root, "llama3_8B", "maxtext", base_num_decoder_layers=16), env={}).model
    assert (cut.num_layers, cut.hidden_size) == (16, 4096)


def test_bridge_leaves_nothing_of_a_step_open(tmp_path: Path) -> None:
    assert not [
        text for text in resolve(read(tmp_path, BRIDGE).workload(8), "amd").assumed if text.startswith("recompute")
    ]


def test_bridge_trains_mamba_and_hybrid_stacks(tmp_path: Path) -> None:
    """Sizes are the provider's: the names say how many parameters, embedding and output apart (50288 rows)."""
    for flavor, letters, billions in (
        ("mamba2_370m_finetune_config", "M" * 48, 0.368 + 50288 * 1024 / 1e9),
        ("mamba2_hybrid_8b_pretrain_config", "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-", 8.66),
        ("zebra_llama_1b_finetune_config", "+-M-M-M-" * 4, 1.55),
    ):
        loaded = read(
            tmp_path, {**BRIDGE, "set": {"flavor": flavor, "peft": "none", "tensor_model_parallel_size": None}}
        )
        assert (loaded.model.hybrid_layer_pattern, loaded.model.unsupported) == (letters, ())
        assert parameters.count(loaded.model).total / 1e9 == pytest.approx(billions, rel=0.02)
        assert loaded.recipe.tp == (8 if "8b" in flavor else 1)


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("./primus-cli slurm srun -N 4 -p x -- container --image y -- train pretrain", 32),
        ("bash runner/primus-cli direct --env NNODES=2 --numa -- train pretrain", 16),
        ("NNODES=3 GPUS_PER_NODE=4 primus-cli direct -- train pretrain", 12),
        ("torchrun --nnodes 2 --nproc_per_node 8 primus/cli/main.py train pretrain", 16),
    ],
)
def test_a_command_line_of_primus_puts_its_words_over_its_experiment(tmp_path: Path, line: str, gpus: int) -> None:
    file = experiment(checkout(tmp_path), "dense", tensor_model_parallel_size=2, seq_length=4096)
    words = f"--config {file.relative_to(tmp_path)} --micro_batch_size 4 --global_batch_size 64 --wandb_project $NAME"
    loaded = detect.load(put(tmp_path / "run.sh", f"{line} {words}\n"))
    recipe = loaded.recipe
    assert recipe
    assert (loaded.gpus, recipe.tp, recipe.micro_batch_size, recipe.global_batch_size) == (gpus, 2, 4, 64)
    more = detect.load(put(tmp_path / "more.sh", f"{line} {words.replace(' --micro', ' $(cat patch) --micro')}\n"))
    assert (more.recipe, more.gpus) == (recipe, gpus)
    assert any("cat patch" in text for text in set(more.unmodelled) - set(loaded.unmodelled))
    for wrong, match in ((" --pipeline_model_parallel_size $PP", "--env PP="), (" --config none.yaml", "none.yaml")):
        refusal(detect.load, put(tmp_path / "wrong.sh", f"{line} {words}{wrong}\n"), match=match)
