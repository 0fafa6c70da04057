"""What the tests of the documentation share: its pages and their examples."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def code(page: str, language: str) -> list[str]:
    """Fenced blocks of one language of ``docs/<page>``."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
