"""``projector memory``: components of every rank, and a verdict with its margin."""

import re

import pytest
from asked import put, says
from cli_command import DEEPSEEK, ON_MI355X, projector


def test_table_and_verdict():
    done = projector("memory", *ON_MI355X)
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.split() and line.split()[0].isdigit()]
    rows = [line.split() for line in lines if "│" not in line]
    assert len([line for line in lines if "│" in line]) == 4
    assert [row[0] for row in rows] == 2 * ["0", "1", "2", "3"]  # peaks, then activations by module
    for row in rows[:4]:
        *sizes, allocated, _, _, _ = map(float, row[2:-1]) if _is_number(row[-1]) else (*map(float, row[2:-1]), 0.0)
        assert sum(sizes) == pytest.approx(allocated, abs=0.06)
    says(done.out, "\nFits: ", "GiB to spare")


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.svg"
    assert projector("memory", *ON_MI355X, "--draw", str(path), "--width", "60").code == 0
    assert path.read_text().lstrip().startswith("<?xml")


def _is_number(text: str) -> bool:
    return text.replace(".", "").isdigit()


# ``performance`` and ``memory`` of a configuration that does not fit, and ``performance --communication``.


CONFIG = """
model: llama3_70b
gpus: 64
cluster: h100_sxm
recipe: {data_parallel_sharding: optim, tp: 4, pp: 2, micro_batch_size: 2, global_batch_size: 256, seq_length: 8192}
"""


def test_what_does_not_fit_is_told_what_makes_it(tmp_path) -> None:
    path = put(tmp_path / "case.yaml", CONFIG)
    text = projector("memory", "--config", str(path)).out
    says(text, "Does not fit: ", "Changes that make it fit")
    content = projector("memory", "--config", str(path), "--json").document
    assert len(content["remedies"]["changes"]) == 3
    assert content["remedies"]["out_of_memory_bytes"] == pytest.approx(-content["memory"]["margin"])
    assert all(change["fits"] and change["margin"] >= 0 for change in content["remedies"]["changes"])
    split = "tp: 8, pp: 8, sequence_parallel: true, recompute_granularity: full"
    path.write_text(CONFIG.replace("tp: 4, pp: 2", split))
    assert "remedies" not in projector("memory", "--config", str(path), "--json").document


def test_a_script_that_defers_its_gradients_hears_what_that_costs(tmp_path) -> None:
    """Hugging Face's trainer under FSDP with accumulation keeps four bytes of every parameter: 70B fit on no GPU so."""
    path = tmp_path / "case.yaml"
    sizes = "{data_parallel_sharding: optim_grads_params, recompute_granularity: full, micro_batch_size: 1, seq_length: 4096"
    path.write_text(
        f"{{model: llama3_70b, framework: pytorch, gpus: 64, cluster: h100_sxm, recipe: {sizes}, global_batch_size: 512}}}}"
    )
    content = projector("performance", "--config", str(path), "--json").document
    assert content["memory"]["ranks"][0]["components"]["gradients"] == pytest.approx(4 * 70.55e9, rel=1e-2)
    assert {"defer_fsdp_grad_sync": False} in [change["fields"] for change in content["remedies"]["changes"]]
    told = " ".join(projector("performance", "--config", str(path)).out.split())
    assert re.search(r"defer_fsdp_grad_sync=True \(\d+ %, --defer-fsdp-grad-sync\)", told)
    path.write_text(path.read_text().replace("512", "64"))  # one micro-batch: nothing to defer
    assert projector("performance", "--config", str(path), "--json").document["memory"]["status"] == "fits"


def test_every_collective_as_a_table_and_as_json() -> None:
    text = projector("performance", "--config", DEEPSEEK, "--communication", COLUMNS="80").out
    start = text.index("Communication of a step")
    assert all(len(line) <= 80 for line in text[start:].splitlines())
    content = projector("performance", "--config", DEEPSEEK, "--communication", "--json").document
    parts = content["projections"]["simulate"]["breakdown"]
    for part in ("tp_s", "ep_s", "cp_s", "pp_s", "dp_s"):
        exposed = sum(row["exposed_seconds"] for row in content["communication"] if row["part"] == part)
        assert exposed == pytest.approx(parts[part], abs=1e-6)
    assert content["projections"]["simulate"]["tokens_per_second"] == pytest.approx(
        content["derived"]["tokens_per_step"] / content["projections"]["simulate"]["step_seconds"]
    )
    assert content["derived"]["dp_scaling_factor"] >= 1
