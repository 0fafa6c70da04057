"""Serves a page that computes, and the REST API behind it: ``projector serve``."""

from __future__ import annotations

import argparse

from projector.cli import as_json
from projector.cli.parser import Parser, add_command, quantity, whole
from projector.errors import InputError, Problem


def register(parser: Parser) -> None:
    add_command(parser, _run, examples=("", "--json"))
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1, which only this machine reaches")
    add("--port", type=whole(0, 65535), default=8642, metavar="N", help="default: 8642; 0: any that is free")
    add(
        "--seconds", type=quantity("seconds", 1, 600), default=30.0, metavar="S", help="an answer may take; default: 30"
    )
    add("--json", action="store_true", help="serve nothing: print the API, as OpenAPI has it")


def _run(options: argparse.Namespace) -> None:
    from projector.serve.server import Server, openapi

    if options.json:
        as_json.write(openapi())
        return
    try:
        server = Server(options.host, options.port, options.seconds)
    except OSError as error:
        found = f"{options.host}:{options.port} ({error.strerror or error})"
        raise InputError([Problem("--port", "", found, "an address of this machine that is free: --port 0")]) from None
    print(f"http://{options.host}:{server.server_port}/ (the API: /v1/openapi.json); Ctrl-C ends it", flush=True)
    try:
        server.serve_forever()
    finally:
        server.server_close()
