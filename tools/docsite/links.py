"""Links of the built site: every page, file and anchor inside it exists; nothing is loaded from outside.

External links are checked for their form only: a scheme of https, a host, no blanks. No network is used.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Page", "read", "wrong_links"]

_HOST = re.compile(r"^[\w-]+(\.[\w-]+)+$")
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@dataclass
class Page(HTMLParser):
    """Anchors of a page, what it links to, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and (target := found.get("href")):
            self.links.append(target)
        if (key := _LOADED.get(tag)) and (target := found.get(key)):
            self.loaded.append(target)


def read(path: Path) -> Page:
    """The page in a file."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def wrong_links(site: Path) -> list[str]:
    """What is wrong with the links of the site in folder ``site``, each in words."""
    pages = {str(path.relative_to(site)): read(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: no pages"]
    for name, page in pages.items():
        found += [f"{name}: {link}: {wrong}" for link in page.links if (wrong := _wrong(link, name, site, pages))]
        found += [f"{name}: loads {link} from outside" for link in page.loaded if urlsplit(link).netloc]
        found += [f"{name}: loads {link}: {wrong}" for link in page.loaded
                  if not urlsplit(link).netloc and (wrong := _wrong(link, name, site, pages))]  # fmt: skip
    return found


def _wrong(link: str, name: str, site: Path, pages: dict[str, Page]) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        formed = parts.scheme == "https" and _HOST.match(parts.netloc) and not re.search(r"\s", link)
        return "" if formed or parts.scheme in ("mailto", "data") else "not a well-formed https link"
    folder = "" if parts.path.startswith("/") else posixpath.dirname(name)
    target = posixpath.normpath(posixpath.join(folder, unquote(parts.path).lstrip("/"))) if parts.path else name
    if (site / target).is_dir():
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    if target.startswith("..") or not (site / target).is_file():
        return "no such page or file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors | {"__top"}:
        return f"no such anchor in {target}"
    return ""
