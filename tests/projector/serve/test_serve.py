"""``projector serve``: documents are those of the command line, a request reads no file and has its limits; the page."""

import builtins
import json
import os
import re
import shlex
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import command_line
import pytest
from asked import refusal
from tabled import tabled

import projector as pj
from projector.errors import InputError
from projector.io.rows import evenly
from projector.serve import answers
from projector.serve.server import Server, openapi
from projector.serve.worker import Worker, computed

QUESTION = {"model": "llama3.1_8b", "gpu": "h100_sxm", "gpus": "16", "tp": "2", "pp": "2", "global_batch_size": "64"}
FLAGS = ("--model", "llama3.1_8b", "--gpu", "h100_sxm", "--gpus", "16", "--tp", "2", "--pp", "2", "--gbs", "64")


@pytest.mark.parametrize("command", ["performance", "memory", "layers"])
def test_documents_are_those_of_the_command_line(command: str) -> None:
    told = command_line.document("projector", command, *FLAGS)
    made = answers.answer(command, QUESTION)
    assert made.keys() == told.keys()
    same = set(told) - {"assumed"}  # fields are said by --set here
    assert {name: made[name] for name in same} == {name: told[name] for name in same}


def test_the_view_says_the_command_and_the_python_that_say_the_same() -> None:
    view = answers.answer("view", {**QUESTION, "gpu.hbm_bytes_per_s": "4e12"})
    assert len(view["activations_by_module"]) == 2  # one a rank
    seconds = view["projections"]["simulate"]["step_seconds"]
    words = view["shell"].replace("\\\n", " ").split()
    assert command_line.document(*words)["projections"]["simulate"]["step_seconds"] == seconds
    names: dict[str, Any] = {}
    exec(view["python"].replace("pj.project", "made = pj.project"), names)
    assert names["made"].step_seconds == seconds
    assert seconds < answers.answer("view", QUESTION)["projections"]["simulate"]["step_seconds"]


def test_a_switch_of_megatron_is_a_word_and_another_value_of_it_is_none() -> None:
    switches = {"use_distributed_optimizer": "true", "no_rope_fusion": "true"}
    argv = answers.words("performance", {**QUESTION, **switches})
    assert argv[-4:] == ["--set", "data_parallel_sharding=optim", "--set", "apply_rope_fusion=False"]
    with pytest.raises(InputError, match="use_distributed_optimizer: found 'perhaps'"):
        answers.words("performance", {**QUESTION, "use_distributed_optimizer": "perhaps"})


def test_a_timeline_ends_with_its_step_and_keeps_its_ends() -> None:
    made = answers.answer("view", QUESTION)["timeline"]
    ends = [max(each[-1] for each in (*rank["actions"], *rank["spans"])) for rank in made["ranks"]]
    assert max(ends) <= made["seconds"] * 1.001
    assert [rank["rank"] for rank in made["ranks"]] == [0, 1]
    assert evenly(64, 5) == [0, 16, 32, 47, 63]
    assert evenly(3, 5) == [0, 1, 2]


def test_several_gpus_and_the_fewest_of_each_are_one_question() -> None:
    question = {"model": "llama3.1_8b", "gpu": "h100,mi300x", "gpus": "min", "budget": "0"}
    made = answers.answer("ask", question)
    flags = [word for name, value in question.items() for word in (f"--{name}", value)]
    told = command_line.document("projector", "ask", *flags)
    sizes = [(each["cluster"], each["gpus"], each["words"]) for each in made["answers"]]
    assert sizes == [(each["cluster"], each["gpus"], each["words"]) for each in told["answers"]]
    assert [name for name, _, _ in sizes] == ["h100_sxm", "mi300x"]
    asked = {each["name"]: each for each in openapi()["paths"]["/v1/ask"]["get"]["parameters"]}
    assert not asked["gpu"]["schema"].keys() & {"enum"}
    for command, gpu in (("ask", "h100,nothing"), ("ask", ",".join(["h100"] * 9)), ("view", "h100,mi300x")):
        assert computed(command, {**question, "gpu": gpu}).document["errors"][0]["key"] == "gpu"


@pytest.mark.parametrize(("change", "key"), tabled("refusals", "questions"))
def test_what_is_no_question_is_refused_by_its_name(change: dict[str, str], key: str) -> None:
    told = computed("performance", {**QUESTION, **change})
    assert told.status == 400
    assert key in {each["key"] for each in told.document["errors"]}


