"""What a calibration is learnt from, and what it says of a row."""

from __future__ import annotations

import math
import re

from projector.dataclass import dataclass
from projector.effects import Facts
from projector.posterior import LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One comparable row: ``facts`` of its projection, ``log_ratio`` = ln(measured / projected step time), that is
    ln(projected / measured TGS); one that is not finite: projected, not measured."""

    run_id: str
    facts: Facts
    log_ratio: float

    @property
    def source(self) -> str:
        """Who published it (:func:`harness.contracts.estimates.publisher`)."""
        return self.facts.source

    @property
    def family(self) -> str:
        return self.facts.family

    @property
    def cell(self) -> tuple[str, str, str]:
        """What weighs as one."""
        return (self.facts.family, self.facts.gpu, self.facts.framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What rows of others say of one: ``log`` is ln(expected / projected step time), ``deviation`` its standard
    deviation in ln, ``half`` the half width of the 90 % interval, infinite where there was too little to learn it from."""

    log: float
    deviation: float
    half: float = math.inf
    level: float = LEVEL

    @property
    def value(self) -> float:
        """The multiplier on the projected step time."""
        return math.exp(self.log)


# Who published a figure: the unit by which rows are held out, and of which a user is always a new one.
_SUBMITTER = re.compile(r"training_results_v[\d.]+\b.*?\b([\w+.-]+)/(?:results|benchmarks)/")
_ROUND = re.compile(r"training_results_v[\d.]+")
_PAPER = re.compile(r"arxiv[:/ ]\s*(\d{4}\.\d{4,5})")
_SITE = re.compile(r"(?:https?://)?((?:[\w-]+\.)+(?:com|org|io|net|dev|ai)/[\w.-]+)")
_REPOSITORY = re.compile(r"(?:(?:https?://)?github(?:\.com/| ))?([\w.-]+/[\w.-]+)")
_NAMED = re.compile(r"\bgithub(?:\.com/| )([\w.-]+/[\w.-]+)")
_QUOTED = re.compile(r'"([^"]+)"')
_DOCUMENT = re.compile(r"[^,@(:;]+")
#: Sites that print the documents of a repository.
_PRINTED = {"docs.nvidia.com/nemo-framework": "nvidia/nemo"}


def publisher(title: str) -> str:
    """The publisher that the title of a source names, in lower case; rows of one publisher are never told apart.

    The first of these that the title has: the submitter of an MLPerf Training round (``mlperf cisco``; a joint submission
    is a submitter of its own), the paper (``arxiv:2205.05198``), the repository or site that it begins with
    (``internlm/internevo``, without regard to file, commit or fork of the figure), a repository that it names, the title of
    the document in quotes, else its words up to the first punctuation.
    """
    text = title.strip().lower()
    if _ROUND.search(text):
        found = _SUBMITTER.search(text)
        return f"mlperf {found[1]}" if found else "mlperf"
    if found := _PAPER.search(text):
        return f"arxiv:{found[1]}"
    if (found := _SITE.match(text)) and not found[1].startswith("github.com/"):
        return _PRINTED.get(found[1], found[1])
    if found := _REPOSITORY.match(text) or _NAMED.search(text):
        return found[1]
    if found := _QUOTED.search(text) or _DOCUMENT.match(text):
        return found[1 if found.re is _QUOTED else 0].strip()
    return text
