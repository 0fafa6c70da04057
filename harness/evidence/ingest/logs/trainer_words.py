"""What the trainer of this project (:mod:`harness.measure`) says beside Megatron-LM's arguments: ``trainer_*``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.evidence.ingest.logs.logged import Logged
from projector import frameworks
from projector.workload.model import Model

#: Argument → fact of a log.
_FACTS = {"trainer_framework": "framework", "trainer_device": "gpu", "trainer_version": "version"}


def note(record: Logged, values: Mapping[str, object]) -> None:
    """Notes framework, device and version as facts of the log, where its trainer names them."""
    if values.get("trainer_framework") in frameworks.names():
        for name, fact in _FACTS.items():
            if isinstance(value := values.get(name), str):
                record.facts.setdefault(fact, value)


def named(model: Model, values: Mapping[str, object]) -> Model:
    """The model under the name and family that the trainer gave it: a dump of Megatron-LM has neither."""
    name, family = values.get("trainer_model"), values.get("trainer_family")
    return replace(model, name=name, family=family) if isinstance(name, str) and isinstance(family, str) else model
