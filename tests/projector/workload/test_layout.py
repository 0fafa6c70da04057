"""Pipeline layouts: every layer exactly once and in order, by every way of stating them."""

import pytest
from asked import refusal, says
from hypothesis import assume, given
from hypothesis import strategies as st
from tabled import tabled

from projector.errors import InputError
from projector.workload import zoo
from projector.workload.layout import PARTS, chunks, expand_layout, parse_layout, virtual_stages
from projector.workload.recipe import Recipe

LLAMA = zoo.load("llama3_8b")


def recipe(**changes) -> Recipe:
    return Recipe(**({"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096} | changes))


def model(layers: int, mtp: int = 0):
    return zoo.load("llama3_8b", num_layers=layers, mtp_num_layers=mtp)


def check(found, layers: int, pp: int, mtp: int = 0):
    """The properties of every layout."""
    assert [layer for chunk in found for layer in chunk.layers] == list(range(layers))
    assert [(chunk.rank, chunk.index) for chunk in found] == [(i % pp, i // pp) for i in range(len(found))]
    assert [chunk.embedding for chunk in found] == [True] + [False] * (len(found) - 1)
    assert [chunk.head for chunk in found] == [False] * (len(found) - 1) + [True]
    assert sum(chunk.mtp for chunk in found) == mtp


@given(layers=st.integers(1, 80), pp=st.integers(1, 16), vpp=st.integers(1, 4))
def test_uneven_split_when_allowed(layers, pp, vpp):
    assume(layers >= pp * vpp)
    found = chunks(model(layers), recipe(pp=pp, vpp=vpp, allow_uneven_pipeline_split=True))
    check(found, layers, pp)
    sizes = [len(chunk.layers) for chunk in found]
    if layers % (pp * vpp) == 0:
        assert len(set(sizes)) == 1
    else:
        weights = [size + chunk.embedding + chunk.head for size, chunk in zip(sizes, found, strict=True)]
        assert max(weights) - min(weights) <= 1
        assert weights == sorted(weights, reverse=True)


@given(
    layers=st.integers(1, 80), pp=st.integers(1, 16), vpp=st.integers(1, 4), before=st.booleans(), after=st.booleans()
)
def test_layers_that_do_not_divide_are_an_error(layers, pp, vpp, before, after):
    given_recipe = recipe(
        pp=pp, vpp=vpp, account_for_embedding_in_pipeline_split=before, account_for_loss_in_pipeline_split=after
    )
    if (layers + before + after) % (pp * vpp):
        refusal(chunks, model(layers), given_recipe, match="to divide num_layers")
    elif layers + before + after < pp * vpp:
        refusal(chunks, model(layers), given_recipe)
    else:
        check(chunks(model(layers), given_recipe), layers, pp)


def test_embedding_and_loss_count_as_layers():
    """Llama 3.1 405B of the MLPerf runs: 126 layers on PP8 VPP8 with both counted."""
    found = chunks(
        zoo.load("llama3.1_405b"),
        recipe(pp=8, vpp=8, account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True),
    )
    check(found, 126, 8)
    assert [len(chunk.layers) for chunk in found] == [1, *[2] * 62, 1]


@given(
    pp=st.integers(2, 12), vpp=st.integers(1, 3), middle=st.integers(1, 4), first=st.integers(1, 3),
    last=st.integers(0, 3),
)  # fmt: skip
def test_first_and_last_stage(pp, vpp, middle, first, last):
    ranks = pp - 1 - (last > 0)
    assume(ranks > 0)
    layers = vpp * (first + last + middle * ranks)
    found = chunks(
        model(layers),
        recipe(
            pp=pp,
            vpp=vpp,
            decoder_first_pipeline_num_layers=first * vpp,
            decoder_last_pipeline_num_layers=last * vpp or None,
        ),
    )
    check(found, layers, pp)
    assert sum(len(c.layers) for c in found if c.rank == 0) == first * vpp
    assert sum(len(c.layers) for c in found if c.rank == pp - 1) == (last or middle) * vpp


@pytest.mark.parametrize("changes", tabled("workloads", "impossible_splits"))
def test_impossible_splits(changes):
    refusal(chunks, LLAMA, recipe(**changes))


@pytest.mark.parametrize(("text", "expanded"), tabled("workloads", "layouts"))
def test_grammar(text, expanded):
    assert expand_layout(text) == expanded


@pytest.mark.parametrize("text", ["Ex|L", "E(t|L", "E)t|L", "Et*|L", "t*-1", "t*999999999", "*3"])
def test_grammar_errors(text):
    refusal(parse_layout, text, kind=ValueError)


@given(st.lists(st.text("tEmL", min_size=0, max_size=6), min_size=2, max_size=12))
def test_lists_and_strings_agree(stages):
    assume(stages[-1])
    words = [[PARTS[letter] for letter in stage] for stage in stages]
    assert parse_layout("|".join(stages)) == parse_layout(words) == tuple(stages)


@given(st.text("Etm L|()*123,", max_size=30))
def test_any_text_is_a_layout_or_a_stated_error(text):
    try:
        found = chunks(model(4), recipe(pp=2, pipeline_model_parallel_layout=text))
    except InputError:
        return
    check(found, 4, 2)


def test_deepseek_v3_layouts_of_megatron_recipes():
    deepseek = zoo.load("deepseek_v3")
    found = chunks(deepseek, recipe(pp=4, pipeline_model_parallel_layout="Et*4|(tttt|)*14tmL"))
    check(found, 61, 4, 1)
    assert len(found) == 16
    assert found[-1].layers == (60,)
    assert virtual_stages(recipe(pp=4, pipeline_model_parallel_layout="Et*4|(tttt|)*14tmL")) == 4
    wide = chunks(deepseek, recipe(pp=16, vpp=2, pipeline_model_parallel_layout="Et*3|(tt|)*29|mL"))
    check(wide, 61, 16, 1)


def test_mtp_before_the_stage_of_the_loss():
    """The example of Megatron-LM's guide (docs: custom pipeline model parallel layout) for DeepSeek-V3 on PP16 VPP2."""
    found = chunks(zoo.load("deepseek_v3"), recipe(pp=16, pipeline_model_parallel_layout="Et*3|(tt|)*29,m|L"))
    check(found, 61, 16, 1)
    assert [(chunk.mtp, chunk.head) for chunk in found[-2:]] == [(1, False), (0, True)]


def test_list_of_lists_as_text():
    text = "[['embedding','decoder','decoder'],['decoder','decoder','loss']]"
    check(chunks(model(4), recipe(pp=2, pipeline_model_parallel_layout=text)), 4, 2)


def test_every_mistake_of_a_layout_at_once():
    text = str(refusal(chunks, model(4), recipe(pp=2, pipeline_model_parallel_layout="tt|t|t")))
    says(text, "embedding E", "loss L", "a multiple of pp = 2")
