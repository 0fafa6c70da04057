"""Serves projections to a browser and to programs: a page that computes, the REST API behind it, tools for agents.

Only Python's own ``http.server`` is used: every request is a GET with a short query and no body, computations run in
one process beside the server that has limits of time and memory, and nothing is uploaded, stored or read from disk for
it. A framework would add packages to that and take none of it away.
"""

from __future__ import annotations

from pathlib import Path

#: The files of the page; ``page.css`` and ``common.js`` are those of every page: of a search, of a sweep, of the harness's
#: reports.
PAGE = Path(__file__).parent / "page"
