"""The vocabulary of a tokenizer by its name: known and meant, or said to be unknown; never that of a relative in silence."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projector.workload import tokenizers
from projector.workload.tokenizers import STANDS_IN, completed, vocabulary

WORDS = sorted({word for family in tokenizers._facts()["families"] for word in family["words"] if "/" not in word})


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-8B", 151669),
        ("Qwen/Qwen-7B", 151851),
        ("Qwen2.5-72B-Instruct", 151665),
        ("meta-llama/Llama-3.1-8B", 128256),
        ("/models/llama-2/tokenizer.model", 32000),
        ("llama_v2", 32000),
        ("deepseek-ai/DeepSeek-V3-0324", 128815),
        ("deepseek-coder-6.7b-base", 32022),
        ("mistralai/Mixtral-8x7B-v0.1", 32000),
        ("20B_tokenizer.json", 50277),
        ("bigcode/starcoder/tokenizer.json", 49152),
    ],
)
def test_what_is_known(name: str, size: int) -> None:
    found = vocabulary("HuggingFaceTokenizer", name)
    assert found is not None
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
        assert found is not None
        assert not found.sure
        assert STANDS_IN in found.why


@given(st.sampled_from(WORDS), st.sampled_from(["", "-7b", "-6.7b", "-8x7b", "-0324", "-chat"]))
def test_a_size_or_a_date_is_no_version(word: str, tail: str) -> None:
    assume(not (tail and word[-1].isdigit()))  # what follows a number of its own may be read as one
    found = vocabulary("HuggingFaceTokenizer", word + tail)
    assert found is not None


@pytest.mark.parametrize("name", ["tokenizer_file", "tokenizer_model", "tokenizer_name_or_path"])
def test_an_unknown_tokenizer_is_named_not_called_missing(name: str) -> None:
    found = completed({"tokenizer_type": "TokenizerFromFile", name: "/data/our-tokenizer.json"})
    assert found is not None
    assert not found.sure
    assert "/data/our-tokenizer.json is not known" in str(found)
    starcoder = completed({"tokenizer_type": "TokenizerFromFile", name: "/data/starcoder/tokenizer.json"})
    assert starcoder is not None
    assert (starcoder.size, starcoder.sure) == (49152, True)
    silent = completed({})
    assert silent is not None
    assert tokenizers.UNNAMED in str(silent)


def test_a_vocabulary_of_ones_own_under_gpt2s_tokenizer_is_doubted() -> None:
    def asked(file: str) -> tokenizers.Vocabulary | None:
        return completed({"tokenizer_type": "GPT2BPETokenizer", "vocab_file": file, "merge_file": "merges.txt"})

    for own in ("/data/ja-vocab.json", "code_vocab.json"):
        found = asked(own)
        assert found is not None
        assert not found.sure
        assert own in str(found)
    for plain in ("/data/gpt2-vocab.json", "/gpt2/x.json", "vocab.json"):
        found = asked(plain)
        assert found is not None
        assert (found.size, found.sure) == (50257, True)
