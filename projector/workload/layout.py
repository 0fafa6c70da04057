"""Distributes layers over virtual pipeline stages.

Rules of Megatron-LM (megatron/core/transformer/transformer_block.py ``get_num_layers_to_build`` and transformer_layer.py
``get_transformer_layer_offset``): virtual stage s = chunk · pp + rank, chunks go through all ranks before the next chunk
begins.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Problem
from projector.memo import BoundedCache
from projector.workload.model import Model
from projector.workload.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One virtual stage: chunk ``index`` on pipeline ``rank`` holds decoder ``layers`` (numbers, ascending).

    ``embedding``: the token embedding stands before them; ``head``: final norm, output layer and loss after them;
    ``mtp``: multi-token-prediction layers on it.
    """

    rank: int
    index: int
    layers: tuple[int, ...]
    embedding: bool = False
    head: bool = False
    mtp: int = 0


def chunks(model: Model, recipe: Recipe) -> tuple[Chunk, ...]:
    """Returns one :class:`Chunk` per virtual stage in pipeline order. Raises :class:`InputError` when the layers do not
    fit.

    In order of precedence: ``pipeline_model_parallel_layout``; the layer counts of the first and last stage; an even
    split, in which embedding and loss count as a layer each when ``account_for_…`` says so. Layers that do not divide
    are an error, unless ``allow_uneven_pipeline_split``: then the first stages hold one more. Embedding and loss count as
    a layer each there (torchtitan distributed/pipeline_parallel.py with its default input and output weight of 1;
    DeepSpeed's partition by transformer and embedding layers counts alike), but for ``pipeline_remainder: first``
    (AMD-AGI/Primus primus/core/projection/module_profilers/language_model.py, ``_get_balanced_layer_distribution``).
    """
    layout, mistakes = _chunks(model, recipe)
    if mistakes:
        raise InputError([Problem("pipeline layout", key, value, expected) for key, value, expected in mistakes])
    return layout


def problems(model: Model, recipe: Recipe, where: str, prefix: str = "recipe.") -> tuple[Problem, ...]:
    """Returns what keeps ``model`` from being laid out by ``recipe``, in the words of an input file."""
    _, mistakes = _chunks(model, recipe)
    return tuple(Problem(where, prefix + key, value, expected) for key, value, expected in mistakes)


