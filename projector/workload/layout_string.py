"""Megatron-LM's ``pipeline_model_parallel_layout``: which parts of the model stand on which virtual stage.

Grammar (Megatron-LM megatron/core/transformer/pipeline_parallel_layer_layout.py): ``E`` embedding, ``t`` decoder layer,
``m`` multi-token-prediction layer, ``L`` loss (output layer); ``|`` ends a stage; ``x*n`` repeats a symbol or a group
in parentheses; commas and blanks only separate. ``E|t*3|(tt|)*6mL`` has 2 + 6 + 1 stages.
"""

from __future__ import annotations

from collections.abc import Sequence

#: One letter a part, and how the list-of-lists form calls it.
PARTS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
_LETTERS = {word: letter for letter, word in PARTS.items()}
_LONGEST = 100_000  # symbols: a bound on nonsense, 10 times the layers of the deepest model times its stages


def parse_layout(layout: str | Sequence[Sequence[str]]) -> tuple[str, ...]:
    """One string of part letters per virtual stage, in pipeline order.

    ``layout``: the string form, or one list of part names per stage (``[["embedding", "decoder"], …]``; letters are
    understood, too). Raises ValueError with what is wrong.
    """
    if isinstance(layout, str):
        stages = expand_layout(layout).split("|")
        if len(stages) > 1 and stages[-1] == "":
            stages.pop()
        return tuple(stages)
    stages = []
    for stage in layout:
        letters = [_LETTERS.get(part, part) for part in stage]
        unknown = [part for part in letters if part not in PARTS]
        if unknown:
            raise ValueError(f"unknown part {unknown[0]!r}; known: {', '.join(_LETTERS)}")
        stages.append("".join(letters))
    return tuple(stages)


def expand_layout(text: str) -> str:
    """``text`` with all repetitions written out."""
    expanded, rest = _sequence(text.replace(",", "").replace(" ", ""), 0)
    if rest:
        raise ValueError(f"unexpected {rest[0]!r}")
    return expanded


def _sequence(text: str, depth: int) -> tuple[str, str]:
    """Symbols and groups up to the closing parenthesis of this level; returns them written out, and what is left."""
    out = ""
    while text and text[0] != ")":
        item, text = _item(text, depth)
        times, text = _times(text)
        if len(out) + len(item) * times > _LONGEST:
            raise ValueError(f"more than {_LONGEST} parts")
        out += item * times
    return out, text


def _item(text: str, depth: int) -> tuple[str, str]:
    symbol = text[0]
    if symbol == "(":
        if depth > 8:
            raise ValueError("parentheses nested too deep")
        inner, rest = _sequence(text[1:], depth + 1)
        if not rest:
            raise ValueError("a parenthesis is not closed")
        return inner, rest[1:]
    if symbol == "|" or symbol in PARTS:
        return symbol, text[1:]
    raise ValueError(f"unexpected {symbol!r}; known: E, t, m, L, |, (…)*n")


def _times(text: str) -> tuple[int, str]:
    if not text.startswith("*"):
        return 1, text
    digits = 1
    while digits < len(text) and text[digits] in "0123456789":
        digits += 1
    if not 2 <= digits <= 7:
        raise ValueError("a number of at most six digits is missing after '*'")
    return int(text[1:digits]), text[digits:]
