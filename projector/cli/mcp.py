"""Offers the answers as tools for agents (Model Context Protocol), over standard input and output: ``projector mcp``."""

from __future__ import annotations

import argparse

from projector.cli.parser import Parser, add_command, quantity


def register(parser: Parser) -> None:
    add_command(parser, _run, examples=("", "--json"))
    add = parser.add_argument
    add(
        "--seconds",
        type=quantity("seconds", 1, 3600),
        default=120.0,
        metavar="S",
        help="an answer may take; default: 120",
    )
    add("--json", action="store_true", help="serve nothing: print how clients are told of this server")


def _run(options: argparse.Namespace) -> None:
    if options.json:
        from projector.cli import as_json

        as_json.write({"mcpServers": {"projector": {"command": "projector", "args": ["mcp"]}}})
        return
    from projector.serve.tools import server

    server(options.seconds).run("stdio")
