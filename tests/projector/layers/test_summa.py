"""SUMMA: products are divided and none is added, nothing is held twice, messages have closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowering_cases import DEEPSEEK_V3, LLAMA_70B, attention_flops, collectives, flops, phases, resolved

from projector.hardware import catalogue
from projector.layers import lower
from projector.operators.part import Block
from projector.projection import project
from projector.workload import zoo
from projector.workload.lora import LoRA
from projector.workload.recipe import Recipe
from projector.workload.validate import problems
from projector.workload.workload import Workload

GPT = zoo.load("gpt3_175b")
KIND = GPT.layer_kinds[0]
GRIDS = ((4, 2), (2, 4), (1, 4), (8, 1), (4, 4))


def block(tp: int, tp2: int, panels: int | None = None, **more: object) -> Block:
    how = "summa" if tp2 > 1 else "1d"
    stated = {"tensor_parallel_algorithm": how, "summa_panels": panels, "seq_length": 2048, **more}
    return lower.layer(KIND, resolved(GPT, tp=tp, tp2=tp2, **stated))


def matrices(made: Block) -> float:
    return made.held.only("linear").total


@pytest.mark.parametrize(("tp", "tp2"), GRIDS)
def test_work_and_weights_are_divided_and_nothing_is_added(tp: int, tp2: int) -> None:
    one, mine, ranks = block(1, 1), block(tp, tp2), tp * tp2
    for whole, part in zip(phases(one), phases(mine), strict=True):
        assert flops(part) * ranks == pytest.approx(flops(whole))
        assert attention_flops(part) * ranks == pytest.approx(attention_flops(whole))
    assert matrices(mine) * ranks == matrices(one)


def test_no_activation_is_held_twice() -> None:
    """What all ranks of a grid save is what one rank would; 1d without sequence parallelism saves parts ``tp`` times."""
    one, grid = block(1, 1), block(4, 2)
    spread, copied = block(8, 1), block(8, 1, sequence_parallel=False)
    assert grid.saved_bytes * 8 == pytest.approx(one.saved_bytes, rel=1e-3)
    assert spread.saved_bytes * 8 == pytest.approx(one.saved_bytes, rel=2e-2)
    assert grid.saved_bytes < copied.saved_bytes / 1.5
    assert grid.forward_transient is not None


def test_messages_of_a_layer_in_closed_form() -> None:
    """With b·s/tp2 rows, width h and MLP 4h: inputs of 7h over tp (h, h, h, 4h), weights of 12h²/tp over tp2, each once
    forward and twice backward; the first of the panels in the open."""
    tp, tp2, panels, h = 4, 2, 16, GPT.hidden_size
    made = block(tp, tp2, panels)
    inputs = 2.0 * (2048 // tp2) * (h + h + h + 4 * h)
    weights = 2.0 * 12 * h * h / tp

    def moved(ops: object, group: str, *kinds: str) -> float:
        return sum(op.bytes for kind in kinds for op in collectives(ops, kind, group))  # type: ignore[arg-type]

    assert moved(made.forward, "tp", "broadcast") == pytest.approx(inputs)
    assert moved(made.forward, "tp2", "broadcast") == pytest.approx(weights)
    backward = (*made.backward_input, *made.backward_weight)
    assert moved(backward, "tp", "broadcast", "reduce_scatter") == pytest.approx(2 * inputs)
    # keys and values go the other way round the sequence: their gradients are scattered over tp2, too
    attention = 2.0 * 2048 * 2 * h / tp
    assert moved(backward, "tp2", "broadcast", "reduce_scatter") == pytest.approx(2 * weights + attention)
    assert moved(made.forward, "tp2", "all_gather") == pytest.approx(attention)
    shown = sum(op.bytes for op in collectives(made.forward, "broadcast") if not op.hides_behind)
    assert shown == pytest.approx((inputs + weights) / panels)


def test_a_grid_of_one_row_is_one_dimension() -> None:
    assert lower.layer(KIND, resolved(GPT, tp=8, seq_length=2048, tensor_parallel_algorithm="summa")) == block(8, 1)
    cluster = catalogue.cluster("h100")

    def step(**recipe: object) -> float:
        stated = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048, "pp": 4, "tp": 4, **recipe}
        work = Workload(model=GPT, recipe=Recipe(**stated), gpus=64, framework="analytic")  # type: ignore[arg-type]
        return project(work, cluster).step_seconds

    assert step(tensor_parallel_algorithm="summa") == step() == step(tensor_parallel_algorithm="1d")
    apart = {"cp": 2, "cp_comm_type": "allgather", "sequence_parallel": True}
    assert step(tensor_parallel_algorithm="2d_sequence", cp=2) == step(**apart)
    few, many = (step(tensor_parallel_algorithm="summa", tp2=2, summa_panels=n) for n in (4, 16))
    assert few != many


def test_ends_of_the_model_are_divided_too() -> None:
    case = resolved(GPT, tp=4, tp2=2, tensor_parallel_algorithm="summa")
    one = resolved(GPT)
    table = [lower.embedding(each).held.only("embedding").total for each in (one, case)]
    head = [lower.head(each).held.only("output").total for each in (one, case)]
    learned = GPT.hidden_size * (GPT.max_position_embeddings or 0)
    padded = replace(case.workload).padded_vocab_size * GPT.hidden_size
    assert table[1] == padded / 8 + learned
    assert head[1] in (0.0, padded / 8)
    assert table[0] >= GPT.vocab_size * GPT.hidden_size


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ({"tensor_parallel_algorithm": "1d"}, "tp2"),
        ({"tensor_parallel_algorithm": None, "tp2": 1, "summa_panels": 8}, "summa_panels"),
        ({"summa_panels": 6}, "summa_panels"),
        ({"tp2": 7}, "tp2"),
        ({"cp": 2}, "cp"),
        ({"precision": "fp8"}, "precision"),
        ({"lora": LoRA(dim=8)}, "lora"),
        ({"tp_comm_overlap": True}, "tp_comm_overlap"),
        ({"sequence_parallel": False}, "sequence_parallel"),
        ({"tensor_parallel_algorithm": "2d_sequence", "tp2": 1, "cp_comm_type": "p2p"}, "cp_comm_type"),
    ],
)
def test_what_it_does_not_go_with_is_refused(recipe: dict[str, object], key: str) -> None:
    stated = {"micro_batch_size": 1, "global_batch_size": 448, "seq_length": 2048, "tp": 4, "tp2": 2}
    stated |= {"tensor_parallel_algorithm": "summa", **recipe}
    work = Workload(model=GPT, recipe=Recipe(**stated), gpus=448, framework="analytic")  # type: ignore[arg-type]
    assert f"recipe.{key}" in {problem.key for problem in problems(work)}


def test_models_and_frameworks_that_cannot() -> None:
    recipe = Recipe(
        micro_batch_size=1, global_batch_size=64, seq_length=2048, tp=4, tp2=2, tensor_parallel_algorithm="summa"
    )
    experts = Workload(model=DEEPSEEK_V3, recipe=recipe, gpus=64, framework="analytic")
    assert "recipe.tensor_parallel_algorithm" in {problem.key for problem in problems(experts)}
    with pytest.raises(ValueError, match="no SUMMA"):
        project(Workload(model=LLAMA_70B, recipe=recipe, gpus=64), catalogue.cluster("h100"))
