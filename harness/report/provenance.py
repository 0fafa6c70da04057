"""The origin of a result: versions, revision, machine kind, command and the hashes of its inputs."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from projector.dataclass import dataclass
from projector.io.code import version_of

DISTRIBUTIONS = ("projector-harness", "numpy", "PyYAML")
ROOT = Path(__file__).resolve().parents[2]
_CHANGES = "+changes"
_MOST_COMMITS = 50


def collect(inputs: Iterable[Path], command: Sequence[str], seconds: float) -> dict[str, object]:
    """Returns everything needed to make the same rows again. ``seconds``: wall time of the evaluation."""
    return {
        "command": list(command),
        "python": platform.python_version(),
        "platform": platform.system() + " " + platform.machine(),
        "versions": versions(),
        "revision": revision(ROOT),
        "seconds": round(seconds, 3),
        "inputs": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in dict.fromkeys(inputs)},
    }


def versions() -> dict[str, str]:
    """Returns the versions of the distributions that figures depend on."""
    return {name: version_of(name) for name in DISTRIBUTIONS}


def flat(provenance: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Returns the inputs with their hashes, all of the origin that a checked-in report prints. Versions, revision and
    times stand in ``results.json``: they differ from one machine and commit to the next, and a report that is checked in
    must not."""
    inputs = provenance.get("inputs")
    return tuple((str(path), str(digest)) for path, digest in inputs.items()) if isinstance(inputs, dict) else ()


def whole(provenance: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Returns the whole origin, for a report that is not checked in: how it was made, with what, from which inputs."""
    lines: list[tuple[str, str]] = []
    for name in ("command", "revision", "python", "platform", "versions", "seconds"):
        value = provenance.get(name)
        if isinstance(value, Mapping):
            lines += [(str(part), str(version)) for part, version in value.items()]
        elif value not in (None, ""):
            lines.append((name, " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return (*lines, *flat(provenance))


def revision(root: Path) -> str:
    """Returns the git revision of the checkout at ``root``, with ``+changes`` where files differ; empty without one."""
    if not (root / ".git").exists():
        return ""
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return head + (_CHANGES if head and changed else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a checkout. ``committed``: ISO 8601 in UTC; ``changed``: files of the checkout differ from it. All
    fields are empty outside a checkout."""

    revision: str = ""
    committed: str = ""
    subject: str = ""
    changed: bool = False


def commit() -> Commit:
    """Returns the commit on which the checkout stands."""
    stated = revision(ROOT)
    head = stated.removesuffix(_CHANGES)
    if not head:
        return Commit()
    date, _, subject = _git(ROOT, "log", "-1", "--format=%cd\t%s", "--date=format-local:%Y-%m-%dT%H:%M:%SZ").partition(
        "\t"
    )
    return Commit(revision=head, committed=date, subject=subject, changed=head != stated)


def commits(since: str, until: str) -> tuple[str, ...]:
    """Returns abbreviated revision and subject of every commit behind ``since`` up to ``until``, oldest first; empty
    where the checkout does not hold them. At most :data:`_MOST_COMMITS`."""
    if not (ROOT / ".git").exists():
        return ()
    log = _git(ROOT, "log", "--reverse", "--format=%h %s", f"-{_MOST_COMMITS}", f"{since}..{until}", "--")
    return tuple(log.splitlines())


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=True,
            env={**os.environ, "TZ": "UTC"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
