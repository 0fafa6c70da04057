"""torchtitan's registries in Python: what a function states is read, and nothing of it is dropped in silence."""

import re
from pathlib import Path

import pytest
from asked import put, refusal
from tabled import sample

from projector.errors import InputError, Unsupported
from projector.intake import detect
from projector.intake.loaded import Loaded

REGISTRY = sample("config_registry.py.txt")


def _read(folder: Path, text: str = REGISTRY, name: str = "llama3_8b") -> Loaded:
    path = folder / "llama3" / "config_registry.py"
    path.parent.mkdir(exist_ok=True)
    return detect.load(put(path, text), args=("--config", name), gpus=16)


def test_a_function_is_read_with_those_that_it_starts_from(tmp_path: Path) -> None:
    small, large = _read(tmp_path), _read(tmp_path, name="llama3_70b")
    assert (small.model.name, small.recipe.micro_batch_size, small.recipe.seq_length) == ("llama3.1_8b", 2, 8192)
    assert (small.recipe.precision, small.recipe.fp8_recipe, small.recipe.tp) == ("fp8", "rowwise", 2)
    assert (small.recipe.torch_compile, small.recipe.recompute_modules, small.unmodelled) == (True, ("op_sac",), ())
    assert (large.model.name, large.recipe.precision, large.recipe.tp) == ("llama3.1_70b", "bf16", 8)
    assert (large.recipe.recompute_granularity, large.unmodelled) == ("full", ("fuse_more(config)",))


def test_a_launch_finds_the_registry_beside_it_and_its_options_stand_above(tmp_path: Path) -> None:
    _read(tmp_path)
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_70b "
        "--parallelism.tensor_parallel_degree 4 --training.num_tokens_per_microbatch_per_dp_rank 8192\n"
    )
    loaded = detect.load(tmp_path / "run.sh")
    assert (loaded.recipe.tp, loaded.recipe.micro_batch_size, loaded.gpus) == (4, 1, 8)


@pytest.mark.parametrize("old", sorted(set(re.findall(r'\d[\de.-]*(?=[,)])|"\w+"|\w+AC\b|\w+Loss\b', REGISTRY))))
def test_no_value_is_dropped_in_silence(tmp_path: Path, old: str) -> None:
    before = _read(tmp_path, name="llama3_70b"), _read(tmp_path)
    text = REGISTRY.replace(old, '"xyzzy"' if not old.endswith(("AC", "Loss")) else "Xyzzy")
    try:
        after = _read(tmp_path, text, "llama3_70b"), _read(tmp_path, text)
    except (InputError, Unsupported):
        return
    calm = old in ("3e-4", "1000")  # the rate of learning, and how many steps: neither changes a step
    assert ([repr(each) for each in after] == [repr(each) for each in before]) == calm


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (("Float8Linear", "NVFP5Linear"), "NVFP5LinearConverter"),
        (("def llama3_8b", "def other"), "one of llama3_70b, other"),
        (("steps=1000", "seq_len=4096"), "tokens alone"),
        (("= llama3_8b()", "= llama3_8b("), "never closed"),
        (("steps=1000", "steps=" + "1 * " * 5000 + "1"), "too deep|recursion"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, damage: tuple[str, str], told: str) -> None:
    refusal(_read, tmp_path, REGISTRY.replace(*damage), match=told)


def test_functions_that_start_from_each_other_end(tmp_path: Path) -> None:
    links = "".join(
        f"def f{n}() -> Trainer.Config:\n    a = f{n - 1}()\n    b = f{n - 1}()\n    return b\n" for n in range(1, 60)
    )
    text = REGISTRY + "\n" + links + "def f0() -> Trainer.Config:\n    return llama3_8b()\n"
    refusal(_read, tmp_path, text, "f59", match="training")
