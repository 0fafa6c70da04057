"""llm-analysis 0.2.2 (Apache-2.0, github.com/cli99/llm-analysis) as a predictor: a lower bound on the step time.

It computes (``LLMAnalysis.training``, 0.2.2): time of a step = micro-batches · FLOP of one micro-batch / (tp · pp · peak
· FLOP efficiency). There is no pipeline bubble, no exposed communication, no optimizer step and no host in it, and its
FLOP count takes every MLP as two linears of 4 · hidden, whatever ``ffn_embed_dim`` and the gate say. Its FLOP efficiency
defaults to 1, which is used here: uncalibrated it is the bound that its authors claim, calibrated and held out it gets
the same one factor a GPU as everybody.

GPUs come from its own files where it has one; the others are described from our data sheets. Sharding of parameters (its
``DSZeRO.STAGE_3``) changes its memory only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any

from harness.contracts.runs import MeasuredRun, Prediction
from harness.predictors import peer
from harness.predictors.protocol import Guarded
from projector.dataclass import dataclass
from projector.errors import Unsupported
from projector.hardware.types import Cluster
from projector.io.table import values
from projector.workload.workload import Workload

NAME = "llm-analysis"

# The GPUs for which llm-analysis has a file. Its mi250x-128gb is a module of two dies, ours is one die.
_ITS_GPUS = {
    "a100_sxm_40gb": "a100-sxm-40gb",
    "a100_sxm_80gb": "a100-sxm-80gb",
    "a100_pcie_80gb": "a100-pcie-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h100_pcie": "h100-pcie-80gb",
    "v100_sxm_16gb": "v100-sxm-16gb",
    "v100_sxm_32gb": "v100-sxm-32gb",
}
_RECOMPUTE: dict[str | None, str] = {"none": "NONE", "attention": "SELECTIVE", "full": "FULL"}
_ZERO = {"no_shard": "NONE", "optim": "STAGE_1", "optim_grads": "STAGE_2", "optim_grads_params": "STAGE_3"}

# Minimum intra-node message latency, seconds: the value of every GPU file of llm-analysis 0.2.2 — published.
_MIN_LATENCY = 8e-6


@dataclass(frozen=True)
class LlmAnalysis(Guarded):
    """llm-analysis as a predictor. Raises :class:`InputError` when made where the package is not installed."""

    name: str = NAME

    def __post_init__(self) -> None:
        _package()

    def project(self, run: MeasuredRun) -> Prediction:
        resolved, cluster = peer.state(run)
        work = resolved.workload
        peer.stated_refusal(NAME, chain(peer.limits(work), peer.plain_limits(work)))
        tool = _package()
        with _quiet():
            gpu, described = _gpu(tool, cluster, work.recipe.precision)
            stats = peer.refused(NAME, lambda: _training(tool, gpu, work))
        needed, seconds = stats["(weight+op_state+grad+act)_memory_per_gpu"], stats["latency_per_iter"]
        assumed = (*resolved.assumed, *described, *_simplified(work))
        return peer.told(NAME, seconds, needed, needed + stats["memory_left_per_gpu"], {"compute_s": seconds}, assumed)


def _simplified(work: Workload) -> tuple[str, ...]:
    """Returns the settings that it accepts and does not count, for the ``assumed`` column."""
    model, recipe = work.model, work.recipe
    linears = 3 if model.gated_linear_unit else 2
    notes = ["flops_efficiency=1 (its default)"]
    if linears * model.ffn_hidden_size != 8 * model.hidden_size:
        notes.append("mlp=two linears of 4·hidden (its FLOP count)")
    if recipe.pp > 1:
        notes.append("pipeline bubble=0 (it counts none)")
    return tuple(notes)


def _gpu(tool: ModuleType, cluster: Cluster, precision: str) -> tuple[Any, tuple[str, ...]]:
    """Returns the package's own description of the GPU, else one from our data sheet, which is then an assumption."""
    gpu = cluster.gpu
    if gpu.name in _ITS_GPUS:
        return tool.get_gpu_config_by_name(_ITS_GPUS[gpu.name]), ()
    described = tool.GPUConfig(
        name=gpu.name,
        mem_per_GPU_in_GB=gpu.memory_bytes / peer.GIB,  # it multiplies by 1024³
        hbm_bandwidth_in_GB_per_sec=gpu.memory_bandwidth / 1e9,
        intra_node_bandwidth_in_GB_per_sec=cluster.intra.bandwidth / 1e9,
        intra_node_min_message_latency=_MIN_LATENCY,
        peak_fp16_TFLOPS=gpu.peak_of(precision) / 1e12,
        inter_node_bandwidth_in_GB_per_sec=cluster.inter.bandwidth / 1e9,
    )
    return described, (f"{NAME} gpu={gpu.name} from the data sheet (it has no file of it)",)


def _training(tool: ModuleType, gpu: Any, work: Workload) -> dict[str, Any]:
    """Returns the package's summary of one training step."""
    model, recipe = work.model, work.recipe
    sharding = recipe.data_parallel_sharding or "no_shard"
    if sharding not in _ZERO:
        raise Unsupported(f"{NAME} has no {sharding} sharding")
    analysis = tool.LLMAnalysis(
        tool.ModelConfig(
            **values(model, "name num_layers n_head=num_attention_heads hidden_dim=hidden_size"),
            **values(model, "num_key_value_heads=num_query_groups ffn_embed_dim=ffn_hidden_size"),
            vocab_size=work.padded_vocab_size,
            max_seq_len=recipe.seq_length,
            expansion_ratio=model.ffn_hidden_size / model.hidden_size,
        ),
        gpu,
        tool.get_dtype_config_by_name("w16a16e16"),
        tool.ParallelismConfig(
            tp_size=recipe.tp, pp_size=recipe.pp, dp_size=work.dp, sp_size=recipe.tp if recipe.sequence_parallel else 1
        ),
    )
    summary: dict[str, Any] = analysis.training(
        batch_size_per_gpu=recipe.micro_batch_size,
        global_batch_size=recipe.global_batch_size,
        seq_len=recipe.seq_length,
        activation_recomputation=tool.ActivationRecomputation[_RECOMPUTE[peer.recompute_mode(work)]],
        ds_zero=tool.DSZeRO[_ZERO[sharding]],
        mlp_gated_linear_units=model.gated_linear_unit,
    )
    return summary


@cache
def _package() -> ModuleType:
    how = "pip install 'projector-harness[peers]', or pip install llm-analysis==0.2.2"
    error = peer.absent(NAME, "the package llm-analysis", how)
    if peer.located("llm_analysis", "analysis.py") is None:
        raise error
    with _quiet():
        return peer.require("llm_analysis.analysis", error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the package's report of every configuration, and transformers' remark on a missing torch, off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
