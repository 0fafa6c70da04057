"""Lists every number that a projection rests on, with its source: ``projector constants``."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from projector.cli import as_json
from projector.cli.catalogues import chosen
from projector.io.table import Line, values
from projector.parameter import FIELDS, KINDS

if TYPE_CHECKING:
    from projector.parameter import Count, Parameter

    Constants = Mapping[str, Parameter | Count]

_INDENT = "    "
KNOWN = {"--kind": {"choices": KINDS, "help": f"only constants of this kind: {', '.join(KINDS)}"}}


def command(options: argparse.Namespace) -> None:
    from projector.constants import every

    known = every()
    matching = {name: known[name] for name in chosen(options.pattern, list(known), "constants")}
    listed = {name: each for name, each in matching.items() if options.kind in (None, each.kind)}
    listed = {name: each for name, each in listed.items() if each.scored or not options.scored}
    documents = [{"name": name, **values(each, " ".join(FIELDS))} for name, each in listed.items()]
    as_json.tell(options.json, lambda: {"command": "constants", "constants": documents}, lambda: _lines(listed))


def _lines(listed: Constants) -> Iterator[Line]:
    kinds = Counter(constant.kind for constant in listed.values())
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
    scored = sum(constant.scored for constant in listed.values())
    head = f"{len(listed)} constants: {counts or 'none'}; {scored} chosen while looking at runs that are scored"
    yield Line(head, "bold")
    for name, constant in listed.items():
        yield Line("")
        yield Line(name, "bold")
        unit = "" if constant.unit == "1" else f" {constant.unit}"
        facts = [f"{constant.value:.6g}{unit}", constant.kind, *_range(constant)]
        facts += ["chosen on scored runs"] if constant.scored else []
        yield Line(f"{_INDENT}{', '.join(facts)}")
        yield Line(f"{_INDENT}{constant.source}", "dim")


def _range(constant: Parameter | Count) -> list[str]:
    if constant.low is None and constant.high is None:
        return []
    low, high = ("" if end is None else f"{end:.6g}" for end in (constant.low, constant.high))
    return [f"at least {low}" if not high else f"at most {high}" if not low else f"{low} to {high}"]
