"""``projector memory``: components of every rank, and a verdict with its margin."""

import re

import pytest
from asked import put, says
from cli_command import DEEPSEEK, ON_MI355X, document, told


def test_table_and_verdict():
    out = told("memory", *ON_MI355X)
    lines = [line for line in out.splitlines() if line.split() and line.split()[0].isdigit()]
    rows = [line.split() for line in lines if "│" not in line]
    assert len([line for line in lines if "│" in line]) == 4
    assert [row[0] for row in rows] == 2 * ["0", "1", "2", "3"]  # peaks, then activations by module
    for row in rows[:4]:  # the last word may be an event
        *sizes, allocated, _, _ = [float(word) for word in row[2:] if word.replace(".", "").isdigit()]
        assert sum(sizes) == pytest.approx(allocated, abs=0.06)
    says(out, "\nFits: ", "GiB to spare")


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    told("memory", *ON_MI355X, "--draw", tmp_path / "memory.svg", "--width", "60")
    assert (tmp_path / "memory.svg").read_text().lstrip().startswith("<?xml")


# ``performance`` and ``memory`` of a configuration that does not fit, and ``performance --communication``.


CONFIG = """
model: llama3_70b
gpus: 64
cluster: h100_sxm
recipe: {data_parallel_sharding: optim, tp: 4, pp: 2, micro_batch_size: 2, global_batch_size: 256, seq_length: 8192}
"""


def test_what_does_not_fit_is_told_what_makes_it(tmp_path) -> None:
    path = put(tmp_path / "case.yaml", CONFIG)
    text = told("memory", "--config", str(path))
    says(text, "Does not fit: ", "Changes that make it fit")
    content = document("memory", "--config", str(path))
    assert len(content["remedies"]["changes"]) == 3
    assert content["remedies"]["out_of_memory_bytes"] == pytest.approx(-content["memory"]["margin"])
    assert all(change["fits"] and change["margin"] >= 0 for change in content["remedies"]["changes"])
    split = "tp: 8, pp: 8, sequence_parallel: true, recompute_granularity: full"
    path.write_text(CONFIG.replace("tp: 4, pp: 2", split))
    assert "remedies" not in document("memory", "--config", str(path))


def test_a_script_that_defers_its_gradients_hears_what_that_costs(tmp_path) -> None:
    """Hugging Face's trainer under FSDP with accumulation keeps four bytes of every parameter: 70B fit on no GPU so."""
    path = tmp_path / "case.yaml"
    sizes = "{data_parallel_sharding: optim_grads_params, recompute_granularity: full, micro_batch_size: 1, seq_length: 4096"
    path.write_text(
        f"{{model: llama3_70b, framework: pytorch, gpus: 64, cluster: h100_sxm, recipe: {sizes}, global_batch_size: 512}}}}"
    )
    content = document("performance", "--config", str(path))
    assert content["memory"]["ranks"][0]["components"]["gradients"] == pytest.approx(4 * 70.55e9, rel=1e-2)
    assert {"defer_fsdp_grad_sync": False} in [change["fields"] for change in content["remedies"]["changes"]]
    text = " ".join(told("performance", "--config", str(path)).split())
    assert re.search(r"defer_fsdp_grad_sync=True \(\d+ %, --defer-fsdp-grad-sync\)", text)
    path.write_text(path.read_text().replace("512", "64"))  # one micro-batch: nothing to defer
    assert document("performance", "--config", str(path))["memory"]["status"] == "fits"


def test_every_collective_has_room_in_80_columns(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = told("performance", "--config", DEEPSEEK, "--communication")
    assert all(len(line) <= 80 for line in text[text.index("Communication of a step") :].splitlines())
