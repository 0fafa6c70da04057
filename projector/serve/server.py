"""The HTTP server: the page, its files, and the REST API under ``/v1``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from projector import __version__
from projector.serve import PAGE
from projector.serve.answers import COMMANDS
from projector.serve.worker import Answer, Worker

_FILES = {"/": ("index.html", "text/html; charset=utf-8")} | {
    f"/{name}": (name, f"text/{kind}; charset=utf-8")
    for kind, names in (("css", ("page.css", "serve.css")), ("javascript", ("common.js", "serve.js")))
    for name in names
}
_JSON = "application/json; charset=utf-8"
_LONGEST = 4096  # bytes of a query
_MOST = 150  # words of a query
_HERE = ("localhost", "127.0.0.1", "[::1]")
_POLICY = "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:; "
_POLICY += "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_REPLIES = {
    "200": {"description": "as --json of the command line", "content": {"application/json": {}}},
    "400": {"description": "every mistake, as errors"},
    "422": {"description": "not modelled"},
    "503": {"description": "it takes too long, or too many wait"},
}


class Server(ThreadingHTTPServer):
    """The server on ``host`` and ``port`` (0: any free one). A request under another name than this host's is refused,
    so that no web page can reach the server by a name of its own (DNS rebinding)."""

    daemon_threads = True

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self.worker = Worker(seconds)
        self.names = {*_HERE, host} if host not in ("0.0.0.0", "::") else set()
        super().__init__((host, port), _Handler)

    def server_close(self) -> None:
        super().server_close()
        self.worker.close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "projector", ""
    timeout = 30

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        host = self.headers.get("Host", "").rsplit(":", 1)[0] if "]" not in self.headers.get("Host", "") else "[::1]"
        if self.server.names and host not in self.server.names:
            self._tell(403, "a request to this host by its own name")
        elif len(place.query) > _LONGEST:
            self._tell(414, f"a query of at most {_LONGEST} bytes")
        elif place.path in _FILES:
            name, kind = _FILES[place.path]
            self._send(200, _file(name), kind)
        elif place.path == "/v1/openapi.json":
            self._send(200, json.dumps(openapi(), indent=1).encode(), _JSON)
        elif place.path.startswith("/v1/") and place.path[4:] in (*COMMANDS, "catalogue"):
            self._answer(place.path[4:], place.query)
        else:
            self._tell(404, f"/, /v1/openapi.json, /v1/catalogue, {', '.join(f'/v1/{name}' for name in COMMANDS)}")

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, command: str, query: str) -> None:
        try:
            given = parse_qsl(query, max_num_fields=_MOST, errors="strict", strict_parsing=bool(query))
        except ValueError:
            self._tell(400, f"NAME=VALUE words joined by &, at most {_MOST}")
            return
        if len(given) > len(dict(given)):
            self._tell(400, "every word once")
            return
        reply = self.server.worker.answer(command, dict(given))
        self._send(reply.status, json.dumps(reply.document, allow_nan=False).encode(), _JSON)

    def _tell(self, status: int, expected: str) -> None:
        reply = Answer(status, {"schema_version": 1, "errors": [{"key": "", "found": "request", "expected": expected}]})
        self._send(status, json.dumps(reply.document).encode(), _JSON)

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(body))), ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-cache"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # the client has gone
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: no request is recorded."""


@cache
def _file(name: str) -> bytes:
    return (PAGE / name).read_bytes()


@cache
def openapi() -> Mapping[str, Any]:
    """Returns the API as an OpenAPI 3.1 document."""
    from projector.serve import answers

    described = {"model": "an architecture", "gpu": "its usual cluster"}
    described |= {"cluster": "in place of gpu", "framework": "that trains"}
    named = [_parameter(name, about, list(answers.names_of(name) or ())) for name, about in described.items()]
    numbers = [
        (name, _parameter(name, f"from {low:g} to {high:g}", kind="number"), commands)
        for name, (low, high, commands) in answers.NUMBERS.items()
    ]
    recipe = [_parameter(each["name"], each["help"], each["choices"]) for each in answers.known()["fields"]]
    what_if = "a what-if, as are all keys gpu.… and cluster.… of files of hardware"
    recipe.append(_parameter("gpu.hbm_bytes_per_s", what_if))
    # of one question alone: several GPUs, and as few of them as hold the model
    asked = {"gpu": _parameter("gpu", "its usual cluster; several with commas, side by side")}
    asked["gpus"] = _parameter("gpus", "a number, or min: the fewest on which it fits")
    paths: dict[str, Any] = {"/v1/catalogue": {"get": {"summary": "names and fields", "responses": _REPLIES}}}
    for name, about in COMMANDS.items():
        extra = [each for _, each, commands in numbers if name in commands]
        parameters = [*named, *extra, *recipe]
        if name == "ask":
            parameters = [asked.get(each["name"], each) for each in parameters]
        paths[f"/v1/{name}"] = {"get": {"summary": about, "parameters": parameters, "responses": _REPLIES}}
    return {"openapi": "3.1.0", "info": {"title": "projector", "version": __version__}, "paths": paths}


def _parameter(name: str, about: str, choices: list[str] | None = None, kind: str = "string") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind} | ({"enum": choices} if choices else {})
    return {"name": name, "in": "query", "description": about, "schema": schema}
