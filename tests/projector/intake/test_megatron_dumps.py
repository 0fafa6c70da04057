"""What a whole dump of Megatron-LM's arguments tells of their age."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector.intake import megatron_args

_SIZES = {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024, "micro_batch_size": 1,
          "global_batch_size": 8, "max_position_embeddings": 1024, "padded_vocab_size": 50304, "world_size": 8}  # fmt: skip


def _dump(path: Path, others: int, **further: object) -> str:
    args = {**_SIZES, **{f"setting_{i}": i for i in range(others)}, **further}
    path.write_text("\n".join(f"  {name} {'.' * (40 - len(name))} {value}" for name, value in args.items()))
    return megatron_args.load(path).framework_date


@pytest.mark.parametrize(("others", "further", "month"), [
    (120, {}, "2022-10"),
    (120, {"use_flash_attn": False}, ""),
    (120, {"transformer_impl": "local"}, ""),
    (20, {}, ""),  # part of a dump tells nothing by what it lacks
])  # fmt: skip
def test_one_that_knows_of_no_flash_attention_is_older(tmp_path: Path, others: int, further: dict, month: str) -> None:
    assert _dump(tmp_path / "train.log", others, **further) == month


def test_what_a_person_wrote_tells_nothing_by_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "arguments.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in _SIZES.items()))
    assert megatron_args.load(file).framework_date == ""


def test_deepspeeds_table_of_operators_is_no_dump() -> None:
    operators = ("async_io", "cpu_adam", "fused_adam", "fused_lamb", "quantizer", "random_ltd", "utils", "transformer")
    table = "".join(f"{name} {'.' * (24 - len(name))} [NO] ....... [OKAY]\n" for name in operators)
    assert megatron_args.parse(table) == {}
    assert not megatron_args.is_dump(table)
    rows = "".join(f"  argument_{i} ................................... {i}\n" for i in range(8))
    assert megatron_args.parse(table + rows) == {f"argument_{i}": i for i in range(8)}
