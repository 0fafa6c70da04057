"""The table of the founding documents' items: what each says, how it is run here, what must come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from docsite.blocks import table
from docsite.commands import plain

__all__ = ["counts", "items"]

_FOLDER = Path(__file__).resolve().parents[2] / "tests/founding"
_SIGNS = {"less": "<", "more": ">", "same": "="}


def _tables() -> list[dict[str, Any]]:
    return [yaml.safe_load((_FOLDER / name).read_text(encoding="utf-8")) for name in ("items.yaml", "other_items.yaml")]


def _read() -> list[dict[str, Any]]:
    return [item for table in _tables() for item in table["items"]]


def counts() -> str:
    """How many items of each document a command line checks, another test holds, or do not apply."""
    rows = []
    titles = {letter: title for table in _tables() for letter, title in table["documents"].items()}
    for letter, title in (*titles.items(), ("", "all")):
        own = [item for item in _read() if item["id"].startswith(letter)]
        held, none = (sum(name in item for item in own) for name in ("held", "not"))
        rows.append([title, *map(str, (len(own), len(own) - held - none, held, none))])
    return table(["document", "items", "run by the command line", "held by another test", "not applicable"], rows)


def items() -> str:
    """One row an item."""
    rows = [[item["id"], plain(_safe(item["says"])), _safe(_how(item)), _safe(_expected(item))] for item in _read()]
    return table(["item", "what the document says", "run", "what must come out"], rows)


def _how(item: dict[str, Any]) -> str:
    env = " ".join(f"{name}={value}" for name, value in item.get("env", {}).items())
    return f"{env} {item.get('run') or item.get('printed') or item.get('held') or ''}".strip()


def _expected(item: dict[str, Any]) -> str:
    if "not" in item:
        return f"not applicable: {item['not']}"
    parts = [f"shows “{words.strip()}”" for words in item.get("shows", ())]
    parts += [f"refuses with “{item['refuses']}”"] if "refuses" in item else []
    parts += [f"{name} = {value}" for name, value in item.get("is", {}).items()]
    parts += [
        f"{name} {sign} that of: {run}" for kind, sign in _SIGNS.items() for name, run in item.get(kind, {}).items()
    ]
    parts += [
        f"{name} {low} to {high} times that of: {run}" for name, (run, low, high) in item.get("ratio", {}).items()
    ]
    parts += [f"{name} {low} to {high}" for name, (low, high) in item.get("within", {}).items()]
    return "; ".join(parts) or "the test passes"


def _safe(text: str) -> str:
    """Without what Markdown would take for markup or for a column."""
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
