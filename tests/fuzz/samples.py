"""Small sound files of every kind that a user may bring, to be damaged."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

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


TABLE: tuple[dict[str, object], ...] = (
    {
        "id": "a", "source": "made up", "gpu": "MI300X", "gpus": 8, "framework": "Megatron-LM", "model": "llama3.1_8b",
        "precision": "bf16", "seq_length": 8192, "micro_batch_size": 2, "global_batch_size": 128, "tp": 1, "pp": 1,
        "step_time_ms": 12500, "tokens_per_s_per_gpu": 10485.8, "recompute": "none", "notes": "of a test",
    },
    {
        "id": "b", "gpu": "mi355x", "gpus": 16, "framework": "Primus/Megatron-LM", "model": "mixtral 8x7b", "dtype": "BF16",
        "seq_len": 4096, "mbs": 1, "gbs": 64, "ep": 8, "dp": 16, "step_time_s": 2.0, "recompute": "full",
        "peak_memory_gib": 88.1,
        "arch": {"layers": 32, "hidden": 4096, "experts": 8}, "switches": {"turbo": "on"}, "date": "2025-10", "tflops": 480,
    },
)  # fmt: skip


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


ARGUMENTS = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8, "seq_length": 8192, "max_position_embeddings": 8192, "micro_batch_size": 1, "swiglu": True,
    "global_batch_size": 128, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "vocab_size": 128256,
    "num_layers_per_virtual_pipeline_stage": 4, "bf16": True, "recompute_granularity": "full", "recompute_method": "block",
    "recompute_num_layers": 1, "world_size": 16, "use_distributed_optimizer": True, "num_experts": 8, "moe_router_topk": 2,
    "moe_layer_freq": "([0]*1+[1]*31)", "expert_model_parallel_size": 4, "moe_ffn_hidden_size": 1024, "fp8": None,
    "pipeline_model_parallel_layout": None, "multi_latent_attention": False, "untie_embeddings_and_output_weights": True,
}  # fmt: skip


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


CASE = """\
id: what-if
model: {base: deepseek_v2, num_layers: 12}
gpu: mi355x
gpus: 32
framework: megatron-lm
framework_date: 2025-10
recipe: {tp: 1, pp: 2, vpp: 2, ep: 8, micro_batch_size: 1, global_batch_size: 256, seq_length: 4096, precision: bf16,
  moe_token_dispatcher_type: alltoall, recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1,
  recompute_modules: [mlp, moe], lora: {dim: 8, targets: [linear_qkv]}, moe_expert_capacity_factor: 1.25}
"""
WHOLE = """\
model: {name: own, family: own, num_layers: 6, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16,
  num_query_groups: 4, vocab_size: 32000, moe: {num_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 512,
  moe_layer_freq: [0, 1, 1, 1, 1, 1]}, mla: {q_lora_rank: 96, kv_lora_rank: 64, qk_head_dim: 32, qk_pos_emb_head_dim: 16,
  v_head_dim: 32}}
recipe: {micro_batch_size: 1, global_batch_size: 8, seq_length: 4096}
cluster: mi300x
nodes: 1
"""
SUITE = """\
suite: tiny
title: A tiny suite
select:
  - {runs: simumax_a100, gpu: [a100*]}
  - {runs: [primus_mi300x, simumax_a100], id: "*", framework: megatron-lm}
cases:
  - {id: what-if, model: llama3_8b, gpu: mi355x, nodes: 2, recipe: {tp: 2, micro_batch_size: 1, global_batch_size: 64,
     seq_length: 8192}, framework: megatron-lm, framework_date: 2025-10, group: g, notes: n}
  - {id: more, model: {base: mixtral_8x7b, num_layers: 8}, cluster: mi300x, gpus: 8, recipe: {ep: 8, micro_batch_size: 1,
     global_batch_size: 64, seq_length: 4096}}
measure:
  device: cpu
  threads: 1
  runs:
    - {id: t, model: {name: tiny, family: gpt, num_layers: 2, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 4,
       vocab_size: 256}, recipe: {precision: fp32, micro_batch_size: 1, global_batch_size: 2, seq_length: 32},
       gpus: 1, steps: 9}
gate:
  simulate: {coverage: 1.0, mape: 10.0, worst: 0.2, kendall_tau: 0.8}
"""
CONTEXT = """\
model: llama3.1_8b
gpu: MI300X
gpus: 8
gpus_per_node: 8
cluster: mi300x
framework: megatron-lm
version: "1"
date: 2025-10
group: g
notes: n
recipe: {micro_batch_size: 2, seq_length: 8192, global_batch_size: 128, tp: 1}
"""
MAP = """\
strip: ['x+']
assign:
  a*: {cluster: mi300x, tp: 2, assumed: tp=2}
doubtful: {b: why}
files: {f: ['a*']}
columns: {TP size: tp}
"""
HARDWARE = """\
hardware_config:
  node_size: 8
  nics_per_node: 8
  pod_size: 64
  node_bw: 448.0
  pod_bw: 50.0
  cluster_bw: 25
  node_lat: 0.5
  pod_lat: "1.5"
  bw_eff: 0.91
  node_topology: mesh
  switch_topology: true
  vector_flops: 81.7e12
  a2a_peer_lat: 0.45
  hp: 1
"""


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
