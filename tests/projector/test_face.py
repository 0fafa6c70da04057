"""Python as people write it: words in, the same numbers as from the command line and from typed calls."""

import json
import re
from collections.abc import Callable
from typing import Any

import command_line
import pytest
from asked import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

import projector as pj
from projector.hardware import catalogue
from projector.workload.fields import fields
from tests.workloads import workload

RUN = {"model": "llama3.1_8b", "gpu": "h100", "gpus": 16}
FITS = {**RUN, "tp": 2, "pp": 2, "global_batch_size": 64, "seq_length": 4096, "use_distributed_optimizer": True}


def test_words_are_the_flags_of_the_command_line() -> None:
    made = pj.project(**FITS)
    flags = ["--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "16", "--tp", "2", "--pp", "2", "--gbs", "64"]
    told = command_line.document("projector", "performance", *flags, "--seq", "4k", "--use-distributed-optimizer")
    assert made.step_seconds == told["projections"]["simulate"]["step_seconds"]
    assert pj.expect(made).middle == pytest.approx(told["projections"]["simulate"]["expected"]["middle"])
    assert made.to_dict()["memory"]["margin_bytes"] == told["memory"]["margin"]
    assert any("chosen micro_batch_size=1" in text for text in made.assumed)


def test_typed_calls_go_on_working() -> None:
    load, cluster = workload("llama3_8b", 16, tp=2, pp=2, global_batch_size=64), catalogue.cluster("h100_sxm")
    typed = pj.project(load, cluster, "simulate", published=False)
    recipe = {name: value for name, value in vars(load.recipe).items() if value is not None and name in ("tp", "pp")}
    sizes = {name: getattr(load.recipe, name) for name in ("micro_batch_size", "global_batch_size", "seq_length")}
    assert pj.project(model="llama3_8b", gpu="h100", gpus=16, **recipe, **sizes).step_seconds == typed.step_seconds


@settings(max_examples=12)
@given(
    field=st.sampled_from([field for field in fields() if field.key in ("tp", "pp", "cp", "ep", "vpp")]), data=st.data()
)
def test_every_name_of_a_field_means_it(field: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(field.names))
    model = "mixtral_8x7b" if field.key == "ep" else "llama3.1_8b"
    more = {"pp": 2} if field.key == "vpp" else {}
    made = pj.project(**{**RUN, "model": model, **more, name: 2})
    assert getattr(made.resolved.workload.recipe, field.key) == 2


def test_every_mistake_is_said_at_once_by_its_argument() -> None:
    caught = refusal(pj.project, model="llama3_71b", gpu="h101", gpus=0, tq=8, pp="x")
    lines = str(caught)
    for argument in ("model", "gpu", "gpus", "tq", "pp"):
        assert f"project(): {argument}: " in lines
    assert "--" not in lines
    refusal(pj.project, **{**RUN, "gpus": 15, "tp": 2}, match=r"project\(\): gpus: found 15")


def test_an_impossible_run_shows_no_speed() -> None:
    made = pj.project(**{**RUN, "model": "llama3_70b", "seq_length": 8192, "tp": 1})
    assert made.memory.order == 2
    for text in (repr(made), made._repr_html_()):
        assert "Does not fit" in text
        assert "tokens/s" not in text


def test_the_card_is_the_answer_with_a_bar_that_adds_up() -> None:
    made = pj.project(**FITS)
    card = made._repr_html_()
    assert made.memory.verdict in card
    widths = [float(width) for width in re.findall(r"width:([0-9.]+)%", card)]
    named = [value for value in made.breakdown.values() if value > 0.002 * made.step_seconds]
    assert sum(widths) == pytest.approx(100 * sum(named) / made.step_seconds, abs=0.1)
    assert card.count("<div") == card.count("</div>")
    assert card.count("<span") == card.count("</span>")
    for text in repr(made).splitlines()[:4]:
        assert text.replace("&", "&amp;") in card


def test_pictures_are_of_the_step_the_timeline_and_the_memory() -> None:
    made = pj.project(**FITS)
    (axes,) = made.plot().axes
    named = [value for value in made.breakdown.values() if value > 0.002 * made.step_seconds]
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(sum(named))
    assert len(made.plot("timeline").axes) == 1
    assert len(made.plot("memory").axes) >= 2
    refusal(made.plot, "speed", match="step, timeline or memory")


def test_a_dictionary_is_json() -> None:
    made = pj.project(**FITS)
    told = made.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert sum(told["breakdown"].values()) == pytest.approx(told["step_seconds"])
    assert told["recipe"]["tp"] == 2


def test_a_search_holds_what_is_said_and_is_told_shortly() -> None:
    found = pj.search(**RUN, tp=2, budget=0, top=3)
    assert {row["tp"] for row in found.rows} == {2}
    assert found.rows[0]["tgs"] == max(row["tgs"] for row in found.rows)
    assert len(repr(found).splitlines()) <= 6
    assert repr(found.best[0]) in repr(found)
    assert found.to_dict() == {"rows": found.rows}
    assert len(found.to_pandas()) == 3
    refusal(pj.search, model="llama3.1_8b", gpu="h100", gpus=1, budget=0, match="GiB too much")
    refusal(pj.search, **RUN, budget=0, objective="speed", match=r"search\(\)")


def test_the_room_of_searches_is_also_the_function() -> None:
    import projector.search.space

    assert pj.search is projector.search
    assert callable(pj.search)


def test_a_sweep_is_its_projections() -> None:
    frame = pj.sweep(**{**FITS, "use_distributed_optimizer": None}, data_parallel_sharding="optim")
    varied = pj.sweep(
        model="llama3.1_8b", gpu=["h100", "mi300x"], gpus=16, tp=[1, 2], pp=range(1, 3), data_parallel_sharding="optim",
        global_batch_size=64, seq_length=4096,
    )  # fmt: skip
    rows = varied.to_pandas()
    assert len(rows) == len(varied) == 8
    row = rows[(rows.gpu == "h100") & (rows.tp == 2) & (rows.pp == 2)].iloc[0]
    made = pj.project(**FITS)
    assert row.step_seconds == pytest.approx(made.step_seconds, rel=1e-12)
    assert (row.low, row.expected, row.high) == pytest.approx(
        (pj.expect(made).low, pj.expect(made).middle, pj.expect(made).high)
    )
    assert frame.rows[0]["step_seconds"] == row.step_seconds
    assert "fastest" in repr(varied)
    refusal(pj.sweep, **RUN, tq=[1, 2], match=r"sweep\(\)")


def test_parts_of_a_projection_draw_and_say_themselves() -> None:
    pytest.importorskip("matplotlib")
    made = pj.project(**FITS)
    for part in (made.memory, made.timeline):
        assert part.plot().axes
        assert len(repr(part)) < 120
    assert f"{made.memory.usable / 2**30:.2f} GiB" in repr(made.memory)
    assert made.timeline.compiled.schedule.name in repr(made.timeline)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda: pj.project("llama3.1_8b"), 'model="llama3.1_8b"'),
        (lambda: pj.project(model="llama3.1_8b"), r"cluster=… or gpu=…"),
        (lambda: pj.search(**FITS, budget="1s"), "CPU seconds as a number"),
        (lambda: pj.expect(9.8), "expected a projection"),
        (lambda: pj.expect(pj.project(**FITS), runs=9.8), "runs: found 9.8"),
        (lambda: pj.sweep(gpu="h9000", gpus=8, tp=[1, 2]), "gpu: found 'h9000'"),
    ],
)
def test_what_newcomers_type_is_answered_in_words_of_python(asked: Callable[[], object], told: str) -> None:
    assert "--" not in str(refusal(asked, match=told))


def test_what_nobody_states_follows_the_model_and_the_gpu() -> None:
    big = pj.project(model="llama3_70b", gpu="h100")
    assert big.memory.order == 0
    assert big.resolved.workload.gpus > 8
    old = pj.project(model="gpt2", gpu="v100", gpus=8)
    assert (old.resolved.workload.recipe.precision, old.resolved.workload.recipe.seq_length) == ("fp16", 1024)
    assert pj.project(model="pythia_1b", gpu="h100", gpus=8).resolved.workload.recipe.seq_length == 2048
    longer = pj.project(model="pythia_1b", gpu="h100", gpus=8, seq_length=8192)  # its positions rotate
    assert longer.resolved.workload.recipe.seq_length == 8192
    refusal(pj.project, model="gpt2", gpu="h100", gpus=8, seq_length=2048, match="at most 1024")
