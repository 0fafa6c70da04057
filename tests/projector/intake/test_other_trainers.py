"""Files of trainers that are named and not read, and of nobody."""

import json

import pytest
from asked import put, refusal
from tabled import tabled

from projector.errors import Unsupported
from projector.intake import detect


@pytest.mark.parametrize(("content", "tool"), tabled("readers", "files_of_other_trainers_are_named"))
def test_files_of_other_trainers_are_named(tmp_path, content, tool):
    refusal(detect.load, put(tmp_path / "c.json", json.dumps(content)), match=tool, kind=Unsupported)


def test_a_file_of_no_known_tool_is_told_what_is_read(tmp_path):
    file = put(tmp_path / "c.yaml", "model: {kind: new}\nlaunch: {hosts: 2}\nloop: {}\n")
    caught = refusal(detect.load, file, match=r"model, launch, loop.*Primus.*torchtitan.*MaxText.*Megatron-LM")
    assert len(caught.problems) == 1
    program = put(tmp_path / "llama3.py", "def llama3_8b():\n    return dict(seq_len=8192)\n")
    refusal(detect.load, program, match=r"a Python program.*torchtitan.*MaxText")
    program.write_text("from olmo_core.train import TrainerConfig\nsequence_length = 8192\nmicro_batch_size = 2\n")
    refusal(detect.load, program, match=r"a program of OLMo-core.*--micro-batch-size 2", kind=Unsupported)