def test_a_question_opens_no_file_that_it_names(monkeypatch, tmp_path) -> None:
    answers.answer("view", QUESTION)  # catalogues are read
    opened: list[str] = []
    real = builtins.open
    monkeypatch.setattr(builtins, "open", lambda file, *a, **k: opened.append(str(file)) or real(file, *a, **k))
    for name in ("model", "gpu", "cluster", "framework", "pipeline_model_parallel_layout", "gpu.name", "optimizer"):
        computed("view", {**QUESTION, name: str(tmp_path / "file.yaml")})
    assert not [name for name in opened if str(tmp_path) in name]


def test_a_missing_word_is_named() -> None:
    refusal(answers.words, "view", {"gpu": "h100_sxm"}, match="model: found 'nothing'")
    spelled = answers.words("view", {"model": "Qwen/Qwen3-8B", "gpu": "H100"})
    assert {"qwen3_8b", "h100_sxm"} <= set(spelled)


def test_what_takes_too_long_is_stopped_and_the_next_is_answered() -> None:
    worker = Worker(seconds=0.01)
    try:
        late = worker.answer("view", QUESTION)
        assert late.status == 503
        assert "0.01 s" in str(late.document)
        worker._seconds = 60.0
        assert worker.answer("view", QUESTION).status == 200
        process = worker._process
        assert worker.answer("view", QUESTION).status == 200
        assert worker._process is process
    finally:
        worker.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server("127.0.0.1", 0, 60.0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetched(url: str, **headers: str) -> tuple[int, Any, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_the_api_over_http(address: str) -> None:
    status, headers, body = fetched(f"{address}/v1/performance?{urlencode(QUESTION)}")
    assert status == 200
    words = {name: int(value) if value.isdigit() else value for name, value in QUESTION.items()}
    assert json.loads(body)["projections"]["simulate"]["step_seconds"] == pj.project(**words).step_seconds
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
    codes = {
        **dict.fromkeys(("/v1/nothing", "/../README.md", "/page/serve.js"), 404),
        **dict.fromkeys(
            ("/v1/view?tp", "/v1/view?tp=1&tp=2", "/v1/view?" + urlencode({**QUESTION, "model": "no"})), 400
        ),
        "/v1/view?" + "a" * 5000: 414,
        "/v1/catalogue": 200,
        "/": 200,
    }
    assert {path: fetched(address + path)[0] for path in codes} == codes


def test_another_name_of_this_host_is_refused(address: str) -> None:
    assert fetched(address + "/v1/catalogue", Host="evil.example")[0] == 403
    assert fetched(address + "/v1/catalogue", Host="localhost:1")[0] == 200


def test_openapi_names_every_path_and_word() -> None:
    made = openapi()
    assert set(made["paths"]) == {f"/v1/{name}" for name in (*answers.COMMANDS, "catalogue")}
    names = {each["name"] for each in made["paths"]["/v1/search"]["get"]["parameters"]}
    assert names >= {"model", "gpu", "gpus", "tp", "budget"}
    assert "tokens" not in names


def test_the_command_refuses_a_port_that_is_taken(address: str) -> None:
    assert "--port: found" in command_line.refused("projector", "serve", "--port", address.rsplit(":", 1)[1])


def opened(chromium: Any, url: str, width: int = 1300, theme: str = "light") -> Any:
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.goto(url)
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    return page


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1300, "light"), (800, "dark"), (500, "light"), (500, "dark")])
def test_the_page_shows_everything_at_every_width(chromium: Any, address: str, width: int, theme: str) -> None:
    page = opened(chromium, f"{address}/?{urlencode(QUESTION)}", width, theme)
    assert page.evaluate("document.documentElement.dataset.error") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#verdict").inner_text().startswith("Fits: ")
    assert page.locator("#tiles li").count() == 4
    assert page.locator("#timeline rect").count() > 20
    assert page.locator("#roofline circle").count() > 5
    assert page.locator("#layouts tbody tr").count() > 2
    speed, _, room = page.locator("#layouts tbody tr").first.locator("td.n").all_inner_texts()
    assert re.fullmatch(r"[\d.]+\s+[\d.]+–[\d.]+", speed)
    assert room.split()[-1] == "fits"
    assert "--tp 2" in page.locator("#shell").inner_text()
    page.close()


