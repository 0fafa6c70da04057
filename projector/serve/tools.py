"""The tools of a Model Context Protocol server: the answers of the command line for agents, over standard input and output.

Documents are those of ``--json``. All tools but ``score`` name the catalogues and read no file; ``score`` reads the log and
the configuration that the agent names, as its user could.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any, Literal

from projector.errors import InputError, Problem
from projector.serve.answers import COMMANDS
from projector.serve.worker import Worker

Word = str | int | float | bool
_RECIPE = (
    "recipe: fields by Megatron-LM's names or the short ones, such as {'tp': 8, 'pp': 4, 'seq_length': 8192}, and what-ifs "
    "such as {'gpu.hbm_bytes_per_s': 4e12}; of ask tokens, price and budget, too. What is left out is chosen and listed as "
    "assumed. Seconds, bytes, tokens."
)


def server(seconds: float) -> Any:
    """Returns the server, which is not yet running. ``seconds``: limit of an answer. Raises :class:`InputError` without
    the package ``mcp``."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool
    except ImportError:
        expected = "the package mcp: pip install 'projector-harness[mcp]'"
        raise InputError([Problem("projector mcp", "", "nothing that speaks MCP", expected)]) from None
    worker = Worker(seconds)

    def document(command: str, recipe: dict[str, Word] | None, **words: Word | None) -> dict[str, Any]:
        given = {name: value for name, value in words.items() if value is not None}
        if twice := given.keys() & (recipe or {}).keys():
            raise InputError([Problem("recipe", name, "said beside it", "said once") for name in sorted(twice)])
        given |= recipe or {}
        query = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        answer = worker.answer(command, query)
        if answer.status != 200:
            raise InputError([Problem("", **error) for error in answer.document["errors"]])
        return dict(answer.document)

    def question(command: str) -> Any:
        def told(
            model: str, gpu: str, gpus: int | None = None, recipe: dict[str, Word] | None = None
        ) -> dict[str, Any]:
            return document(command, recipe, model=model, gpu=gpu, gpus=gpus)

        return told

    def ask(
        model: str, gpu: str, gpus: int | Literal["min"] | None = None, recipe: dict[str, Word] | None = None
    ) -> dict[str, Any]:
        return document("ask", recipe, model=model, gpu=gpu, gpus=gpus)

    def search(
        model: str, gpu: str, gpus: int, budget: float = 3.0, top: int = 5, recipe: dict[str, Word] | None = None
    ) -> dict[str, Any]:
        return document("search", recipe, model=model, gpu=gpu, gpus=gpus, budget=budget, top=top)

    def tool(name: str, function: Any, description: object) -> Any:
        @wraps(function)
        def told(**words: Any) -> Any:
            try:
                return function(**words)
            except InputError as error:
                raise ToolError(str(error)) from None

        made = Tool.from_function(told, name, description=str(description))
        arguments = made.fn_metadata.arg_model  # by itself it leaves out, in silence, arguments that it does not know
        strict = type(arguments)(arguments.__name__, (arguments,), {"model_config": {"extra": "forbid"}})
        made.fn_metadata.arg_model, made.parameters = strict, strict.model_json_schema(by_alias=True)
        return made

    functions = {"ask": ask, **{name: question(name) for name in ("performance", "memory")}, "search": search}
    more = {"ask": " gpu: several with commas, side by side; gpus: min for the fewest on which it fits."}
    made = [tool(name, of, f"{COMMANDS[name]}.{more.get(name, '')} {_RECIPE}") for name, of in functions.items()]
    return MCPServer("projector", tools=[*made, *(tool(each.__name__, each, each.__doc__) for each in (score, names))])


def score(log: str, config: str | None = None, gpu: str | None = None, gpus: int | None = None) -> dict[str, Any]:
    """Returns whether the training run of a log is as fast as it should be: measured beside expected, by part, a
    verdict (normal, slow, fast) and what most likely explains it. config: the launch script or configuration, where the
    log prints none."""
    from projector.cli import as_json
    from projector.cli.evidence import scored

    document: dict[str, Any] = as_json.plain({"runs": scored(Path(log), Path(config) if config else None, gpu, gpus)})
    return document


def names(kind: str) -> list[str]:
    """Returns what the catalogue knows. kind: model, gpu, cluster or framework."""
    from projector.serve.answers import names_of

    return list(names_of(kind) or ("model", "gpu", "cluster", "framework"))
