"""What a store of history holds: one evaluation of one version of the code, and what tells it from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from harness.contracts.results import Row, RunFacts
from projector.dataclass import dataclass

_SHORT = 9  # letters of a revision or digest: no two versions of one project share them


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Where rows come from. Nothing in it names a machine.

    ``recorded``, ``committed``: ISO 8601 in UTC; ``revision``, ``committed`` and ``subject`` are empty away from a
    checkout. ``code``: hash of both packages as they ran, data included; ``changed``: files of the checkout differed from
    the revision. ``suites``: name → hash of the suite's file and of all runs that it read; all of them were evaluated, and
    so calibrated, together. ``settings``: those of the kernels
    that are not the default; ``versions``: of distributions, and the hash of the measured kernel tables.
    """

    recorded: str
    version: str
    code: str
    mode: str
    suites: Mapping[str, str]
    revision: str = ""
    committed: str = ""
    subject: str = ""
    changed: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The revision; with the hash of the code where a revision does not say which code it was."""
        name = self.revision[:_SHORT] or self.version
        return name if self.revision and not self.changed else f"{name}+{self.code[:_SHORT]}"

    @property
    def order(self) -> tuple[str, bool, str]:
        """Versions in the order in which they were made: as committed, changes that were not committed behind that."""
        return (self.committed or self.recorded, self.changed, self.recorded)

    @property
    def key(self) -> tuple[object, ...]:
        """Two recordings of one key are the same evaluation, made twice."""
        stated = ({name: repr(value) for name, value in self.settings.items()}, self.suites, self.versions)
        return (self.revision, self.code, self.mode, *(tuple(sorted(each.items())) for each in stated))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recording with the rows that were asked for, in the order of their evaluation, and the facts of their runs."""

    recording: Recording
    rows: tuple[Row, ...]
    facts: Mapping[str, RunFacts]
