"""Patterns that a script brings are searched in bounded time, or refused with the reason."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import InputError
from projector.intake.scripts import load
from projector.intake.shell.control import TooLong
from projector.intake.shell.patterns import matches, most_steps, searchable, strip_prefix

_TRAINS = (
    "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16"
    " --seq-length 2048 --max-position-embeddings 2048"
    " --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000\n"
)
_ATOMS = st.sampled_from(["a", "b", "[ab]", ".", "(a|b)", "(a|aa)", "(ab)", r"\w", "(a?)"])
_REGEXES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,9}", "{3,}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
        st.lists(inner, min_size=1, max_size=2).map("".join),
    ),
    max_leaves=5,
)


@given(_REGEXES)
@settings(max_examples=60)
def test_what_is_searched_ends(regex: str) -> None:
    text = "a" * 40 + "!"
    try:
        pattern = searchable(f"{regex}$", len(text))
    except TooLong:
        return
    began = time.process_time()
    pattern.search(text)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("regex", ["^(a+)+$", "(a|aa)+$", "((a+)b?)*c", "a*a*a*a*a*a*a*a*b", "([a-z]+)*=$"])
def test_what_backtracks_without_end_is_refused(regex: str, tmp_path: Path) -> None:
    assert most_steps(regex, 60) > 1e8
    script = tmp_path / "train.sh"
    script.write_text(f'X={"a" * 60}\nif [[ "$X" =~ {regex} ]]; then exit 1; fi\n{_TRAINS}')
    with pytest.raises(InputError, match=re.escape(f"the pattern {regex} on a text of 60 characters")):
        load(script)


@pytest.mark.parametrize(
    "regex", [r"^([a-z]+)-?([0-9]+)$", "^node([0-9]+)$", ".*,.*", "([^,]*,){20}P", "^(a+)+$", "[a-z]+[0-9]*"]
)
def test_what_scripts_ask_is_answered(regex: str) -> None:
    assert isinstance(searchable(regex, 12), re.Pattern)


def test_shell_patterns_are_bounded_too() -> None:
    assert matches("model-7b-chat", "*-@(7b|13b)-*")
    assert strip_prefix("a/b/c", "*/", longest=True) == "c"
    with pytest.raises(TooLong):
        matches("a" * 60 + "!", "+(+(a))")
