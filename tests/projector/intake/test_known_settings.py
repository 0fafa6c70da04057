"""What a file holds beyond what is read: nothing to say, a warning, or a slip; and no false alarm on real files."""

from pathlib import Path

import pytest
from asked import put, refusal
from tabled import tabled

from projector.errors import InputError, Unsupported
from projector.intake import detect, known_settings, maxtext
from projector.intake.architecture import load_architecture
from projector.intake.asked import names_read
from projector.intake.assemble import _READERS, Origin, assemble
from projector.intake.megatron_recipe import recipe_fields
from projector.intake.spelling import misspelt
from projector.intake.values import Reader
from projector.workload.recipe import Recipe

ARGS = tabled("readers", "known_settings_args")
READ = names_read(_READERS)


def loaded(**further):
    return assemble({**ARGS, **further}, Origin(where="file", name="mine"))


@pytest.mark.parametrize(("slip", "meant"), tabled("readers", "a_slip_is_refused_with_what_was_meant"))
def test_a_slip_is_refused_with_what_was_meant(slip, meant):
    (problem,) = refusal(loaded, **{slip: 8}).problems
    assert (problem.where, problem.key, problem.found) == ("file", slip, 8)
    assert meant in problem.expected


def test_every_single_slip_in_a_name_that_is_read_is_refused(every):
    """A letter left out, doubled or swapped with its neighbour, at every place of every long name."""
    for name in sorted(READ)[::every]:
        if len(name) < 12:
            continue
        for i in (i for i in range(1, len(name) - 1) if not name[i : i + 2].isdigit() and name[i].isalpha()):
            for slip in (
                name[:i] + name[i + 1 :],
                name[:i] + name[i] + name[i:],
                name[:i] + name[i + 1] + name[i] + name[i + 2 :],
            ):
                known = slip in READ or known_settings.known().get(slip) is not None
                assert known or name in misspelt(slip, [name]), slip


def test_a_trainer_that_prints_its_own_arguments_makes_no_slips():
    made = assemble({**ARGS, "tensor_model_parallel_sizes": 8}, Origin(where="log", name="mine", written=False))
    assert made.unmodelled == ("tensor_model_parallel_sizes=8 (unknown)",)


def test_names_of_their_own_are_none():
    for name in ("fp6_recipe", "my_fork_switch", "recompute_mtp_layers", "moe_expert_dropout", "lr_schedule"):
        assert not misspelt(name, READ), name


def test_neutral_settings_are_counted_and_others_named():
    made = loaded(lr=1e-4, save_interval=100, wandb_project="x", attention_dropout=0.1, my_fork_switch=3)
    assert made.ignored == ("lr", "save_interval", "wandb_project")
    assert made.unmodelled == ("my_fork_switch=3 (unknown)",)
    assert made.recipe.attention_dropout == 0.1


def test_what_is_off_or_at_its_neutral_value_is_no_warning():
    made = loaded(
        attention_dropout=0.0, hidden_dropout="0.0", deterministic_mode=False, my_fork_switch=False, my_fork_path=None,
        bias_dropout_fusion=True, transformer_impl="transformer_engine", lora={"enabled": False, "dim": 8},
    )  # fmt: skip
    assert made.unmodelled == ()
    assert loaded(bias_dropout_fusion=False).unmodelled == ("bias_dropout_fusion=False",)


def test_what_is_read_under_other_settings_has_no_effect_here():
    assert "pp_algorithm" in loaded(patch_primus_pipeline=False, pp_algorithm="zero-bubble").ignored


def test_the_inventory_lists_no_name_twice_and_none_that_is_read():
    from projector.io.files import read_yaml

    content = read_yaml(known_settings._FILE)
    for family in ("neutral", "unmodelled"):
        assert set(content[family]) <= set(content["sources"]), family
    neutral = [n for releases in content["neutral"].values() for names in releases.values() for n in names.split()]
    unmodelled = [n for releases in content["unmodelled"].values() for names in releases.values() for n in names]
    megatron = [n for n in neutral if n not in content["neutral"]["huggingface"]["main"].split()]
    assert len(megatron) == len(set(megatron))
    assert not set(neutral) & set(unmodelled)


def test_hugging_face_keys(tmp_path):
    import json

    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
        "num_attention_heads": 4, "torch_dtype": "bfloat16", "attention_dropout": 0.1,
    }  # fmt: skip
    file = put(tmp_path / "config.json", json.dumps({**config, "num_key_value_heds": 2}))
    refusal(load_architecture, str(file), match="num_key_value_heads")
    made = load_architecture(str(put(file, json.dumps(config))))
    assert (made.ignored, made.unmodelled) == (("model_type", "torch_dtype"), ("attention_dropout=0.1",))


