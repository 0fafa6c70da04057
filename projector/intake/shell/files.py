"""Files as a script sees them: what it wrote itself, and what lies beside it. Nothing else of this machine."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

from projector.intake.shell.state import State
from projector.intake.shell.unknown import MARK

_LEVELS = 4  # folders above the script in which a repository's paths may start


class Files:
    """``folder``: where the script lies; paths that only the run knows are looked for by what is known of their end.
    ``read``: the text of a file, an OSError or a ValueError where it has none."""

    def __init__(self, folder: Path, read: Callable[[Path], str]) -> None:
        self.folder, self._read = folder, read
        self.written: dict[str, str] = {}
        self.moved: dict[str, str] = {}

    def write(self, path: str, text: str, state: State, *, append: bool = False) -> None:
        """Keeps what the script wrote."""
        name = self._name(path, state)
        before = self.written.get(name, "") if append else ""
        if len(before) + len(text) < 4_000_000:
            self.written[name] = before + text

    def wrote(self, path: str, state: State) -> bool:
        return self._name(path, state) in self.written

    def read(self, path: str, state: State, *, moved: bool = False) -> str | None:
        """The text of a file; None when it is neither written here nor beside the script. ``moved``: a file of another
        machine's folder is looked for by the end of its path, a folder and a name at least, and kept in ``self.moved``."""
        name = self._name(path, state)
        if name in self.written:
            return self.written[name]
        found = self.find(path, state)
        parts = [part for part in MARK.split(path)[-1].strip().split("/") if part]
        for at in range(1, len(parts) - 1) if moved and (path.startswith("/") or MARK.search(path)) else ():
            end = "/".join(parts[at:])
            found = found or self.find(end, state)
            if found is not None:
                self.moved.setdefault(parts[-1], f"{'/'.join(parts[-2:])} beside the script")
                break
        if found is None:
            return None
        try:
            return self._read(found)
        except (OSError, ValueError):
            return None

    def find(self, path: str, state: State) -> Path | None:
        """A real file beside the script (or in the repository above it) that ``path`` means."""
        known = MARK.split(path)[-1].lstrip("/") if MARK.search(path) else path
        known = known.strip()
        if not known or known.endswith("/") or "\n" in known or len(known) > 500:
            return None
        bases = [state.cwd, str(self.folder)] if not MARK.search(state.cwd) else [str(self.folder)]
        parents = [str(parent) for parent in list(self.folder.resolve().parents)[:_LEVELS]]
        roots = [str(self.folder.resolve()), *parents]
        for base in [*bases, *parents]:
            place = Path(posixpath.normpath(posixpath.join(base, known)))
            if not any(str(place.absolute()).startswith(root + "/") for root in roots[: _LEVELS + 1] if root != "/"):
                continue
            found = self._regular(place)
            if found is not None:
                return found
        return None

    def _regular(self, place: Path) -> Path | None:
        try:
            return place if place.is_file() else None
        except (OSError, ValueError):
            return None

    def _name(self, path: str, state: State) -> str:
        return posixpath.normpath(posixpath.join(state.cwd, path)) if path else path
