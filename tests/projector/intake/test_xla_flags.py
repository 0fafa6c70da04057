"""XLA's flags as jobs export them: which are read, which spellings count, what is no value."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.errors import InputError
from projector.intake import detect, xla_flags
from projector.workload.recipe import Recipe

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
PIPELINED, UNROLLED = "xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_while_loop_double_buffering"
SIZES = "per_device_batch_size=4 max_target_length=4096 ici_fsdp_parallelism=8 dcn_data_parallelism=2"
RUN = f"python3 MaxText/train.py base.yml model_name=llama2-7b {SIZES}"


def found(flags: str, **env: str) -> dict[str, object]:
    fields, problems = xla_flags.stated({"XLA_FLAGS": flags, **env})
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
    _, problems = xla_flags.stated({"XLA_FLAGS": f"--{COMBINE}=large --{PIPELINED}=perhaps"})
    assert [key for key, _, _ in problems] == [COMBINE, PIPELINED]
    _, (problem,) = xla_flags.stated({"XLA_FLAGS": "--xla_dump_to='out"})
    assert problem[0] == "XLA_FLAGS"


def script(folder: Path, *lines: str) -> Recipe:
    path = folder / "run.sh"
    path.write_text("\n".join(["#!/bin/bash", *lines, RUN]) + "\n")
    return detect.load(path).workload().recipe


def test_scripts_hand_their_environment_through(tmp_path: Path) -> None:
    made = script(
        tmp_path, "AG=$((8*1024*1024*1024/16))", f'export XLA_FLAGS="--{COMBINE}=$AG \\',
        f'  --{PIPELINED}=true --{UNROLLED}=true"', "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.94",
    )  # fmt: skip
    assert getattr(made, COMBINE) == 2**29
    assert getattr(made, PIPELINED) is getattr(made, UNROLLED) is True
    assert made.device_memory_fraction == 0.94
    with pytest.raises(InputError, match=COMBINE):
        script(tmp_path, f'export XLA_FLAGS="--{COMBINE}=lots"')
    assert getattr(script(tmp_path), COMBINE) is None
