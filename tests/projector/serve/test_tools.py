"""``projector mcp``: a client of the protocol lists the tools and calls them; the file that tells agents of them."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import command_line
import pytest

ROOT = Path(__file__).resolve().parents[3]
SKILL = ROOT / "examples" / "agents" / "SKILL.md"
LLAMA = {"model": "llama3.1_8b", "gpu": "h100_sxm", "gpus": 16}
CALLS: dict[str, dict[str, Any]] = {
    "ask": {**LLAMA, "recipe": {"budget": 0}},
    "performance": {**LLAMA, "recipe": {"tp": 2, "global_batch_size": 64, "tp_comm_overlap": False}},
    "memory": {**LLAMA, "recipe": {"tp": 2}},
    "search": {**LLAMA, "budget": 0.1, "recipe": {"seq_length": 4096}},
    "score": {"log": str(ROOT / "measured/logs/cpu_gpt.log.gz")},
    "names": {"kind": "gpu"},
}


@pytest.mark.slow
def test_a_client_calls_every_tool() -> None:
    pytest.importorskip("mcp", reason="mcp is not installed (extra mcp)")
    import anyio
    from mcp import ClientSession, StdioServerParameters, stdio_client

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = StdioServerParameters(command=sys.executable, args=["-m", "projector", "mcp"], env=environment)

    async def told() -> dict[str, Any]:
        async with stdio_client(started) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            known = {tool.name for tool in (await session.list_tools()).tools}
            assert known == set(CALLS)
            found = {name: await session.call_tool(name, words) for name, words in CALLS.items()}
            wrong = await session.call_tool("memory", {**LLAMA, "recipe": {"tp": 3}})
            return {**found, "wrong": wrong}

    found = {name: " ".join(part.text for part in each.content) for name, each in anyio.run(told).items()}
    flags = ("--model", "llama3.1_8b", "--gpu", "h100_sxm", "--gpus", "16", "--tp", "2", "--gbs", "64")
    line = command_line.run("projector", "performance", *flags, "--set", "tp_comm_overlap=false", "--json").stdout
    seconds = json.loads(line)["projections"]["simulate"]["step_seconds"]
    assert json.loads(found["performance"])["projections"]["simulate"]["step_seconds"] == seconds
    assert json.loads(found["ask"])["answers"][0]["fits"] is True
    assert json.loads(found["memory"])["memory"]["ranks"]
    assert json.loads(found["search"])["best"]
    assert json.loads(found["score"])["runs"][0]["verdict"] == "slow"
    assert "h100_sxm" in found["names"]
    assert "a divisor of num_attention_heads" in found["wrong"]


def test_without_the_package_the_command_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    done = command_line.run("projector", "mcp")
    assert done.returncode == 2
    assert "pip install 'projector-harness[mcp]'" in done.stderr


def test_the_file_for_agents_names_commands_that_work() -> None:
    from harness.cli import _parser as harness
    from projector.cli import _parser as projector
    from projector.cli.parser import parse

    text = SKILL.read_text(encoding="utf-8")
    head = text.split("---")[1]
    assert {"name", "description"} <= {line.partition(":")[0] for line in head.splitlines()}
    lines = [line.partition("  #")[0] for line in text.splitlines() if line.startswith(("projector ", "harness "))]
    assert len(lines) >= 6
    for line in lines:
        program, *words = shlex.split(line)
        parse({"projector": projector(), "harness": harness()}[program], words)
