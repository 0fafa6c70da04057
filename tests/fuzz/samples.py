"""Small sound files of every kind that a user may bring, to be damaged."""

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tabled import sample, tabled

from tests.conftest import ROOT

DATA = ROOT / "tests" / "projector" / "intake" / "data"
PRIMUS = DATA / "primus_configs"


def files(*paths: Path, most: int = 6_000) -> tuple[tuple[str, str], ...]:
    return tuple((path.name, path.read_text(encoding="utf-8")[:most]) for path in paths)


def primus() -> tuple[tuple[str, str], ...]:
    return files(DATA / "primus_llama.yaml", *sorted((ROOT / "examples").glob("*.yaml")))


def rows(path: Path, rows: int) -> str:
    """The first ``rows`` of a file of measured runs."""
    parts = path.read_text(encoding="utf-8").split("\n- id:")
    return "\n- id:".join(parts[: rows + 1])


TABLE: tuple[dict[str, object], ...] = tuple(tabled("readers", "samples_table"))


def tables() -> tuple[tuple[str, str], ...]:
    keys = list(TABLE[0])
    csv = "\n".join([",".join(keys), *(",".join(str(TABLE[0][key]) for key in keys) for _ in range(2))])
    return (
        ("t.yaml", json.dumps(TABLE, indent=1)),
        ("t.json", json.dumps(TABLE, indent=1)),
        ("t.jsonl", "\n".join(map(json.dumps, TABLE))),
        ("t.csv", csv.replace("\na,", "\nb,", 1)),
        ("t.tsv", csv.replace("\na,", "\nb,", 1).replace(",", "\t")),
    )


ARGUMENTS = tabled("readers", "samples_arguments")


def megatron() -> tuple[tuple[str, str], ...]:
    import yaml

    dump = "\n".join(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items())
    flags = " \\\n    ".join(
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")
        for name, value in ARGUMENTS.items()
        if value not in (None, False)
    )
    launch = "torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py ${ARGS[@]}"
    script = f"#!/bin/bash\nNNODES=${{NNODES:-2}}\nARGS=(\n    {flags}\n)\n{launch}\n"
    return (
        ("m.yaml", yaml.safe_dump(ARGUMENTS)),
        ("m.json", json.dumps({"MODEL_ARGS": {f"--{k.replace('_', '-')}": v for k, v in ARGUMENTS.items()}})),
        ("m.log", f"using world size: 16\n{dump}\n"),
        ("m.sh", script),
        ("dump.log", (DATA / "dump_mixtral.log").read_text(encoding="utf-8")[:5_000]),
    )


CASE = sample("case.yaml")
WHOLE = sample("whole_case.yaml")
SUITE = sample("suite.yaml")
CONTEXT = sample("context.yaml")
MAP = sample("map.yaml")
HARDWARE = sample("hardware.yaml")


@cache
def configs() -> tuple[tuple[str, str], ...]:
    from tests.projector.intake.test_loader_huggingface import CONFIGS, PUBLISHED

    every = {**CONFIGS, **{name: config for name, (config, _) in PUBLISHED.items()}}
    return tuple((f"{name}.json", json.dumps(config)) for name, config in every.items())


def titan() -> tuple[tuple[str, str], ...]:
    import tomllib

    from tests.projector.intake.test_loader_torchtitan import NOW, OLD

    return (("now.toml", NOW), ("old.toml", OLD), ("now.yaml", json.dumps(tomllib.loads(NOW), indent=1)))


def nemo() -> tuple[tuple[str, str], ...]:
    import yaml

    from tests.projector.intake.test_trainer_readings import FILES

    return (("run.yaml", yaml.safe_dump(FILES["nemo"])),)


def maxtext() -> tuple[tuple[str, str], ...]:
    import yaml

    from tests.projector.intake.test_trainer_readings import FILES

    pipelined = {
        **FILES["maxtext"],
        "ici_fsdp_parallelism": 2,
        "ici_pipeline_parallelism": 4,
        "ici_tensor_parallelism": 1,
    }
    return (("run.yml", yaml.safe_dump(FILES["maxtext"])), ("pipelined.yml", yaml.safe_dump(pipelined)))


def evaluated() -> tuple[tuple[str, str], ...]:
    from harness.contracts.results import Evaluation, Row, RunFacts
    from harness.report import files

    rows = [
        Row(
            run_id=name, suite="s", group="g", gpu=gpu, gpus=8, model="m", family="f", precision="bf16", fit=fit,
            framework="megatron-lm", predictor=predictor, status="ok", projected_step_seconds=1.0, measured_step_seconds=1.1,
            projected_tgs=100.0, measured_tgs=91.0, error=0.1, interval_low=80.0, interval_high=120.0, compute_s=0.5,
            host_s=0.1, other_s=0.4, assumed="a; b", measured_memory_gib=10.0, projected_memory_gib=11.0, memory_error=0.1,
        )
        for name, gpu in (("a", "mi300x"), ("b", "h100_sxm"))
        for predictor in ("simulate", "constant-mfu")
        for fit in ("uncalibrated", "heldout")
    ]  # fmt: skip
    facts = {name: RunFacts(run_id=name, source="s", assumed=("x",), differs={"tp": "1"}) for name in ("a", "b")}
    whole = files.Saved(
        evaluation=Evaluation(rows=tuple(rows), facts=facts),
        gates={"s": {"simulate": {"mape": 0.1}}},
        provenance={"python": "3"},
    )
    return (("results.json", files.json_text(whole)),)


def catalogue(folder: str, *names: str) -> Callable[[], tuple[tuple[str, str], ...]]:
    return lambda: files(*(ROOT / "projector" / "hardware" / folder / f"{name}.yaml" for name in names), most=10**6)


def parameters() -> tuple[tuple[str, str], ...]:
    from projector.io.files import read_yaml

    document = read_yaml(ROOT / "projector" / "hardware" / "efficiency" / "mi355x.yaml")
    return (("e.yaml", json.dumps({"parameters": dict(list(document["parameters"].items())[:5])})),)


def posteriors() -> tuple[tuple[str, str], ...]:
    document = json.loads((ROOT / "projector" / "posterior.json").read_text(encoding="utf-8"))
    few = {key: document[key][:3] for key in ("effects", "mean", "covariance")}
    return (("x.json", json.dumps({**document, **few})),)


def kernel_tables() -> tuple[tuple[str, str], ...]:
    found = []
    for kind in ("gemm", "attention", "grouped"):
        lines = (ROOT / "measured" / "kernels" / "mi355x" / f"{kind}.csv").read_text(encoding="utf-8").splitlines()
        found.append((f"{kind}.csv", "\n".join(lines[:6]) + "\n"))
    return tuple(found)


def collective_tables() -> tuple[tuple[str, str], ...]:
    path = next(iter(sorted((ROOT / "measured" / "collectives").glob("*.csv"))))
    return ((path.name, "\n".join(path.read_text(encoding="utf-8").splitlines()[:6]) + "\n"),)


def measured() -> tuple[tuple[str, str], ...]:
    folder = ROOT / "measured" / "runs"
    return tuple((path.name, rows(path, 2)) for path in sorted(folder.glob("*.yaml"))[::7])