def test_real_files_hold_no_slips(shared, every):
    """Every configuration, script and log at hand: whatever else is wrong with it, no name of it is called misspelt."""
    folders = (shared / "inputs", shared / "logs_wild", shared / "corpus" / "logs")
    files = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".yaml", ".sh", ".json", ".log")
    ]
    assert len(files) > 500
    for path in files[::every]:
        assert not [p for p in problems_of(path) if p.expected.startswith("a known setting")], path


def problems_of(path):
    try:
        detect.load(path)
    except InputError as error:
        return error.problems
    except Unsupported:
        return ()
    return ()


@pytest.mark.parametrize(
    ("name", "value", "cuts"),
    [("tp_degree", 4, True), ("cp_size", 2, True), ("tp_degree", 1, False), ("max_shard_size", "5GB", False)],
)
def test_a_foreign_name_of_a_degree_cuts_and_a_file_of_weights_does_not(name: str, value: object, cuts: bool) -> None:
    left = known_settings.sort({name: value}, frozenset(), "train.sh", written=False)
    assert bool(left.cutting) == cuts


def test_context_parallelism_by_the_length_of_each_sample_is_not_projected() -> None:
    """Under it a rank has other tokens than its part of a sample, unless both are alike."""
    left = known_settings.sort({"max_seqlen_per_dp_cp_rank": 4096}, frozenset(), "f")
    assert {text.split("=")[0] for text in left.cutting} == {"max_seqlen_per_dp_cp_rank"}
    for tokens, cutting in ((4096, False), (8192, True)):
        args = Reader({"seq_length": 8192, "context_parallel_size": 2, "hybrid_context_parallel": True,
                       "max_seqlen_per_dp_cp_rank": tokens})  # fmt: skip
        assert recipe_fields(args, 2)["dynamic_context_parallel"] is True
        assert ("max_seqlen_per_dp_cp_rank" not in args.used) == cutting


# XLA's flags as jobs export them: which are read, which spellings count, what is no value.


COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
PIPELINED, UNROLLED = "xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_while_loop_double_buffering"
SIZES = "per_device_batch_size=4 max_target_length=4096 ici_fsdp_parallelism=8 dcn_data_parallelism=2"
RUN = f"python3 MaxText/train.py base.yml model_name=llama2-7b {SIZES}"


def found(flags: str, **env: str) -> dict[str, object]:
    fields, problems = maxtext.of_xla({"XLA_FLAGS": flags, **env})
    assert not problems
    return {name: value for name, value in fields.items() if value is not None}


def test_flags_are_read_as_xla_reads_them() -> None:
    assert found("") == found("--xla_dump_hlo_as_text --xla_gpu_enable_command_buffer=''") == {}
    assert found(f"--{COMBINE}=1 --{PIPELINED}=TRUE --{COMBINE}=1073741824 --{UNROLLED}=false") == {
        COMBINE: 2**30,
        PIPELINED: True,
        UNROLLED: False,
    }
    assert found(f"--{UNROLLED}") == {UNROLLED: True}


def test_an_optimisation_level_sets_what_no_flag_says() -> None:
    assert found("", JAX_OPTIMIZATION_LEVEL="O0") == {}
    assert found("", JAX_OPTIMIZATION_LEVEL="O1") == {PIPELINED: True, UNROLLED: True}
    assert found(f"--{UNROLLED}=false", JAX_OPTIMIZATION_LEVEL="O1") == {PIPELINED: True, UNROLLED: False}


def test_what_is_no_value_is_named_with_its_flag() -> None:
    _, problems = maxtext.of_xla({"XLA_FLAGS": f"--{COMBINE}=large --{PIPELINED}=perhaps"})
    assert [key for key, _, _ in problems] == [COMBINE, PIPELINED]
    _, (problem,) = maxtext.of_xla({"XLA_FLAGS": "--xla_dump_to='out"})
    assert problem[0] == "XLA_FLAGS"


def script(folder: Path, *lines: str) -> Recipe:
    path = put(folder / "run.sh", "\n".join(["#!/bin/bash", *lines, RUN]) + "\n")
    return detect.load(path).workload().recipe


def test_scripts_hand_their_environment_through(tmp_path: Path) -> None:
    made = script(
        tmp_path, "AG=$((8*1024*1024*1024/16))", f'export XLA_FLAGS="--{COMBINE}=$AG \\',
        f'  --{PIPELINED}=true --{UNROLLED}=true"', "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.94",
    )  # fmt: skip
    assert getattr(made, COMBINE) == 2**29
    assert getattr(made, PIPELINED) is getattr(made, UNROLLED) is True
    assert made.device_memory_fraction == 0.94
    refusal(script, tmp_path, f'export XLA_FLAGS="--{COMBINE}=lots"', match=COMBINE)
    assert getattr(script(tmp_path), COMBINE) is None