def virtual_stages(recipe: Recipe) -> int:
    """Returns how many chunks of the model a pipeline rank holds: ``vpp``, or the stages of a layout string over
    ``pp``."""
    if recipe.pipeline_model_parallel_layout is None:
        return max(1, recipe.vpp)
    stages, _ = _stages(recipe.pipeline_model_parallel_layout)
    return max(1, len(stages) // max(1, recipe.pp))


_Mistake = tuple[str, object, str]


_Layout = tuple[tuple[Chunk, ...], list[_Mistake]]
_LAYOUTS: BoundedCache[_Layout] = BoundedCache(4096)
LAID_OUT = (
    *("pp", "vpp", "pipeline_model_parallel_layout", "pipeline_remainder", "allow_uneven_pipeline_split"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
"""Fields of a recipe that say which layers a stage holds."""
_layout_fields = attrgetter(*LAID_OUT)


def _chunks(model: Model, recipe: Recipe) -> _Layout:
    key = (model, _layout_fields(recipe))
    return _LAYOUTS.get(key, lambda: _whole_groups(model, recipe, *_distributed(model, recipe)))


def _whole_groups(model: Model, recipe: Recipe, layout_: tuple[Chunk, ...], mistakes: list[_Mistake]) -> _Layout:
    """Returns the chunks ``layout_`` unless a stage begins with a layer whose keys and values an earlier stage makes: stages
    pass on the residual alone (NVIDIA/Megatron-LM@d98e8a64dd megatron/core/pipeline_parallel/p2p_communication.py)."""
    if model.cla_share_factor == 1 and not model.num_kv_shared_layers:
        return layout_, mistakes
    sources = ((layer, model.kv_source(layer), chunk.layers) for chunk in layout_ for layer in chunk.layers)
    separated = next((layer for layer, source, held in sources if source is not None and source not in held), None)
    if separated is None:
        return layout_, mistakes
    layout = recipe.pipeline_model_parallel_layout
    key, value = ("pp", recipe.pp) if layout is None else ("pipeline_model_parallel_layout", layout)
    expected = f"stages of whole groups of layers: layer {separated} would read keys and values of another stage"
    return (), [(key, value, expected)]


def _distributed(model: Model, recipe: Recipe) -> _Layout:
    low = [(name, getattr(recipe, name), "at least 1") for name in ("pp", "vpp") if getattr(recipe, name) < 1]
    if low or model.num_layers < 0:
        return (), [*low]
    layout = recipe.pipeline_model_parallel_layout
    if layout is not None:
        written, mistake = _stages(layout)
        wrong = [mistake] if mistake else _layout_mistakes(model, recipe, written)
        misread = [("pipeline_model_parallel_layout", layout, expected) for expected in wrong]
        return () if misread else _of_parts(written, recipe.pp), [*misread]
    counts, mistakes = _counts(model, recipe)
    if mistakes:
        return (), mistakes
    stages = ["t" * count for count in counts]
    stages[0] = f"E{stages[0]}"
    stages[-1] += "m" * model.mtp_num_layers + "L"
    return _of_parts(stages, recipe.pp), []


def _of_parts(stages: Sequence[str], pp: int) -> tuple[Chunk, ...]:
    """Returns the chunks of ``stages``, one string of the letters of :data:`PARTS` each."""
    starts = [0, *accumulate(parts.count("t") for parts in stages)]
    return tuple(
        Chunk(
            rank=stage % pp,
            index=stage // pp,
            layers=tuple(range(starts[stage], starts[stage + 1])),
            embedding="E" in parts,
            head="L" in parts,
            mtp=parts.count("m"),
        )
        for stage, parts in enumerate(stages)
    )


def _counts(model: Model, recipe: Recipe) -> tuple[list[int], list[_Mistake]]:
    """Returns the decoder layers of each virtual stage, and what is wrong with their number."""
    first, last = recipe.decoder_first_pipeline_num_layers, recipe.decoder_last_pipeline_num_layers
    if first is not None or last is not None:
        return _first_last(model.num_layers, recipe, first, last)
    before, after = recipe.account_for_embedding_in_pipeline_split, recipe.account_for_loss_in_pipeline_split
    stages = recipe.pp * recipe.vpp
    remainder = (model.num_layers + before + after) % stages
    if remainder and recipe.allow_uneven_pipeline_split:
        before = after = recipe.pipeline_remainder != "first"
    elif remainder:
        what = "num_layers" + (" + 1 for the embedding" if before else "") + (" + 1 for the loss" if after else "")
        factors = f"pp = {recipe.pp}" if recipe.vpp == 1 else f"pp · vpp = {recipe.pp} · {recipe.vpp}"
        expected = f"{factors} to divide {what} = {model.num_layers + before + after}"
        return [], [("pp", recipe.pp, f"{expected}, or a pipeline_model_parallel_layout")]
    each, more = divmod(model.num_layers + before + after, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= before
    counts[-1] -= after
    if min(counts) < 0 or each == 0:
        return [], [("pp", recipe.pp, f"at most one stage per layer: {stages} stages for {model.num_layers} layers")]
    return counts, []


def _first_last(total: int, recipe: Recipe, first: int | None, last: int | None) -> tuple[list[int], list[_Mistake]]:
    """Returns Megatron's uneven first and last stage; the other layers are split evenly over the ranks between them."""
    pp, vpp = recipe.pp, recipe.vpp
    key = "decoder_first_pipeline_num_layers" if first is not None else "decoder_last_pipeline_num_layers"
    ends = {"decoder_first_pipeline_num_layers": first, "decoder_last_pipeline_num_layers": last}
    mistakes: list[_Mistake] = []
    for name, value in ends.items():
        if value is not None and (value < 1 or value % vpp):
            mistakes.append((name, value, f"a positive multiple of vpp = {vpp}"))
    middle_ranks = pp - sum(value is not None for value in ends.values())
    rest = total - (first or 0) - (last or 0)
    if pp < 2 or middle_ranks < 0:
        mistakes.append((key, ends[key], "pp of at least 2"))
    elif rest < 0 or (middle_ranks == 0 and rest):
        mistakes.append((key, ends[key], f"first and last stage to leave {total} layers in all"))
    elif middle_ranks and (rest % (middle_ranks * vpp) or rest == 0):
        mistakes.append((key, ends[key], f"the {rest} layers left to divide by {middle_ranks} ranks · vpp = {vpp}"))
    if mistakes:
        return [], mistakes
    middle = rest // (middle_ranks * vpp) if middle_ranks else 0
    per_rank = [middle] * pp
    if first is not None:
        per_rank[0] = first // vpp
    if last is not None:
        per_rank[-1] = last // vpp
    return per_rank * vpp, []


@lru_cache(maxsize=1024)
def _stages(layout: str) -> tuple[tuple[str, ...], str]:
    """Returns the stages of a layout string (or of a list of lists written as text), and what is wrong with it."""
    text = layout.strip()
    try:
        parts: Any = ast.literal_eval(text) if text.startswith("[") else text
        if parts is not text and not all(isinstance(stage, (list, tuple, str)) for stage in parts):
            raise ValueError("a list of one list of parts per stage is expected")
        return parse_layout(parts), ""
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return (), str(error)


def _layout_mistakes(model: Model, recipe: Recipe, stages: tuple[str, ...]) -> list[str]:
    whole = "".join(stages)
    expected = {"E": 1, "t": model.num_layers, "m": model.mtp_num_layers, "L": 1}
    words = {"E": "embedding E", "t": "decoder layers t", "m": "MTP layers m", "L": "loss L"}
    counts = {part: (whole.count(part), count) for part, count in expected.items()}
    mistakes = [f"{most} × {words[part]}, not {found}" for part, (found, most) in counts.items() if found != most]
    if len(stages) % recipe.pp:
        mistakes.append(f"a multiple of pp = {recipe.pp} stages, not {len(stages)}")
    elif recipe.vpp != 1 and len(stages) != recipe.pp * recipe.vpp:
        mistakes.append(f"pp · vpp = {recipe.pp * recipe.vpp} stages, not {len(stages)}")
    if not mistakes and (whole[0] != "E" or whole[-1] != "L" or ("t" in whole[whole.find("m") :] and "m" in whole)):
        mistakes.append("the embedding first, then decoder layers, MTP layers and the loss last")
    return mistakes


# Megatron-LM's ``pipeline_model_parallel_layout`` states which parts of the model stand on which virtual stage.
#
# Grammar (Megatron-LM megatron/core/transformer/pipeline_parallel_layer_layout.py): ``E`` embedding, ``t`` decoder
# layer, ``m`` multi-token-prediction layer, ``L`` loss (output layer); ``|`` ends a stage; ``x*n`` repeats a symbol or
# a group in parentheses; commas and blanks only separate. ``E|t*3|(tt|)*6mL`` has 2 + 6 + 1 stages. One letter a part,
# and how the list-of-lists form calls it.
PARTS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
_LETTERS = {word: letter for letter, word in PARTS.items()}
#: A group without groups inside, repeated or not, or a symbol that is repeated.
_REPEATED = re.compile(r"(?:\(([EtmL|]*)\)(?:\*(\d{1,6}))?|([EtmL|])\*(\d{1,6}))(?![*\d])")
_LONGEST = 100_000  # symbols: a bound on nonsense, 10 times the layers of the deepest model times its stages


def parse_layout(layout: str | Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Returns one string of part letters per virtual stage, in pipeline order.

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
    """Returns ``text`` with all repetitions written out, the innermost first. Raises ValueError with what is wrong."""
    text, room = text.replace(",", "").replace(" ", ""), _LONGEST

    def written(repeated: re.Match[str]) -> str:
        nonlocal room
        symbols, times = repeated[1] or repeated[3] or "", int(repeated[2] or repeated[4] or 1)
        room -= len(symbols) * times
        if room < 0:
            raise ValueError(f"more than {_LONGEST} parts")
        return symbols * times

    while (expanded := _REPEATED.sub(written, text)) != text:
        text = expanded
    if left := re.search(r"[^EtmL|]", text):
        reasons = {"(": "a parenthesis is not closed", "*": "a number of at most six digits is missing after '*'"}
        raise ValueError(reasons.get(left[0], f"unexpected {left[0]!r}; known: E, t, m, L, |, (…)*n"))
    return text
