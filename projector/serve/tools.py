"""The tools of a Model Context Protocol server: the answers of the command line for agents, over standard input and output.

Documents are those of ``--json``. All tools but ``score`` name the catalogues and read no file; ``score`` reads the log and
the configuration that the agent names, as its user could.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from projector.errors import InputError, Problem
from projector.serve.answers import COMMANDS
from projector.serve.worker import Worker

Word = str | int | float | bool
_RECIPE = (
    "recipe: fields by Megatron-LM's names or the short ones, such as {'tp': 8, 'pp': 4, 'seq_length': 8192}, and what-ifs "
    "such as {'gpu.hbm_bytes_per_s': 4e12}; what is left out is chosen and listed as assumed. Seconds, bytes, tokens."
)


def server(seconds: float) -> Any:
    """Returns the server, which is not yet running. ``seconds``: limit of an answer. Raises :class:`InputError` without
    the package ``mcp``."""
    try:
        from mcp.server import MCPServer
    except ImportError:
        expected = "the package mcp: pip install 'projector-harness[mcp]'"
        raise InputError([Problem("projector mcp", "", "nothing that speaks MCP", expected)]) from None
    tools, worker = MCPServer("projector"), Worker(seconds)

    def document(command: str, **words: Word | None) -> dict[str, Any]:
        given = {name: value for name, value in words.items() if value is not None}
        query = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        return dict(worker.answer(command, query).document)

    def ask(model: str, gpu: str, gpus: int | None = None, recipe: dict[str, Word] | None = None) -> dict[str, Any]:
        return document("ask", model=model, gpu=gpu, gpus=gpus, **(recipe or {}))

    def performance(model: str, gpu: str, gpus: int, recipe: dict[str, Word] | None = None) -> dict[str, Any]:
        return document("performance", model=model, gpu=gpu, gpus=gpus, **(recipe or {}))

    def memory(model: str, gpu: str, gpus: int, recipe: dict[str, Word] | None = None) -> dict[str, Any]:
        return document("memory", model=model, gpu=gpu, gpus=gpus, **(recipe or {}))

    def search(
        model: str, gpu: str, gpus: int, budget: float = 3.0, top: int = 5, recipe: dict[str, Word] | None = None
    ) -> dict[str, Any]:
        return document("search", model=model, gpu=gpu, gpus=gpus, budget=budget, top=top, **(recipe or {}))

    for each in (ask, performance, memory, search):
        tools.add_tool(each, description=f"{COMMANDS[each.__name__]}. {_RECIPE}")
    tools.add_tool(score, description=str(score.__doc__))
    tools.add_tool(names, description=str(names.__doc__))
    return tools


def score(log: str, config: str | None = None, gpu: str | None = None, gpus: int | None = None) -> dict[str, Any]:
    """Returns whether the training run of a log is as fast as it should be: measured beside expected, by part, a
    verdict (normal, slow, fast) and what most likely explains it. config: the launch script or configuration, where the
    log prints none."""
    from projector.cli import as_json
    from projector.cli.evidence import scored

    try:
        runs = scored(Path(log), Path(config) if config else None, gpu, gpus)
    except InputError as error:
        return {"errors": error.lines()}
    document: dict[str, Any] = as_json.plain({"runs": runs})
    return document


def names(kind: str) -> list[str]:
    """Returns what the catalogue knows. kind: model, gpu, cluster or framework."""
    from projector.serve.answers import names_of

    return list(names_of(kind) or ("model", "gpu", "cluster", "framework"))
