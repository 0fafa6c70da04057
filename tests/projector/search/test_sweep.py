"""A sweep projects every point once, whoever runs it and however often it is interrupted; bad grids are one clear error."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import command_line
import pytest
import yaml
from asked import put, refusal, says

from projector import project
from projector.__main__ import main
from projector.hardware import catalogue
from projector.search.sweep import grid, points, run, store
from tests.workloads import workload

ROOT = Path(__file__).resolve().parents[3]
GRID: dict[str, Any] = {
    "sweep": 1, "model": "llama3.1_8b", "system": ["h100", "b200"], "gpus": [8, 16], "tokens": 1e12,
    "recipe": {"global_batch_size": 32, "seq_length": 4096, "micro_batch_size": [1, 2], "tp": [1, 2, 3, 8], "pp": [1, 2]},
}  # fmt: skip
#: Fields whose values a search of a test need not compare.
OF_FEW: dict[str, Any] = {"recompute_granularity": ["none"], "data_parallel_sharding": ["optim"]}


def written(folder: Path, content: dict[str, Any], name: str = "grid.yaml") -> Path:
    return put(folder / name, yaml.safe_dump(content))


def kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_point_is_what_project_says_of_it(tmp_path) -> None:
    made = grid.read(written(tmp_path, GRID))
    found = points.rows(list(made.points()))
    assert len(found) == len(made) == 2 * 2 * 2 * 4 * 2
    assert {row["status"] for row in found if row["recipe.tp"] == 3} == {"invalid"}
    row = next(
        row for row in found if (row["system"], row["gpus"], row["recipe.tp"], row["recipe.pp"]) == ("b200", 16, 8, 2)
    )
    sizes = {"micro_batch_size": row["recipe.micro_batch_size"], "global_batch_size": 32}
    load = workload("llama3.1_8b", 16, **sizes, tp=8, pp=2)
    alone = project(load, catalogue.default_cluster("b200"))
    assert (row["step_seconds"], row["tgs"]) == pytest.approx((alone.step_seconds, alone.tgs))


def test_larger_systems_are_no_slower_and_keys_are_of_contents(tmp_path) -> None:
    some = {**GRID, "system": "h100", "gpus": 8, "scale": {"flops": [1, 2], "memory_bandwidth": [1, 2]}}
    found = points.rows(list(grid.read(written(tmp_path, some)).points()))
    by: dict[tuple[float, float], list[float]] = {}
    for row in found:
        by.setdefault((row["scale.flops"], row["scale.memory_bandwidth"]), []).append(row["tgs"] or 0.0)
    for better in ((2, 1), (1, 2), (2, 2)):
        assert all(one <= other * (1 + 1e-9) for one, other in zip(by[1, 1], by[better], strict=True))
    assert points.scaled("h100", (("flops", 2),)) is points.scaled("h100", (("flops", 2),))
    assert len({row["key"] for row in found}) == len(found)
    source = ROOT / "projector" / "hardware" / "gpus" / "h100_sxm.yaml"
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_bytes(source.read_bytes())
    other.write_bytes(source.read_bytes())
    keys = [next(grid.read(written(tmp_path, {**some, "system": file.name})).points()) for file in (one, other)]
    assert grid.key_of(keys[0]) == grid.key_of(keys[1])
    assert points.rows([keys[0]])[0]["tgs"] == pytest.approx(found[0]["tgs"])


def test_an_interrupted_sweep_goes_on(tmp_path, capsys) -> None:
    file, out = written(tmp_path, GRID), tmp_path / "out.jsonl"
    half = written(tmp_path, {**GRID, "gpus": 8}, "half.yaml")
    assert command_line.document("projector", "sweep", half, "--out", out)["new"] == 32
    text = out.read_text()
    out.write_text(text[:-20])  # the last line was cut
    assert main(["sweep", str(file), "--out", str(out), "--json", "--plots", str(tmp_path / "figures")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["points"], made["new"]) == (64, 33)
    keys = [row["key"] for row in kept(out)]
    assert len(keys) == len(set(keys)) == 64
    assert len(made["best"]) == 4
    assert {Path(each).name for each in made["plots"]} >= {"llama3.1_8b_scaling.png", "llama3.1_8b_h100_optimum.png"}
    assert all(Path(each).stat().st_size > 10_000 for each in made["plots"])
    for row in made["best"]:  # projected points have what searched ones have
        assert sum(value or 0 for name, value in row.items() if name.startswith("time.")) == pytest.approx(
            row["step_seconds"]
        )
        assert row["gpus"] == row["best.tp"] * row["best.pp"] * row["best.dp"]
    assert "32 points (0 new)" in command_line.told("projector", "sweep", half, "--out", out)


def test_a_machine_that_does_not_exist_is_drawn_in_the_page(tmp_path, capsys) -> None:
    scale = {"flops": [1, 2], "memory_bandwidth+memory_capacity": [0.01, 1, 2], "inter_bandwidth": [1, 2]}
    recipe = {"global_batch_size": 16, "seq_length": 16384, "tp": [1, 8], "micro_batch_size": 1}
    content = {**GRID, "system": "h100", "gpus": 16, "scale": scale, "recipe": recipe}
    words = ["--out", str(tmp_path / "out.jsonl"), "--json", "--page", str(tmp_path / "page.html")]
    made = json.loads(command_line.told("projector", "sweep", written(tmp_path, content), *words))
    assert made["status"]["out-of-memory"] >= 2 * 2 * 2
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == page.count("<figure") == 1
    assert "llama3.1_8b_h100_16_flops_inter_bandwidth_memory_bandwidth_memory_capacity" in page
    for words_of_axes in ("bf16 peak (TFLOP/s): 1979", "days to 1T tokens", "usable memory (GiB)", ">0.791<"):
        assert words_of_axes in page
    assert ("data:image/png" in page) == ("img-src data:" in page)  # cells are pictures in the picture
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    fast = {(row["scale.flops"], row["scale.memory_bandwidth+memory_capacity"]): row["tgs"] for row in made["best"]}
    assert fast[2, 1] > fast[1, 1]
    assert fast[1, 2] > fast[1, 1]
    nothing = written(tmp_path, {**content, "scale": {"memory_capacity": [0.001, 0.002]}}, "nothing.yaml")
    assert (
        main(["sweep", str(nothing), "--out", str(tmp_path / "none.jsonl"), "--page", str(tmp_path / "none.html")]) == 0
    )
    assert "out-of-memory" in capsys.readouterr().out


def test_points_are_searched(tmp_path) -> None:
    recipe = {"global_batch_size": 32, "seq_length": 4096}
    some = {**GRID, "point": "search", "system": "h100", "gpus": [8, 16], "recipe": recipe}
    some["search"] = {"fix": {"tp": [1, 2], "pp": [1], "cp": [1], "micro_batch_size": [1], **OF_FEW}}
    made = grid.read(written(tmp_path, some))
    found = points.rows(list(made.points()))
    assert [row["gpus"] for row in found] == [8, 16]
    for row in found:
        parts = [value for name, value in row.items() if name.startswith("time.")]
        assert sum(parts) == pytest.approx(row["step_seconds"])
        assert row["best.tp"] in (1, 2)
        assert row["gap"] == 0


def test_processes_find_what_one_core_finds(tmp_path) -> None:
    made = grid.read(written(tmp_path, GRID))
    alone = sorted(points.rows(list(made.points())), key=lambda row: row["key"])
    out = store.opened(tmp_path / "two.jsonl")
    run.run(made, out, workers=2)
    out.close()
    assert sorted(kept(tmp_path / "two.jsonl"), key=lambda row: row["key"]) == alone


def test_a_dask_worker_that_dies_loses_and_doubles_nothing(tmp_path, monkeypatch) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (the extra: sweep)")
    monkeypatch.setattr(run, "_PROJECTED", 4)
    made = grid.read(written(tmp_path, GRID))
    out = store.opened(tmp_path / "dask.jsonl")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        workers = list(cluster.workers.values())
        killed: list[int] = []

        def told(done: int) -> None:
            if not killed and done >= 8:
                killed.append(workers[0].pid)
                os.kill(workers[0].pid, signal.SIGKILL)

        assert run.run(made, out, scheduler=cluster.scheduler_address, told=told) == 64
    out.close()
    assert killed
    keys = [row["key"] for row in kept(tmp_path / "dask.jsonl")]
    assert len(keys) == len(set(keys)) == 64


def test_a_killed_sweep_loses_no_batch(tmp_path) -> None:
    more = {**GRID["recipe"], "global_batch_size": [32, 64, 128, 256, 512, 1024, 2048, 4096]}
    file, out = written(tmp_path, {**GRID, "recipe": more}), tmp_path / "out.jsonl"
    script = "import projector.search.sweep.run as r; r._PROJECTED = 16; from projector.__main__ import main; main()"
    words = [sys.executable, "-c", script, "sweep", str(file), "--out", str(out)]
    child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    while child.poll() is None and not (out.exists() and out.read_text().count("\n") > 20):
        time.sleep(0.02)
    child.kill()
    child.wait()
    before = kept(out) if out.read_text().endswith("\n") else []
    assert main(["sweep", str(file), "--out", str(out), "--json"]) == 0
    after = kept(out)
    assert after[: len(before)] == before
    assert len({row["key"] for row in after}) == len(after) == 512


def test_parquet_is_a_folder_of_whole_parts(tmp_path) -> None:
    made = grid.read(written(tmp_path, GRID))
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra: sweep)")
    for new in (64, 0):
        out = store.opened(tmp_path / "out.parquet")
        assert run.run(made, out) == new
        assert len(out.frame()) == 64
        out.close()
    pd = pytest.importorskip("pandas")
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 64  # as others read it


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sweep": 2}, "version of this format"),
    ({"modell": "x"}, "model"),
    ({"gpus": [8, 0]}, "whole number"),
    ({"gpus": []}, "no value"),
    ({"model": "llama9"}, "llama"),
    ({"system": "h900"}, "nearest: h800"),
    ({"gpu": "b200"}, "one of system and gpu"),
    ({"scale": {"flops": [float("nan")]}}, "factor above 0"),
    ({"scale": {"speed": [1]}}, "flops"),
    ({"tokens": float("inf")}, "15T"),
    ({"tokens": "1X"}, "15T"),
    ({"tokens": True}, "15T"),
    ({"point": "guess"}, "projection or search"),
    ({"recipe": {**GRID["recipe"], "tp": [1, "x"]}}, "tp"),
    ({"recipe": {**GRID["recipe"], "tpp": [1]}}, "tpp"),
    ({"recipe": {**GRID["recipe"], "tp": list(range(1, 3001)), "pp": list(range(1, 3001))}}, "points"),
    ({"point": "search", "search": {"objective": "cost"}}, "objective"),
]


def test_bad_grids_are_one_clear_error(tmp_path, capsys) -> None:
    for change, said in WRONG:
        refusal(grid.read, written(tmp_path, {**GRID, **change}), match=said)
    for words in ("1T", "1e12", 1e12, 10**12, "1000B"):
        assert grid.read(written(tmp_path, {**GRID, "tokens": words})).tokens == 1e12
    both = written(tmp_path, {**GRID, "gpus": [0], "tokens": -1})
    told = command_line.refused("projector", "sweep", both, "--out", tmp_path / "none.jsonl")
    says(told, "gpus", "tokens")
    assert not (tmp_path / "none.jsonl").exists()
    file, other = written(tmp_path, GRID), tmp_path / "other.jsonl"
    for text in ("something else\n", '{"sweep": 99}\n', "no end of line"):
        other.write_text(text)
        assert main(["sweep", str(file), "--out", str(other)]) == 2
        assert other.read_text() == text
    for words in (
        ["--out", "a.csv"],
        ["--out", str(tmp_path / "none" / "a.jsonl")],
        ["--scheduler", "tcp://127.0.0.1:1"],
    ):
        given = words if words[0] == "--out" else [*words, "--out", str(tmp_path / "new.jsonl")]
        assert main(["sweep", str(file), *given]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_pictures_of_a_search(tmp_path) -> None:
    words = ["search", "--model", "llama3.1_8b", "--gpu", "h100", "--gpus", "8", "--gbs", "16", "--seq-length", "4096"]
    held = [f"--fix={each}" for each in ("tp=1,2", "cp=1", "pp=1", "micro_batch_size=1", "recompute_granularity=none")]
    assert main([*words, *held, "--json", "--plots", str(tmp_path), "--page", str(tmp_path / "all.html")]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"front.png", "breakdown.png", "all.html"}
    page = (tmp_path / "all.html").read_text()
    assert page.count("<svg") == 2
    assert re.search(r"<pre>projector performance [^<]*\\\n[^<]*</pre>", page)
    assert "Best configurations" in page
    assert all(file.stat().st_size > 10_000 for file in tmp_path.iterdir())
    assert main([*words, *held, "--plots", str(put(tmp_path / "file", ""))]) == 2


def test_the_whole_run_of_a_row_is_that_of_plan(tmp_path, capsys) -> None:
    recipe = {"global_batch_size": 256, "seq_length": 8192, "tp": 2, "data_parallel_sharding": "optim"}
    recipe["micro_batch_size"] = 1
    content = {"sweep": 1, "model": "llama3.1_8b", "system": "h100", "gpus": 64, "tokens": "1T", "recipe": recipe}
    assert (
        main(["sweep", str(written(tmp_path, content)), "--out", str(tmp_path / "o.jsonl"), "--price", "2.5", "--json"])
        == 0
    )
    (row,) = json.loads(capsys.readouterr().out)["best"]
    words = "plan --model llama3.1_8b --gpu h100 --gpus 64 --gbs 256 --seq 8192 --tp 2 --use-distributed-optimizer"
    middle = command_line.document("projector", *words.split(), "--tokens", "1T", "--price", "2.5")["figures"]["middle"]
    assert [row[f"run.{name}"] for name in ("days", "mwh", "cost")] == [
        pytest.approx(middle[name], rel=1e-3) for name in ("days", "mwh", "cost")
    ]


def test_flags_are_a_grid_and_stand_in_place_of_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    fields = ("--set", "tp=1,2", "--set", "data_parallel_sharding=optim")
    words = ("--model", "llama3.1_8b", "--gpu", "mi355x,b200", "--gpus", "16", *fields, "--price", "2")
    told = command_line.told("projector", "sweep", *words)
    head = next(line for line in told.splitlines() if line.startswith("system"))
    assert {"layout", "90 %", "memory", "MWh", "cost"} <= set(re.split(r"  +", head))
    assert [line.split()[:2] for line in told.splitlines() if line.endswith(tuple("0123456789"))][-2:] == [
        ["b200", "16"],
        ["mi355x", "16"],
    ]
    file = written(tmp_path, {**GRID, "recipe": {**GRID["recipe"], "tp": 1}})
    changed = command_line.document("projector", "sweep", file, "--out", "other.jsonl", *words[2:], "--set", "pp=1")
    assert {(row["system"], row["gpus"]) for row in changed["best"]} == {("mi355x", 16), ("b200", 16)}
    assert changed["points"] == 2 * 2 * 2  # systems, tp, micro-batches of the file


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        ("", "FILE: found 'nothing'"),
        ("--model llama3.1_8b --gpu h100", "--gpus: found 'nothing'"),
        ("--model llama3.1_8b --gpu h100 --gpus x", "--gpus"),
        ("--model llama3.1_8b --gpu h100 --gpus 8 --set banana=1", "--set: banana"),
        ("--model llama3.1_8b --gpu h100 --gpus 8 --set seq_length=long", "--set"),
    ],
)
def test_flags_that_are_no_grid_are_named(words: str, blamed: str) -> None:
    assert blamed in command_line.refused("projector", "sweep", *words.split())
