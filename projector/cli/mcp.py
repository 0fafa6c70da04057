"""Offers the answers as tools for agents (Model Context Protocol), over standard input and output: ``projector mcp``."""

from __future__ import annotations

import argparse


def command(options: argparse.Namespace) -> None:
    if options.json:
        from projector.cli import as_json

        as_json.write({"mcpServers": {"projector": {"command": "projector", "args": ["mcp"]}}})
        return
    from projector.serve.tools import server

    server(options.seconds).run("stdio")
