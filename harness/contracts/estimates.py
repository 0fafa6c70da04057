"""The rows that a calibration is learnt from, and the estimate that it gives for a row."""

from __future__ import annotations

import math
import re

from projector.dataclass import dataclass
from projector.effects import Facts
from projector.posterior import LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One row whose projection can be compared with a measurement. ``facts``: those of its projection. ``log_ratio`` =
    ln(measured / projected step time), that is ln(projected / measured TGS), where TGS is tokens/s/GPU; a value that is
    not finite marks a run that was projected but not measured."""

    run_id: str
    facts: Facts
    log_ratio: float

    @property
    def source(self) -> str:
        """Returns the publisher of the row, as :func:`harness.contracts.estimates.publisher` names it."""
        return self.facts.source

    @property
    def family(self) -> str:
        return self.facts.family

    @property
    def cell(self) -> tuple[str, str, str]:
        """Returns the family, GPU and framework of the row: rows with the same three weigh as one in a macro average."""
        return (self.facts.family, self.facts.gpu, self.facts.framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the rows of other sources say of one row. ``log`` is ln(expected / projected step time), ``deviation`` its
    standard deviation in ln, ``half`` the half width of the 90 % interval in ln, infinite where there was too little to
    learn it from."""

    log: float
    deviation: float
    half: float = math.inf
    level: float = LEVEL

    @property
    def value(self) -> float:
        """Returns the factor by which the projected step time is multiplied to give the expected one."""
        return math.exp(self.log)


# The patterns of a publisher. Rows are held out by publisher, because the publisher of a user's run is always a new one.
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
    """Returns the publisher that the ``title`` of a source names, in lower case; rows of one publisher are never told
    apart.

    The first of these that the title has: the submitter of an MLPerf Training round (``mlperf cisco``; a joint
    submission is a submitter of its own), the paper (``arxiv:2205.05198``), the repository or site that it begins with
    (``internlm/internevo``, without regard to file, commit or fork of the figure), a repository that it names, the title
    of the document in quotes, else its words up to the first punctuation.
    """
    text = title.strip().lower()
    if _ROUND.search(text):
        match = _SUBMITTER.search(text)
        return f"mlperf {match[1]}" if match else "mlperf"
    if match := _PAPER.search(text):
        return f"arxiv:{match[1]}"
    if (match := _SITE.match(text)) and not match[1].startswith("github.com/"):
        return _PRINTED.get(match[1], match[1])
    if match := _REPOSITORY.match(text) or _NAMED.search(text):
        return match[1]
    if match := _QUOTED.search(text) or _DOCUMENT.match(text):
        return match[1 if match.re is _QUOTED else 0].strip()
    return text
