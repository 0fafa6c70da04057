"""The model zoo: published sizes, sources, and the free text by which people call models."""

import re
from pathlib import Path

import pytest
import yaml
from asked import refusal
from hypothesis import assume, given
from hypothesis import strategies as st
from published import close
from tabled import tabled
from workloads import workload

from projector.workload import tokenizers, zoo
from projector.workload.parameters import count
from projector.workload.tokenizers import STANDS_IN, completed, vocabulary
from projector.workload.validate import problems

PUBLISHED = [name for name in zoo.names() if zoo.entry(name).parameters_published]

#: Rows of the results tables whose architecture is not public, or that are no transformers: nothing to find.
NOT_PUBLIC = set(tabled("names", "not_public"))


#: Models whose published total differs by vectors that are counted another way or not at all.
VECTORS_APART = set(tabled("names", "vectors_apart"))


def test_totals_are_the_published_ones():
    """Published to the last weight, counted to the last: but for vectors (norms of all heads, biases, mixing of streams)."""
    for name in PUBLISHED:
        published, found = zoo.entry(name).parameters_published, count(zoo.load(name)).main
        assert close(found, published), name
        apart = abs(found - int(published))
        if int(published) % 1000:  # not rounded
            assert apart == 0 or (name in VECTORS_APART and apart < 5e-5 * published), name


def test_most_of_the_zoo_has_a_published_size():
    assert len(PUBLISHED) > 75
    assert len(zoo.names()) > 110


def test_the_names_that_are_found_without_parsing_are_those_of_the_files():
    files = (Path(zoo.__file__).parent / "zoo").glob("*.yaml")
    parsed = [str(each["name"]) for path in files for each in yaml.safe_load(path.read_text())["models"]]
    assert sorted(parsed) == list(zoo.names())  # also: no name stands twice


def test_every_entry_is_consistent():
    for name in zoo.names():
        model = zoo.load(name)
        assert model.source, name
        assert model.family, name
        assert model.name == zoo.find(name) == zoo.named(name) == zoo.find(name.upper().replace("_", "-")) == name
        assert problems(workload(model, 8, global_batch_size=8, seq_length=2048)) == (), name


@pytest.mark.parametrize(("text", "name"), tabled("names", "models_by_free_text"))
def test_find_reads_free_text(text, name):
    assert zoo.find(text) == name


@pytest.mark.parametrize("text", ["", "E97 4B", "Llama 3.1 9B", "DeepSeek-V3 33B", "my own transformer", "llama"])
def test_find_does_not_guess(text):
    assert zoo.find(text) is None


@pytest.mark.parametrize(("text", "name"), tabled("names", "models_by_names_of_a_hub"))
def test_a_name_of_a_hub_is_a_name_and_one_with_a_word_more_is_not(text, name):
    assert zoo.named(text) == name


def test_find_resolves_every_row_of_the_results_tables(shared):
    import yaml

    texts = set()
    for name in ("nvidia.yaml", "amd.yaml"):  # those that measured/runs holds
        path = shared / "corpus" / name
        rows = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        texts |= {str(row.get("model")) for row in rows}
    assert {text for text in texts if zoo.find(text) is None} <= NOT_PUBLIC


@given(st.text(max_size=60))
def test_find_never_fails(text):
    found = zoo.find(text)
    assert found is None or found in zoo.names()


def test_overrides_change_fields_and_the_pattern_of_experts_follows():
    model = zoo.load("deepseek_v3", num_layers=14, moe={"num_experts": 64})
    assert model.moe.moe_layer_freq == (0, 0, 0) + (1,) * 11
    assert model.moe.num_experts == 64
    assert model.moe.moe_router_topk == 8
    assert zoo.load("mixtral_8x7b", num_layers=40).moe.moe_layer_freq == (1,) * 40


def test_wrong_overrides_are_reported():
    error = refusal(zoo.load, "llama3_8b", num_layer=3, hidden_size="wide")
    assert {problem.key for problem in error.problems} == {"num_layer", "hidden_size"}


