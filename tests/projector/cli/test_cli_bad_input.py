"""Whatever is wrong: every mistake on its own line of stderr, exit code 2, no traceback, nothing written."""

import os
import re

import pytest
from asked import put
from cli_command import DEEPSEEK, MIXTRAL, ON_MI355X, ROOT, refused
from tabled import tabled, written

VPP = "--num-virtual-stages-per-pipeline-rank"
CASE = "model: llama3.1_8b\ngpu: h100_sxm\ngpus: 8\nrecipe: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096}\n"


@pytest.fixture
def case(tmp_path):
    def write(text, name="case.yaml"):
        return str(put(tmp_path / name, text))

    return write


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        *tabled("refusals", "flags"),
        (("--config", DEEPSEEK, VPP, "4"), ("pipeline_model_parallel_layout",)),
        (("--config", str(ROOT), "--cluster", "h100"), ("a folder", "a readable text file")),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_flags(flags, words):
    lines = refused("performance", "--config", MIXTRAL, *flags)
    for word in words:
        assert word in "\n".join(lines)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("performanse",), "'performance'"), ((), "COMMAND"), (("models", "mixtrall_8x22b"), "mixtral_8x22b")],
)
def test_unknown_commands_and_patterns(arguments, word):
    assert word in refused(*arguments)[0]


def test_mistakes_of_flags_and_file_at_once(case):
    file = case(CASE.replace("llama3.1_8b", "llama9_8b").replace("gpus: 8", "gpus: eight\ncolour: red"))
    lines = refused("memory", "--config", file, "--cluster", "h10", "--framework", "megatronn")
    assert len(lines) == 5
    for word in ("llama9_8b", "eight", "colour", "--cluster", "--framework"):
        assert sum(word in line for line in lines) >= 1


@pytest.mark.parametrize(("old", "new", "words"), tabled("refusals", "files"))
def test_files(case, old, new, words):
    lines = refused("performance", "--config", case(written(CASE, old, new)))
    for word in words:
        assert word in "\n".join(lines)


@pytest.mark.parametrize(("flags", "line"), tabled("refusals", "flags_of_a_case"))
def test_a_flag_that_a_case_does_not_take_is_one_line(case, flags, line):
    (said,) = refused("performance", "--config", case(CASE), *flags)
    assert re.search(line, said)


def test_what_holds_no_configuration(case, tmp_path):
    refused("performance", "--config", str(put(tmp_path / "run.log", os.urandom(4096))), "--cluster", "h100")
    file = case('{"model_type": "llama", "hidden_size": 4096}', "config.json")
    (line,) = refused("performance", "--config", file, "--cluster", "h100")
    assert f"--config, and this file with --model {file}" in line


def test_nothing_is_written(tmp_path, case):
    file = tmp_path / "trace.json"
    bad = case(CASE.replace("gpus: 8", "gpus: 7"))
    refused("performance", "--config", bad, "--trace", str(file))
    assert not file.exists()
    (line,) = refused("performance", *ON_MI355X, "--trace", str(tmp_path / "absent" / "t.json"))
    assert "an existing folder" in line
    refused("performance", *ON_MI355X, "--trace", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["case.yaml"]
