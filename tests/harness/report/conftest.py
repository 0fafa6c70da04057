"""A headless browser for tests of the page, where there is one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from many import many_rows

from harness.contracts.results import Evaluation
from harness.report import files, publish, view

PROBE = Path(__file__).parent / "probe.js"

#: As `harness run` records it.
PROVENANCE = {
    "command": ["harness", "run", "suites/moe.yaml", "--out", "out/x", "--mode", "both"],
    "inputs": {"suites/moe.yaml": ""},
}


@pytest.fixture(scope="session")
def evaluation() -> Evaluation:
    return many_rows()


@dataclass
class Sight:
    """An opened page with what it complained of and what it asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def js(self, script: str) -> Any:
        """The value of a script, in which ``probe`` is that of ``probe.js``."""
        return self.page.evaluate(script)

    def lacking(self, selector: str, holds: str) -> int:
        """The number of elements ``e`` of which ``holds`` is not true."""
        return int(self.js(f"() => [...document.querySelectorAll({selector!r})].filter(e => !({holds})).length"))

    @property
    def address(self) -> str:
        return str(self.js("location.hash"))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]


Look = Callable[..., Any]


@pytest.fixture(scope="session")
def look(chromium: Any, evaluation: Evaluation, tmp_path_factory) -> Look:
    """Opens the page of ``evaluation`` at an address, a width and a colour scheme; a complaint of it fails the test."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    saved = files.Saved(evaluation=evaluation, gates={}, provenance=PROVENANCE)
    path.write_text(publish.page(view.build(evaluation), saved), encoding="utf-8")

    @contextmanager
    def opened(address: str = "", width: int = 1300, scheme: str = "light") -> Iterator[Sight]:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.add_init_script(path=PROBE)
        sight = Sight(page)
        page.on("console", lambda message: sight.complaints.append(message.text))
        page.on("pageerror", lambda error: sight.complaints.append(str(error)))
        page.on("request", lambda request: sight.requests.append(request.url))
        page.goto(path.as_uri() + address)
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        yield sight
        assert sight.complaints == []
        assert [url for url in sight.requests if not url.startswith(path.as_uri())] == []
        context.close()

    return opened
