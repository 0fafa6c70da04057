"""Gives a script the files that it wrote itself and those beside it, and nothing else of this machine."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

from projector.intake.shell.state import State
from projector.intake.shell.unknown import MARK

_LEVELS = 4  # folders above the script in which a repository's paths may start


class Files:
    """Holds the files that one evaluation sees. ``folder``: where the script lies; paths known only in part are looked for
    by their known end. ``read``: returns the text of a file, raises OSError or ValueError where it has none."""

    def __init__(self, folder: Path, read: Callable[[Path], str]) -> None:
        self.folder, self._read = folder, read
        self.written: dict[str, str | None] = {}
        self.moved: dict[str, str] = {}

    def write(self, path: str, text: str, state: State, *, append: bool = False) -> None:
        """Keeps ``text`` as what the script wrote to ``path``, unless the file would exceed 4,000,000 characters."""
        before = (self.read(path, state) or "") if append else ""
        if len(before) + len(text) < 4_000_000:
            self.written[self._normalised(path, state)] = before + text

    def forget(self, path: str, state: State) -> None:
        """Takes the file at ``path``, if it is one, away: its text is no longer what was written to it or lies beside."""
        if self.read(path, state) is not None:
            self.written[self._normalised(path, state)] = None

    def wrote(self, path: str, state: State) -> bool:
        return self.written.get(self._normalised(path, state)) is not None

    def read(self, path: str, state: State, *, moved: bool = False) -> str | None:
        """Returns a file's text; None when it is neither written by nor beside the script. ``moved``: a file of another
        machine's folder is looked for by the end of its path, a folder and a name at least, and kept in ``self.moved``."""
        name = self._normalised(path, state)
        if name in self.written:
            return self.written[name]
        file = self.find(path, state)
        parts = [part for part in MARK.split(path)[-1].strip().split("/") if part]
        for at in range(1, len(parts) - 1) if moved and (path.startswith("/") or MARK.search(path)) else ():
            end = "/".join(parts[at:])
            file = file or self.find(end, state)
            if file is not None:
                self.moved.setdefault(parts[-1], f"{'/'.join(parts[-2:])} beside the script")
                break
        if file is None:
            return None
        try:
            return self._read(file)
        except (OSError, ValueError):
            return None

    def find(self, path: str, state: State) -> Path | None:
        """Returns the real file beside the script (or in the repository above it) that ``path`` means; None without one."""
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
            file = self._if_file(place)
            if file is not None:
                return file
        return None

    def _if_file(self, place: Path) -> Path | None:
        try:
            return place if place.is_file() else None
        except (OSError, ValueError):
            return None

    def _normalised(self, path: str, state: State) -> str:
        return posixpath.normpath(posixpath.join(state.cwd, path)) if path else path
