"""Every field of a recipe is reached by a flag, by ``--set`` and by a file, and is the same each time."""

import shlex

import pytest
from asked import refusal, says
from cli_command import refused
from tabled import tabled

from projector.cli import _parser
from projector.cli.parser import parse
from projector.cli.recipe_flags import read_overrides
from projector.workload.fields import field_of, fields
from projector.workload.model_schema import merge
from projector.workload.recipe import Recipe
from projector.workload.schema import parse_recipe
from projector.workload.structure import to_mapping

PARSER = _parser()
SIZES = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 64}


def values(field):
    """(text on a command line, value in a file) that a field may hold."""
    if field.choices:
        words = field.choices[:3]
        return [(",".join(words), list(words))] if field.many else [(word, word) for word in words]
    samples = {
        int: [("2", 2)],
        float: [("0.5", 0.5), ("1", 1.0)],
        bool: [("true", True), ("false", False)],
        str: [("linear_qkv", "linear_qkv")],
    }[field.kind]
    return [(text, [value]) for text, value in samples] if field.many else samples


def told(*arguments):
    problems = []
    found = read_overrides(parse(PARSER, ["performance", *arguments]), {}, problems)
    assert problems == []
    return found.recipe


def nested(field, value):
    out = value
    for name in reversed(field.path):
        out = {name: out}
    return out


def as_recipe(mapping):
    # an adapter has a rank: its other parts do not stand alone
    whole = merge({"lora": {"dim": 8}} if "lora" in mapping else {}, mapping)
    recipe, problems = parse_recipe({**SIZES, **whole}, "file")
    assert problems == []
    return recipe


CASES = [
    (field, name, text, value)
    for field in fields()
    if field.key not in ("pipeline_schedule", "sync_free_stage")  # their flags say more than the field
    for name in field.names
    for text, value in values(field)
]


def test_flag_set_and_file_are_one():
    for field, name, text, value in CASES:
        flag = f"--{name.replace('_', '-')}"
        if field.kind is bool:
            by_flag = told(flag if value else f"--no-{flag[2:]}")
        else:
            by_flag = told(flag, text)
        assert by_flag == told("--set", f"{name}={text}") == nested(field, value)
        assert as_recipe(by_flag) == as_recipe(nested(field, value))
        assert field_of(flag) == field


def test_the_table_has_every_field_of_a_recipe():
    keys = {field.path[0] for field in fields()}
    assert keys == set(Recipe.__dataclass_fields__)


PLAIN = shlex.split("--gpu h100 --gpus 64 --tp 8 --pp 4 --mbs 1 --gbs 512 --seq-length 8192")


@pytest.mark.parametrize("command", ["performance", "memory", "schedules"])
def test_every_command_takes_a_model_alone(document, command):
    assert document("--model", "llama3.1_8b", *PLAIN, command=command)["cluster"]["gpus"] == 64


WRONG = tabled("refusals", "field_flags")


@pytest.mark.parametrize(("flags", "pieces"), WRONG, ids=lambda v: " ".join(v))
def test_mistakes_name_the_flag(flags, pieces):
    rest = PLAIN if "--gpu" not in flags else PLAIN[2:]
    says("\n".join(refused("performance", "--model", "llama3.1_8b", *rest, *flags)), *pieces)


def test_a_wrong_switch_is_no_text():
    refusal(parse, _parser(), ["performance", "--sequence-paralel"])
    assert to_mapping(as_recipe({"tp": 2}))["tp"] == 2


@pytest.mark.parametrize(
    ("text", "tokens"), [("32k", 32768), ("1M", 1 << 20), ("0.5k", 512), (4096, 4096), ("128K", 131072)]
)
def test_tokens_of_a_sequence_may_be_written_in_k(text, tokens):
    assert told("--seq-length", str(text)) == {"seq_length": tokens}
    assert told("--set", f"seq_length={text}") == told("--seq_length", str(text)) == {"seq_length": tokens}
    assert as_recipe({"seq_length": text, "global_batch_size": text}).global_batch_size == tokens