def test_unsupported_parts_are_named():
    assert "a gate of every head" in zoo.load("step3.5_flash").unsupported
    assert "soft caps on attention scores" in zoo.load("gemma2_9b").unsupported
    assert zoo.is_template("gpt")
    assert not zoo.is_template("gpt3_175b")


def test_the_active_parameters_are_the_published_ones():
    """Within a thousandth, or what the printed digits say."""
    seen = 0
    for name in zoo.names():
        entry = zoo.entry(name)
        if entry.parameters_active is None:
            continue
        seen, found = seen + 1, count(entry.model)
        for counted, printed in ((found.main, entry.parameters_published), (found.active, entry.parameters_active)):
            assert close(counted, printed), name
    assert seen > 20


# The vocabulary of a tokenizer by its name: known and meant, or said to be unknown; never that of a relative in silence.


WORDS = sorted({word for family in tokenizers._facts()["families"] for word in family["words"] if "/" not in word})


@pytest.mark.parametrize(("name", "size"), tabled("names", "tokenizers"))
def test_what_is_known(name: str, size: int) -> None:
    found = vocabulary("HuggingFaceTokenizer", name)
    assert (found.size, found.sure) == (size, True)


@given(
    st.sampled_from([word for word in WORDS if re.fullmatch("[a-z]+[0-9]{0,2}", word)]),
    st.integers(30, 99),
    st.sampled_from(["", "-", ".", "_", "-v"]),
    st.sampled_from(["", "-7b", "-instruct"]),
)
def test_a_version_that_nobody_knows_is_unknown(word: str, version: int, joint: str, tail: str) -> None:
    assume(joint or not word[-1].isdigit())
    for folder in ("", f"{word}/", f"/models/{word}/"):
        found = completed(
            {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": f"{folder}{word}{joint}{version}{tail}"}
        )
        assert not found.sure
        assert STANDS_IN in found.why


@given(st.sampled_from(WORDS), st.sampled_from(["", "-7b", "-6.7b", "-8x7b", "-0324", "-chat"]))
def test_a_size_or_a_date_is_no_version(word: str, tail: str) -> None:
    assume(not (tail and word[-1].isdigit()))  # what follows a number of its own may be read as one
    assert vocabulary("HuggingFaceTokenizer", word + tail) is not None


@pytest.mark.parametrize("name", ["tokenizer_file", "tokenizer_model", "tokenizer_name_or_path"])
def test_an_unknown_tokenizer_is_named_not_called_missing(name: str) -> None:
    found = completed({"tokenizer_type": "TokenizerFromFile", name: "/data/our-tokenizer.json"})
    assert not found.sure
    assert "/data/our-tokenizer.json is not known" in str(found)
    starcoder = completed({"tokenizer_type": "TokenizerFromFile", name: "/data/starcoder/tokenizer.json"})
    assert (starcoder.size, starcoder.sure) == (49152, True)
    silent = completed({})
    assert silent is not None
    assert tokenizers.UNNAMED in str(silent)


@pytest.mark.parametrize(("args", "script", "size", "sure"), tabled("names", "vocabularies_of_arguments"))
def test_a_patched_tokenizer_and_a_checkpoint_name_a_vocabulary(args, script: str, size: int, sure: bool) -> None:
    found = completed(args, (script,))
    assert (found.size, found.sure) == (size, sure)


def test_a_vocabulary_of_ones_own_under_gpt2s_tokenizer_is_doubted() -> None:
    def asked(file: str) -> tokenizers.Vocabulary | None:
        return completed({"tokenizer_type": "GPT2BPETokenizer", "vocab_file": file, "merge_file": "merges.txt"})

    for own in ("/data/ja-vocab.json", "code_vocab.json"):
        found = asked(own)
        assert not found.sure
        assert own in str(found)
    assert asked("/tokenizers/nordic_131072/vocab.json").size == 131072
    assert asked("/tokenizers/of_240101/vocab.json").size == 50257
    merged = completed({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "/merged_tokenizer_sp/ja_llama.model"})
    assert not merged.sure
    for plain in ("/data/gpt2-vocab.json", "/gpt2/x.json", "vocab.json"):
        found = asked(plain)
        assert (found.size, found.sure) == (50257, True)
