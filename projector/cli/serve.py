"""Serves a page that computes, and the REST API behind it: ``projector serve``."""

from __future__ import annotations

import argparse

from projector.cli import as_json
from projector.errors import InputError, Problem


def command(options: argparse.Namespace) -> None:
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
