"""Finds why a device was idle: each gap by the launch of the kernel that ended it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from harness.trace.account import Account
from harness.trace.events import Floats, Trace
from harness.trace.steps import TracedPart

BETWEEN = "between kernels"
LAUNCH = "host late with the launch"
SYNC = "host waited for the device"
DATA = "data loading"
OTHERS = "waits for another stream or rank"
SCRIPT = "between operators"
REASONS = {
    BETWEEN: "the next kernel had been launched and followed at once",
    LAUNCH: "the kernel was launched after the device had run dry",
    SYNC: "so was it, after a call that waits for the device",
    DATA: "so was it, after the host fetched data",
    OTHERS: "the kernel had long been launched and waited for an event or a peer",
    SCRIPT: "the host is the device: the training script itself, and what it calls beside torch",
}
_SHORT = 5e-6  # seconds of a usual gap: kernels of one stream follow each other within 1 to 3 µs
_DATA = re.compile(r"dataloader|data_?loading|get_batch|next\(|fetch_data", re.IGNORECASE)


def idle(trace: Trace, part: TracedPart, found: Account) -> Mapping[str, float]:
    """Returns the seconds of each of ``REASONS`` that has any; they add up to the idle seconds of ``found``."""
    if part.kernels.host:
        return {SCRIPT: found.idle} if found.idle > 0 else {}
    kernels, launches = part.kernels, trace.launches
    calls = [*launches.of(kernels).tolist(), -1]
    waits = _sorted(launches.start[launches.waits], launches.end[launches.waits])
    loads = [(m.start, m.end) for m in trace.marks if _DATA.search(m.name)]
    data = _sorted(*(np.array([pair[i] for pair in loads]) for i in (0, 1)))
    following = np.searchsorted(kernels.start, found.gaps[:, 1] - 1e-12)
    seconds = dict.fromkeys(REASONS, 0.0)
    for (begin, end), at in zip(found.gaps.tolist(), following.tolist(), strict=True):
        launched = float(launches.start[calls[at]]) if calls[at] >= 0 else None
        seconds[_reason(begin, end, launched, waits, data)] += end - begin
    return {reason: value for reason, value in seconds.items() if value > 0}


def _reason(begin: float, end: float, launched: float | None, waits: Floats, data: Floats) -> str:
    if launched is None or launched < begin:
        return BETWEEN if end - begin < _SHORT else OTHERS
    if _covers(data, begin, launched):
        return DATA
    return SYNC if _ends_in(waits, begin, launched) else LAUNCH


def _sorted(start: Floats, end: Floats) -> Floats:
    order = np.argsort(end, kind="stable")
    return np.stack((start[order], end[order]), axis=1) if len(start) else np.zeros((0, 2))


def _ends_in(calls: Floats, begin: float, until: float) -> bool:
    """Tells whether a call that began before the gap returned in it, before the launch."""
    at = int(np.searchsorted(calls[:, 1], begin)) if len(calls) else 0
    return at < len(calls) and bool(calls[at, 1] <= until and calls[at, 0] <= begin)


def _covers(spans: Floats, begin: float, until: float) -> bool:
    """Tells whether at least half of the stretch lies in one of the spans."""
    if not len(spans):
        return False
    common = np.minimum(spans[:, 1], until) - np.maximum(spans[:, 0], begin)
    return bool(common.max() > 0.5 * (until - begin))
