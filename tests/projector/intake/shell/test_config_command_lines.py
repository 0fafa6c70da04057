"""Command lines that are a configuration file and words over it: MaxText's and NeMo's; nanotron's, a file alone."""

from pathlib import Path

import pytest
import yaml
from asked import put, refusal
from tabled import tabled

from projector.errors import InputError
from projector.intake import detect
from projector.intake.loaded import Loaded
from projector.workload.recipe import Recipe

_NEMO = tabled("readers", "config_command_lines_nemo")


def _load(folder: Path, command: str, **env: str) -> Loaded:
    path = put(folder / "run.sh", f"#!/bin/bash\n{command}\n")
    return detect.load(path, env=env)


def _recipe(loaded: Loaded) -> Recipe:
    recipe = loaded.workload().recipe
    assert recipe is not None
    return recipe


def test_maxtexts_words_stand_over_its_file(tmp_path: Path) -> None:
    words = "run_name=$NAME model_name=llama2-7b per_device_batch_size=4 ici_fsdp_parallelism=8 dcn_data_parallelism=2"
    for command in ("python3 MaxText/train.py MaxText/configs/base.yml", "python3 -m MaxText.train configs/base.yml"):
        loaded = _load(tmp_path, f"{command} {words} max_target_length=4096")
        recipe = _recipe(loaded)
        assert (loaded.framework, loaded.model.name, loaded.gpus) == ("maxtext", "llama2_7b", 16)
        assert (recipe.micro_batch_size, recipe.global_batch_size, recipe.seq_length) == (4, 64, 4096)
    (tmp_path / "own.yml").write_text(yaml.safe_dump({"model_name": "llama3.1-70b", "max_target_length": 8192}))
    loaded = _load(tmp_path, f"python3 MaxText/train.py own.yml {words.replace('model_name=llama2-7b', '')}")
    assert (loaded.model.name, _recipe(loaded).seq_length) == ("llama3.1_70b", 8192)
    loaded = _load(tmp_path, f"python3 -m maxtext.trainers.pre_train.train {words} max_target_length=4096")
    assert (loaded.model.name, _recipe(loaded).global_batch_size) == ("llama2_7b", 64)
    assert any("base.yml" in text for text in loaded.assumed)
    refusal(_load, tmp_path, f"python3 MaxText/train.py absent.yml {words}", match="that file beside the script")
    with pytest.raises(InputError, match=r"per_device_batch_size.*BATCH"):
        _load(tmp_path, "python3 MaxText/train.py base.yml per_device_batch_size=$BATCH max_target_length=2048")


def test_nemos_words_stand_over_its_file(tmp_path: Path) -> None:
    put(tmp_path / "conf" / "gpt.yaml", yaml.safe_dump(_NEMO))
    start = "torchrun --nproc_per_node 8 pretraining.py --config-path=conf --config-name=gpt.yaml"
    loaded = _load(tmp_path, f"{start} trainer.num_nodes=2 +model.sequence_parallel=True model.micro_batch_size=4")
    recipe = _recipe(loaded)
    assert (loaded.framework, loaded.gpus, recipe.tp, recipe.sequence_parallel) == ("nemo", 16, 2, True)
    assert (recipe.micro_batch_size, recipe.global_batch_size) == (4, 64)
    refusal(_load, tmp_path, f"{start} model.global_batch_size=$GBS", match=r"model\.global_batch_size.*GBS")
    with pytest.raises(InputError, match="whole configuration"):
        _load(tmp_path, "torchrun pretraining.py --config-path=conf --config-name=other trainer.num_nodes=2")
    refusal(_load, tmp_path, f"{start} trainer.num_nodes=2 $(cat words)", match="arguments from")


def test_a_group_of_nemos_launcher_is_a_file(tmp_path: Path) -> None:
    conf = tmp_path / "launcher_scripts" / "conf" / "training" / "gpt3"
    put(conf / "1b.yaml", yaml.safe_dump(_NEMO))
    loaded = _load(
        tmp_path,
        "python3 ${HOME_OF:-/opt/launcher}/launcher_scripts/main.py training=gpt3/1b stages=[training] "
        'data_dir=${DATA} training.run.name="mine" training.trainer.num_nodes=8 +training.model.context_parallel_size=2',
    )
    assert (loaded.gpus, _recipe(loaded).cp, loaded.model.name) == (64, 2, "of_the_file")


def test_nanotrons_program_is_read_by_its_file(tmp_path: Path) -> None:
    content = {
        "model": {"model_config": {"is_llama_config": True, "num_hidden_layers": 16, "hidden_size": 2048}},
        "parallelism": {"dp": 4, "tp": 2, "pp": 1},
        "tokens": {"sequence_length": 2048, "micro_batch_size": 1, "batch_accumulation_per_replica": 2},
        "optimizer": {"zero_stage": 0, "accumulate_grad_in_fp32": True},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    command = "torchrun --nproc_per_node $N ../run_train.py --config-file $(dirname $0)/tiny.yaml"
    for env in ({"N": "8"}, {}):  # the product of the file says how many there are
        loaded = _load(tmp_path, command, **env)
        assert (loaded.framework, loaded.gpus, loaded.model.num_layers) == ("unknown", 8, 16)
        assert (_recipe(loaded).tp, _recipe(loaded).global_batch_size) == (2, 1 * 2 * 4)
    refusal(_load, tmp_path, command, N="4", match="8: the product")
    refusal(_load, tmp_path, command.replace("tiny", "other"), N="8", match=r"other\.yaml.*beside the script")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    refusal(_load, tmp_path, command.replace("tiny", "other"), N="8", match="a nanotron configuration")
