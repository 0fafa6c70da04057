"""``harness ingest`` on logs: what it prints and writes, and how it refuses."""

from pathlib import Path

import command_line
import pytest
from asked import LOGS, put
from tabled import tabled

from harness.__main__ import main
from harness.evidence.dataset import read


def test_a_log_becomes_runs_a_table_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = command_line.told("harness", "ingest", LOGS / "megatron_e.log", "--gpu", "MI300X", "--out", out)
    assert ["cut:", "warm-up", "5", "1-5", "6.2", "58.67"] in [line.split() for line in printed.splitlines()]
    assert "90 % interval of the median: 6 to 6.01 s" in printed
    (run,) = read(out / "megatron_e.yaml")
    assert (run.gpu, run.problem, run.measured.samples) == ("mi300x", "", 11)
    assert "90 % interval 6 to 6.01 s" in run.notes
    assert (out / "megatron_e.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["megatron_e.png", "megatron_e.yaml"]


def refused(*arguments: str) -> list[str]:
    done = command_line.run("harness", "ingest", *arguments)
    assert done.returncode == 2
    return done.stderr.strip().splitlines()


def test_a_number_of_ranks_that_denies_the_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "x.log", (LOGS / "megatron_c.log").read_text().replace("/8]", "/16]"))
    (line,) = refused(str(path), "--gpu", "mi300x")
    assert line == f"{path}: line 3: world_size: found 8, expected 16, as the log's lines say"


def test_one_error_a_mistake(tmp_path: Path) -> None:
    dump = (LOGS / "megatron_a.log").read_text()
    path = tmp_path / "x.log"
    path.write_text(
        dump.replace(" 4096\n", " many\n", 1).replace("size ...................... 2\n", "size ... two\n", 1)
    )
    lines = refused(str(path), str(tmp_path / "none.log"))
    assert len(lines) >= 2
    assert any("hidden_size: found 'many', expected a whole number" in line for line in lines)
    assert lines[-1].endswith("does not exist")


@pytest.mark.parametrize(("arguments", "text"), tabled("readers", "options_that_do_not_fit"))
def test_options_that_do_not_fit(arguments: list[str], text: str) -> None:
    assert text in refused(str(LOGS / "megatron_a.log"), *arguments)[0]


def test_a_recipe_may_be_a_launch_script(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\\n"
        "  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --vocab-size 128256 \\\n"
        "  --seq-length 8192 --micro-batch-size 2 --global-batch-size 128 --bf16\n"
    )
    out = tmp_path / "out.yaml"
    arguments = ["--recipe", str(script), "--gpu", "h100", "--gpus", "8", "--out", str(out), "--no-plot"]
    assert main(["ingest", str(LOGS / "nemo2.log"), *arguments]) == 0
    (run,) = read(out)
    assert (run.gpu, run.gpus, run.stack.framework) == ("h100_sxm", 8, "megatron-lm")


def test_a_document_cut_in_the_middle_is_refused(tmp_path: Path) -> None:
    (line,) = refused(str(put(tmp_path / "x.json", (LOGS / "tprimat.json").read_text()[:-40])))
    assert "expected a whole JSON document" in line


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = put(tmp_path / "runs.yaml", "what was there\n")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    assert main(["ingest", str(LOGS / "megatron_a.log"), "--gpu", "mi300x", "--no-plot", "--out", str(out)]) == 2
    assert out.read_text() == "what was there\n"
    assert list(tmp_path.iterdir()) == [out]
