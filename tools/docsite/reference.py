"""Reference tables of the documentation, made from the code: result columns, recipe fields, catalogues."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docsite import founding, plan_example
from docsite.blocks import table
from docsite.commands import command_tables, plain
from projector.errors import InputError, Problem

__all__ = ["REFERENCE", "words"]

_WORDS = Path(__file__).with_name("words.yaml")
_NONE = " | None"
#: Frameworks whose names for a recipe field are shown, by how the declaration calls them.
_CALLED = {"torchtitan": "torchtitan", "maxtext": "MaxText", "nemo": "NeMo", "deepspeed": "DeepSpeed"}


@cache
def words() -> Mapping[str, Mapping[str, Any]]:
    """What the code leaves unsaid about its public names: ``row``, one entry a column."""
    found: Mapping[str, Mapping[str, Any]] = yaml.safe_load(_WORDS.read_text(encoding="utf-8"))
    return found


def _said(kind: str, found: type) -> Mapping[str, Mapping[str, str]]:
    """``means`` of every field of a dataclass: our words, else those of its docstring.

    Raises :class:`InputError` for fields that nothing explains, and for words without a field.
    """
    known, names = words()[kind], [field.name for field in dataclasses.fields(found)]
    where, told = f"tools/docsite/{_WORDS.name}", _explained(found.__doc__ or "")
    said = {name: {"means": told[name]} for name in names if name in told} | {k: known[k] for k in known if k in names}
    problems = [Problem(where, f"{kind}.{name}", "nothing", "what it means, here or in the docstring of its class")
                for name in names if name not in said]  # fmt: skip
    problems += [Problem(where, f"{kind}.{name}", name, "a field that there is") for name in known if name not in names]
    if problems:
        raise InputError(problems)
    return said


def _explained(docstring: str) -> dict[str, str]:
    """What a docstring says of fields (a name in code, a colon, words), up to the next field or sentence."""
    text = re.sub(r"\s+", " ", docstring)
    found = re.findall(r"``(\w+)``:? (.*?)(?=[.;,] ``\w+``|\. [A-Z]|\.? ?$)", text)
    return {name: plain(meaning.replace("``", "`")) for name, meaning in found}


def row_columns() -> str:
    """The columns of ``results.csv`` in their order (:class:`harness.contracts.results.Row`)."""
    from harness.contracts.results import Row

    said = _said("row", Row)
    rows = [
        [f"`{f.name}`", _type(f), "yes" if _NONE in str(f.type) else "", said[f.name]["means"]]
        for f in dataclasses.fields(Row)
    ]
    return table(["column", "type", "may be empty", "meaning"], rows)


def row_words() -> str:
    """The values that ``fit`` and ``status`` take, and the version of the schema."""
    from harness.contracts.results import FITS, SCHEMA_VERSION, STATUSES

    fits, statuses = (", ".join(f"`{word}`" for word in some) for some in (FITS, STATUSES))
    return f"Schema version {SCHEMA_VERSION}. `fit` is one of {fits}; `status` one of {statuses}."


def recipe_fields() -> str:
    """What every field of :class:`projector.workload.recipe.Recipe` declares of itself."""
    from projector.workload.field_facts import AFFECTS, about_of
    from projector.workload.recipe import Recipe
    from projector.workload.value_checks import CHOICES

    rows = []
    told = about_of(Recipe)
    for field in dataclasses.fields(Recipe):
        each = told[field.name]
        arguments = (*each.names.get("megatron", ()), *each.names.get("primus", ()), *each.derived_from)
        others = [
            f"{_CALLED[tool]} `{name}`"
            for tool in _CALLED
            for name in each.names.get(tool, ())
            if name not in arguments
        ]
        values = " ".join(f"`{value}`" for value in CHOICES.get(field.name, ())) or each.unit or _type(field)
        effect = ", ".join(word for word in AFFECTS if word in each.affects)
        cells = [
            " ".join(f"`{name}`" for name in arguments),
            ", ".join(others),
            values,
            _default(field),
            effect,
            each.help,
        ]
        rows.append([f"`{field.name}`", *(cell or "–" for cell in cells)])
    return table(
        ["field", "Megatron-LM or Primus argument", "elsewhere", "holds", "default", "may change", "meaning"], rows
    )


def execution_fields() -> str:
    """Every strategy of every mechanism with its parameters and what they are where a profile says nothing."""
    from projector.mechanisms.execution import strategies

    rows = [
        [f"`{place}`", f"`{name}`", " ".join(f"`{f.name}: {_word(f.default)}`" for f in dataclasses.fields(kind))]
        for place, kinds in strategies().items()
        for name, kind in kinds.items()
    ]
    return table(["mechanism", "strategy", "parameters"], rows)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings() -> str:
    """Settings of trainers that may change time or memory and are not modelled, and the values at which they change
    nothing."""
    from projector.intake import known_settings

    file = Path(known_settings.__file__).with_suffix(".yaml")
    releases = yaml.safe_load(file.read_text(encoding="utf-8"))["unmodelled"]
    stated = {name: values for found in releases.values() for names in found.values() for name, values in names.items()}
    rows = [
        [f"`{name}`", " ".join(f"`{str(value).lower()}`" for value in (each if isinstance(each, list) else [each]))]
        for name, each in sorted(stated.items())
    ]
    return table(["setting", "changes nothing at"], rows)


def _type(field: dataclasses.Field[Any]) -> str:
    text = str(field.type).removesuffix(_NONE)
    return {"tuple[str, ...]": "words", "tuple[int, ...]": "numbers", "str": "text", "bool": "yes or no"}.get(
        text, text
    )


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "**must be stated**"
    return "the framework's" if field.default is None else f"`{field.default}`"


def gpus() -> str:
    """The GPUs of the catalogue."""
    from projector.hardware import catalogue

    rows = []
    for name in catalogue.gpu_names():
        gpu = catalogue.gpu(name)
        peak = gpu.peak.get("bf16") or gpu.peak.get("fp16") or gpu.peak.get("fp32") or 0.0
        memory = [f"{gpu.memory_bytes / 2**30:.0f} GiB", f"{gpu.memory_bandwidth / 1e12:.2f} TB/s"]
        rows.append([f"`{name}`", gpu.arch, str(gpu.compute_units), f"{peak / 1e12:.0f}", *memory])
    return table(["GPU", "architecture", "compute units", "dense 16-bit TFLOP/s", "memory", "bandwidth"], rows)


def frameworks() -> str:
    """The frameworks that have a file."""
    from projector import frameworks as known

    rows = []
    for name in known.names():
        found = known.load(name)
        stated = sum(len(parameters) for parameters in found.execution.values())
        rows.append([f"`{name}`", found.title, str(stated), str(len(found.rules)), str(len(found.sources))])
    return table(["framework", "title", "stated of its strategies", "rules", "sources"], rows)


def schedules() -> str:
    """The registered pipeline schedules with their sources."""
    from projector import pipeline

    rows = []
    for name in pipeline.names():
        found = pipeline.generator(name)
        chunks = str(found.chunks or (f"multiples of {found.multiples['vpp']}" if "vpp" in found.multiples else "any"))
        rows.append([f"`{name}`", chunks, "F, B, W" if found.split else "F, B", plain(found.source)])
    return table(["schedule", "chunks a rank", "actions", "source"], rows)


def dialects() -> str:
    """The dialects of logs that are read."""
    from harness.evidence.ingest.logs import registry

    rows = [[f"`{each.name}`", _first(each.about)] for each in registry.LINES]
    rows += [[f"`{each.NAME}`", _first(each.__doc__ or "")] for each in registry.DOCUMENTS]
    return table(["dialect", "what it reads"], rows)


def thresholds() -> str:
    """What a gate may ask for."""
    from harness.score.gate import THRESHOLDS

    rows = [
        [f"`{name}`", each.meaning, "at least" if each.at_least else "at most", f"{each.low:g} to {each.high:g}"]
        for name, each in THRESHOLDS.items()
    ]
    return table(["threshold", "figure", "must be", "a suite may ask for"], rows)


def formats() -> str:
    """What a report can be written as."""
    from harness.report.publish import FORMATS

    return table(["format", "files"], [[f"`{name}`", _plain_files(files)] for name, files in FORMATS.items()])


def _plain_files(text: str) -> str:
    return re.sub(r"([\w.-]+\.(?:html|md|csv|tex))", r"`\1`", plain(text))


def selectors() -> str:
    """Keys of an entry of ``select``."""
    from harness.evidence.selection import FIELDS

    return ", ".join(f"`{name}`" for name in ("runs", *FIELDS))


def steady_reasons() -> str:
    """The reasons for which a step of a log is cut, in the order of the rule."""
    from harness.evidence.ingest.steady import REASONS

    return "\n".join(f"{i}. {reason}" for i, reason in enumerate(REASONS) if reason)


def physical_bounds() -> str:
    """Outside what a figure of a run is doubted, and outside what it is refused."""
    from harness.evidence.physics import BOUNDS

    low, high = BOUNDS.mfu
    rows = [
        [
            "share of the dense peak of the precision, by every way of counting FLOP",
            f"below {low:.1%}",
            f"above {high:.0%}",
        ],
        ["a precision that the GPU has no matrix rate for", "where it is assumed", "where it is stated"],
        ["peak memory over that of the device", f"above {BOUNDS.memory[0]:.0%}", f"above {BOUNDS.memory[1]:.0%}"],
        [
            "step time",
            f"above {BOUNDS.step_seconds[0]:,.0f} s, where no share of the peak can be had",
            f"above {BOUNDS.step_seconds[1]:,.0f} s, below {BOUNDS.shortest_seconds * 1e6:.0f} µs",
        ],
        ["GPUs", f"above {BOUNDS.gpus[0]:,}", f"above {BOUNDS.gpus[1]:,}"],
        [
            "step time × tokens/s/GPU × GPUs over the tokens of a step",
            "–",
            f"more than {BOUNDS.agreement:.0%} off, printed digits allowed for",
        ],
        ["relative spread", "above 1", "below 0"],
        ["date", "–", f"on no calendar, or not from {BOUNDS.years[0]} to {BOUNDS.years[1]}"],
    ]
    return table(["figure", "doubted", "refused"], rows)


def _first(text: str) -> str:
    return plain(text.strip().split("\n\n")[0])


def scored_constants() -> str:
    """Constants that were chosen while looking at measured runs on which projections are scored."""
    from projector.constants import every

    rows = [[f"`{name}`", f"{each.value:.6g}", "" if each.unit == "1" else each.unit, each.kind, plain(each.source)]
            for name, each in every().items() if each.scored]  # fmt: skip
    return table(["constant", "value", "unit", "kind", "source"], rows)


#: Every table by the name of its markers.
REFERENCE: Mapping[str, Callable[[], str]] = {
    "row-columns": row_columns,
    "row-words": row_words,
    "recipe-fields": recipe_fields,
    "execution-fields": execution_fields,
    "settings": settings,
    "commands": command_tables,
    "scored-constants": scored_constants,
    "gpus": gpus,
    "frameworks": frameworks,
    "schedules": schedules,
    "dialects": dialects,
    "thresholds": thresholds,
    "formats": formats,
    "selectors": selectors,
    "steady-reasons": steady_reasons,
    "physical-bounds": physical_bounds,
    "founding-counts": founding.counts,
    "founding-items": founding.items,
    "plan/figures": plan_example.figures,
    "plan/sizes": plan_example.sizes,
}
