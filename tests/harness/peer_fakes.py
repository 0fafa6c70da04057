"""Stand-ins for the packages of other projectors: the same names, arguments, checks and keys, with arithmetic of their own.

``calculon`` mirrors the classes that github.com/calculon-ai/calculon has in ``calculon/llm/llm.py`` and
``calculon/system.py`` (execution fields, network and memory checks, keys of the statistics); ``llm_analysis`` mirrors
``llm_analysis/analysis.py`` of release 0.2.2.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

LLM = """
class Llm:
    class Error(Exception):
        pass

    class Application:
        def __init__(self, cfg):
            self.cfg = cfg
            for key in ("hidden", "feedforward", "seq_size", "attn_heads", "attn_size", "num_blocks"):
                setattr(self, key, cfg[key])

    class Execution:
        @staticmethod
        def fields():
            return (
                "num_procs", "tensor_par", "pipeline_par", "data_par", "tensor_par_net", "pipeline_par_net",
                "data_par_net", "batch_size", "microbatch_size", "datatype", "fused_activation", "attention_type",
                "activation_recompute", "pipeline_interleaving", "optimizer_sharding", "tensor_par_comm_type",
                "tensor_par_overlap", "seq_par_ag_redo", "data_par_overlap", "weight_offload", "activations_offload",
                "optimizer_offload", "training")

        @staticmethod
        def from_json(cfg):
            assert set(cfg) == set(Llm.Execution.fields())
            return Llm.Execution(cfg)

        def __init__(self, cfg):
            self.__dict__.update(cfg)
            assert self.num_procs == self.tensor_par * self.pipeline_par * self.data_par, "not num_procs"
            assert self.batch_size % self.data_par == 0
            assert (self.batch_size // self.data_par) % self.microbatch_size == 0
            assert self.attention_type in ("multihead", "multiquery")
            assert self.activation_recompute in ("full", "attn_only", "none")
            assert self.pipeline_par > 1 or self.pipeline_interleaving == 1
            assert not self.optimizer_sharding or self.data_par > 1
            assert self.tensor_par_comm_type in ("ar", "p2p_rs_ag", "rs_ag")
            assert self.tensor_par_overlap in ("none", "ring", "pipe")
            assert self.tensor_par_overlap == "none" or self.tensor_par > 1
            if self.seq_par_ag_redo:
                assert self.tensor_par_comm_type == "rs_ag" and self.activation_recompute != "full"
            assert not self.data_par_overlap or self.data_par > 1

    def __init__(self, app, log):
        assert isinstance(app, self.Application)
        self.app, self.log, self.exe, self.sys, self.done = app, log, None, None, False

    def compile(self, sys, exe):
        assert isinstance(exe, self.Execution)
        self.sys, self.exe = sys, exe
        sizes = [1] * len(sys.networks)
        for kind in ("tensor_par", "pipeline_par", "data_par"):
            sizes[getattr(exe, kind + "_net")] *= getattr(exe, kind)
        for tier, (size, network) in enumerate(zip(sizes, sys.networks)):
            if size > network["size"]:
                raise self.Error(f"Network tier{tier} isn't big enough")
            if size > 1 and network["must_be_filled"] and network["size"] % size:
                raise self.Error(f"Network tier{tier} isn't fully used")
        if -(-self.app.num_blocks // exe.pipeline_par) % exe.pipeline_interleaving:
            raise self.Error("Pipeline interleaving must be a factor value of the number of blocks per processor")

    def run(self, sys):
        a, e = self.app, self.exe
        weights = a.num_blocks * (2 * a.hidden * a.feedforward + 4 * a.hidden * a.attn_heads * a.attn_size)
        self.bytes = 16 * weights / (e.tensor_par * e.pipeline_par)
        if self.bytes > sys.cfg["mem1"]["GiB"] * 2**30:
            raise self.Error("Mem tier1 needs more but only has less")
        rate = sys.cfg["matrix"][e.datatype]["tflops"] * 1e12
        self.fw = 2 * weights * e.batch_size * a.seq_size / e.num_procs / rate
        self.done = True

    def get_stats_json(self, include_layers):
        assert self.done and not include_layers
        f, again = self.fw, self.exe.activation_recompute == "full"
        parts = {
            "fw_time": f, "bw_time": 2 * f, "recompute_time": f * again, "recomm_exposed_time": 0.01 * f,
            "optim_step_time": 0.02 * f, "bubble_time": 0.1 * f * (self.exe.pipeline_par - 1),
            "tp_comm_exposed_time": 0.05 * f, "pp_comm_exposed_time": 0.01 * f, "dp_comm_exposed_time": 0.03 * f,
            "fw_offload_exposed_time": 0, "bw_offload_exposed_time": 0}
        return {**parts, "total_time": sum(parts.values()), "proc_mem_tier1_cap_req": self.bytes}
"""

SYSTEM = """
class System:
    def __init__(self, cfg):
        self.cfg = cfg
        self.networks = cfg["networks"]
        for key in ("matrix", "vector", "mem1", "mem2", "processing_mode"):
            cfg[key]
"""


def system_json(tflops: float, vector: float, gib: int, gbps: int, intra: int, inter: int) -> str:
    curve = [[16, 0.9], [0, 0.1]]

    def network(bandwidth: int, size: int, filled: bool) -> dict[str, object]:
        return {"bandwidth": bandwidth, "efficiency": 0.65, "size": size, "latency": 1e-5, "must_be_filled": filled}

    return json.dumps(
        {
            "matrix": {
                "float8": {"tflops": 2 * tflops, "gflops_efficiency": curve},
                "float16": {"tflops": tflops, "gflops_efficiency": curve},
            },
            "vector": {"float16": {"tflops": vector, "gflops_efficiency": curve}},
            "mem1": {"GiB": gib, "GBps": gbps, "MB_efficiency": [[0, 0.9]]},
            "mem2": {"GiB": 512, "GBps": 32, "MB_efficiency": [[0, 0.9]]},
            "processing_mode": "no_overlap",
            "networks": [network(intra, 8, True), network(inter, 65536, False)],
        }
    )


LLM_ANALYSIS = """
from dataclasses import dataclass
from enum import Enum


class ActivationRecomputation(Enum):
    NONE = 0
    SELECTIVE = 1
    FULL = 2


class DSZeRO(Enum):
    NONE = 0
    STAGE_1 = 1
    STAGE_2 = 2
    STAGE_3 = 3


@dataclass
class ModelConfig:
    name: str
    num_layers: int
    n_head: int
    hidden_dim: int
    vocab_size: int
    max_seq_len: int = None
    num_key_value_heads: int = None
    num_key_value_groups: int = None
    ffn_embed_dim: int = None
    expansion_ratio: int = None
    model_type: str = None
    moe_num_experts: int = 1
    moe_top_k: int = 1

    def __post_init__(self):
        if self.expansion_ratio is None:
            assert self.ffn_embed_dim % self.hidden_dim == 0
        assert self.n_head % self.num_key_value_heads == 0
        self.num_key_value_groups = self.n_head / self.num_key_value_heads


@dataclass
class GPUConfig:
    name: str
    mem_per_GPU_in_GB: float
    hbm_bandwidth_in_GB_per_sec: float
    intra_node_bandwidth_in_GB_per_sec: float
    intra_node_min_message_latency: float
    peak_fp16_TFLOPS: float
    peak_i8_TFLOPS: float = None
    peak_i4_TFLOPS: float = None
    inter_node_bandwidth_in_GB_per_sec: float = 200


@dataclass
class DtypeConfig:
    name: str = "w16a16e16"


@dataclass
class ParallelismConfig:
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    sp_size: int = None


def get_gpu_config_by_name(name):
    peak = {"a100-sxm-80gb": 312, "h100-sxm-80gb": 989}[name]
    return GPUConfig(name, 80, 2039, 300, 8e-6, peak)


def get_dtype_config_by_name(name):
    assert name == "w16a16e16"
    return DtypeConfig()


class LLMAnalysis:
    def __init__(self, model_config, gpu_config, dtype_config, parallelism_config):
        self.m, self.g, self.p = model_config, gpu_config, parallelism_config
        assert self.p.sp_size in (1, self.p.tp_size), "sp_size"

    def training(self, *, batch_size_per_gpu, global_batch_size, seq_len, activation_recomputation, ds_zero,
                 mlp_gated_linear_units):
        m, p, s, b = self.m, self.p, seq_len, batch_size_per_gpu
        assert s <= m.max_seq_len
        assert global_batch_size % (b * p.dp_size) == 0, "no valid gradient_accumulation_steps"
        h = m.hidden_dim
        layer = 20 * b * s * h**2 + 4 * b * s * h**2 / m.num_key_value_groups + 4 * b * s**2 * h
        forward = layer * m.num_layers + 2 * b * s * h * m.vocab_size
        again = {"NONE": 0, "FULL": forward, "SELECTIVE": 4 * b * s**2 * h * m.num_layers}
        flops = 3 * forward + again[activation_recomputation.name]
        seconds = flops / (p.tp_size * p.pp_size * self.g.peak_fp16_TFLOPS * 1e12)
        share = 1 if ds_zero is DSZeRO.NONE else p.dp_size
        held = 16 * 12 * h**2 * m.num_layers / p.tp_size / p.pp_size / share
        return {"latency_per_iter": seconds * (global_batch_size // (b * p.dp_size)),
                "(weight+op_state+grad+act)_memory_per_gpu": held,
                "memory_left_per_gpu": self.g.mem_per_GPU_in_GB * 1024**3 - held}
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def calculon_checkout(folder: Path) -> Path:
    return write(
        folder,
        {
            "calculon/__init__.py": "", "calculon/system.py": SYSTEM, "calculon/llm/__init__.py": "",
            "calculon/llm/llm.py": LLM, "systems/a100_80g.json": system_json(312, 78, 80, 2048, 300, 25),
            "systems/h100_80g_nvl8.json": system_json(1000, 120, 80, 3072, 450, 50),
        },
    )  # fmt: skip


def llm_analysis_package(folder: Path) -> Path:
    return write(folder, {"llm_analysis/__init__.py": "", "llm_analysis/analysis.py": LLM_ANALYSIS})


@contextmanager
def importable(monkeypatch, package: str, folder: Path | None) -> Iterator[None]:
    """``package`` as found in ``folder`` (None: nowhere new), forgotten again afterwards."""
    from harness.predictors import calculon, llm_analysis

    def forget() -> dict[str, ModuleType]:
        names = [n for n in sys.modules if n == package or n.startswith(package + ".")]
        for cached in (calculon.tool, calculon.system_file, llm_analysis._package):
            cached.cache_clear()
        importlib.invalidate_caches()
        return {name: sys.modules.pop(name) for name in names}

    before = forget()
    if folder is not None:
        monkeypatch.syspath_prepend(str(folder))
    try:
        yield
    finally:
        forget()
        sys.modules.update(before)
