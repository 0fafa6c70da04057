"""Tables of what is asked and what is expected, as data: each test has a list or a mapping in ``tests/tables/NAME.yaml``."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["sample", "scripts", "tabled", "written"]

FOLDER = Path(__file__).parent / "tables"


@cache
def _file(name: str) -> dict[str, Any]:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {key: _frozen(one) for key, one in value.items()} if isinstance(value, dict) else value


def tabled(name: str, key: str) -> Any:
    """The table ``key`` of a file: its rows in a list, or by their names; lists within a row are tuples."""
    found = _file(name)[key]
    return list(map(_frozen, found)) if isinstance(found, list) else _frozen(found)


def sample(name: str) -> str:
    """The text of a sound file of ``tests/tables/files``."""
    return (FOLDER / "files" / name).read_text(encoding="utf-8")


def scripts(file: Path) -> dict[str, str]:
    """The shell texts of a file by the name above each (``#: name``)."""
    return dict(re.findall(r"^#: (.*)\n((?s:.*?))\n(?=#: |\Z)", file.read_text(encoding="utf-8"), re.MULTILINE))


def written(sound: str, old: str | None, new: str) -> str:
    """A sound file with something else in the place of ``old``, with something more (""), or another file (None)."""
    if old is None:
        return new
    assert old in sound
    return sound.replace(old, new) if old else sound + new
