"""Finding Calculon, checking that it is Calculon, and running it once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.predictors import peer
from harness.predictors.calculon_inputs import EXECUTION_FIELDS
from projector.dataclass import dataclass
from projector.errors import InputError, Problem

NAME = "calculon"
_HOW = (
    "put a checkout of github.com/calculon-ai/calculon on PYTHONPATH. It is not on the package index, so the extra 'peers'"
    " cannot bring it: the package named calculon there is another program"
)
_LOG = logging.getLogger("harness.calculon")


@dataclass(frozen=True)
class Tool:
    """The two classes of Calculon that a run needs (``calculon.llm.llm.Llm``, ``calculon.system.System``)."""

    llm: Any
    system: Any

    @property
    def error(self) -> type[Exception]:
        """What it raises for a configuration that its models reject."""
        found: type[Exception] = self.llm.Error
        return found

    def stats(
        self, application: Mapping[str, Any], execution: Mapping[str, Any], system: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Its statistics of one training step (seconds, bytes), as ``calculon llm`` writes them.

        Raises ``self.error`` and AssertionError where it rejects the input.
        """
        device = self.system(dict(system))
        model = self.llm(self.llm.Application(dict(application)), _LOG)
        model.compile(device, self.llm.Execution.from_json(dict(execution)))
        model.run(device)
        made: dict[str, Any] = model.get_stats_json(False)
        return made


@cache
def tool() -> Tool:
    """Calculon, imported. Raises :class:`InputError` where it is absent or takes other inputs than these."""
    error = peer.absent(NAME, "Calculon", _HOW)
    _folder()
    found = Tool(
        peer.require("calculon.llm.llm", error).Llm,
        peer.require("calculon.system", error).System,
    )
    fields = set(found.llm.Execution.fields())
    if fields != EXECUTION_FIELDS:
        other = ", ".join(sorted(fields ^ EXECUTION_FIELDS))
        raise InputError([Problem("command line", "--with", NAME, f"a Calculon that does not differ in {other}")])
    return found


@cache
def system_file(name: str) -> Mapping[str, Any]:
    """One of the system descriptions that come with it (``systems/<name>.json`` of the checkout)."""
    path = _folder().parent / "systems" / f"{name}.json"
    if not path.is_file():
        raise InputError([Problem("command line", "--with", NAME, f"its folder systems, with {name}.json")])
    made: Mapping[str, Any] = json.loads(path.read_text())
    return made


def _folder() -> Path:
    folder = peer.located("calculon", "llm/llm.py", "system.py")
    if folder is None:
        raise peer.absent(NAME, "Calculon", _HOW)
    return folder
