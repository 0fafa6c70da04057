"""Links of the built site, and the build itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from docsite.links import wrong_links

from tests.docs_tools import ROOT

GOOD = """<html><head><link rel="stylesheet" href="s.css"></head><body id="top"><h2 id="one">One</h2>
<a href="#one">1</a> <a href="b/c.html#two">2</a> <a href="b/">3</a> <a href="https://arxiv.org/abs/1811.06965">4</a>
<a href="/index.html">5</a> <img src="b/p%20q.png"></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(GOOD, encoding="utf-8")
    (tmp_path / "b" / "c.html").write_text('<h2 id="two">2</h2><a href="../index.html">up</a>', encoding="utf-8")
    (tmp_path / "b" / "index.html").write_text("<p>b</p>", encoding="utf-8")
    (tmp_path / "s.css").write_text("", encoding="utf-8")
    (tmp_path / "b" / "p q.png").write_bytes(b"")
    return tmp_path


def test_good_links(site: Path) -> None:
    assert wrong_links(site) == []


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ('href="#one"', 'href="#on"', "no such anchor"),
        ("c.html#two", "c.html#tow", "no such anchor in b/c.html"),
        ("b/c.html#two", "b/d.html", "no such page"),
        ('href="b/"', 'href="../b/"', "no such page"),
        ("https://arxiv", "http://arxiv", "not a well-formed"),
        ("https://arxiv.org/abs/", "https://arxiv org/", "not a well-formed"),
        ("https://arxiv.org", "https://arxiv", "not a well-formed"),
        ('href="s.css"', 'href="https://cdn.example.org/s.css"', "from outside"),
        ('src="b/p%20q.png"', 'src="b/q.png"', "loads b/q.png: no such"),
        ("</body>", '<script src="//cdn.example.org/x.js"></script></body>', "from outside"),
    ],
)
def test_wrong_links_are_found(site: Path, old: str, new: str, wrong: str) -> None:
    (site / "index.html").write_text(GOOD.replace(old, new), encoding="utf-8")
    found = wrong_links(site)
    assert len(found) == 1
    assert wrong in found[0]


def test_an_empty_site_is_wrong(tmp_path: Path) -> None:
    assert "no pages" in wrong_links(tmp_path)[0]


def test_the_site_builds_strictly_and_loads_nothing(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    import docs as tool

    command = [*tool.MKDOCS, "--site-dir", str(tmp_path / "site")]
    assert tool.run(command) == 0
    assert wrong_links(tmp_path / "site") == []
    assert (tmp_path / "site" / "models" / "gemm.html").is_file()
    assert ROOT not in (tmp_path / "site").parents