@pytest.mark.slow
def test_an_impossible_run_shows_what_is_missing_and_no_throughput(chromium: Any, address: str) -> None:
    page = opened(chromium, f"{address}/?{urlencode({**QUESTION, 'model': 'llama3_70b', 'micro_batch_size': 4})}")
    assert page.locator("#verdict").inner_text().startswith("Does not fit: ")
    tiles = page.locator("#tiles").inner_text()
    assert "too much" in tiles.split("if it fitted")[0]
    assert "tokens/s" not in tiles
    page.close()


@pytest.mark.slow
def test_controls_make_links_and_links_make_answers(chromium: Any, address: str) -> None:
    page = opened(chromium, f"{address}/?{urlencode({**QUESTION, 'gpu': 'h100'})}")
    before = page.locator("#tiles b").first.inner_text()
    page.locator("[name=tp]").fill("2")  # a slider of powers of two
    page.wait_for_timeout(400)
    page.wait_for_selector("#answer:not([data-busy])", timeout=60_000)
    assert "tp=4" in page.url
    assert page.locator("[name=gpu]").input_value() == "h100_sxm"  # whatever the link calls it
    assert page.locator("#tiles b").first.inner_text() != before
    again = opened(chromium, page.url)
    assert again.locator("#tiles b").first.inner_text() == page.locator("#tiles b").first.inner_text()
    page.goto(f"{address}/?{urlencode({**QUESTION, 'tp': '3'})}")
    page.wait_for_selector("#verdict.wrong")
    assert "a divisor of num_attention_heads" in page.locator("#verdict").inner_text()
    assert not page.locator("#tiles").is_visible()


# ``projector mcp``: a client of the protocol lists the tools and calls them; the file that tells agents of them.


ROOT = Path(__file__).resolve().parents[3]
SKILL = ROOT / "examples" / "agents" / "SKILL.md"
LLAMA = {"model": "llama3.1_8b", "gpu": "h100_sxm", "gpus": 16}
CALLS: dict[str, dict[str, Any]] = {
    "ask": {"model": "llama3.1_8b", "gpu": "h100,mi300x", "gpus": "min", "recipe": {"budget": 0}},
    "performance": {**LLAMA, "recipe": {"tp": 2, "global_batch_size": 64, "tp_comm_overlap": False}},
    "memory": {**LLAMA, "recipe": {"tp": 2}},
    "search": {**LLAMA, "budget": 0.1, "recipe": {"seq_length": 4096}},
    "score": {"log": str(ROOT / "measured/logs/cpu_gpt.log.gz")},
    "names": {"kind": "gpu"},
}
#: Mistakes, none of which may go by in silence, each with words of what is said.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("memory", {**LLAMA, "recipe": {"tp": 3}}, "a divisor of num_attention_heads"),
    ("performance", {**LLAMA, "global_batch_size": 64}, "global_batch_size"),
    ("ask", {**LLAMA, "recipe": {"gpus": 8}}, "said once"),
    ("score", {"log": "nowhere.log"}, "nowhere.log does not exist"),
]


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
            refused = {name: await session.call_tool(name, words) for name, words, _ in REFUSED}
            assert all(each.is_error for each in refused.values())
            return {"told": found, "refused": refused}

    found, refused = (
        {name: " ".join(part.text for part in each.content) for name, each in results.items()}
        for results in anyio.run(told).values()
    )
    flags = ("--model", "llama3.1_8b", "--gpu", "h100_sxm", "--gpus", "16", "--tp", "2", "--gbs", "64")
    line = command_line.document("projector", "performance", *flags, "--set", "tp_comm_overlap=false")
    seconds = line["projections"]["simulate"]["step_seconds"]
    assert json.loads(found["performance"])["projections"]["simulate"]["step_seconds"] == seconds
    assert json.loads(found["ask"])["answers"][0]["fits"] is True
    assert json.loads(found["memory"])["memory"]["ranks"]
    assert json.loads(found["search"])["best"]
    scored = command_line.document("harness", "score", CALLS["score"]["log"])
    assert json.loads(found["score"])["runs"][0]["verdict"] == scored["runs"][0]["verdict"]
    assert "h100_sxm" in found["names"]
    assert all(expected in refused[name] for name, _, expected in REFUSED)


def test_without_the_package_the_command_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert "pip install 'projector-harness[mcp]'" in command_line.refused("projector", "mcp")


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
