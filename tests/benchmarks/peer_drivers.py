"""Asks one searcher one question in a process of its own, and prints its answer: ``peer_drivers.py TOOL CHECKOUT SECONDS``.

The question, the same for all: GPT-3 175B at a sequence of 2,048 on 64 A100 80 GB in hosts of 8, global batch 64. Each tool
searches its own space by its own laws, and is stopped after so many seconds of one core. A candidate is a configuration
whose time the tool computed or whose memory it refused. ``best``: tp, pp and micro-batch of its winner, where it finished.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GPUS, BATCH, LENGTH = 64, 64, 2048


class Stopped(BaseException):
    """The time is up; no handler of a tool takes it for an error of its own."""


class Count:
    """Counts calls of a tool's function until the time is up."""

    def __init__(self, seconds: float) -> None:
        self.began, self.until, self.number = time.process_time(), seconds, 0

    @property
    def seconds(self) -> float:
        return time.process_time() - self.began

    def add(self, number: int = 1) -> None:
        self.number += number
        if self.seconds > self.until:
            raise Stopped

    def over(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.add()
            return call(*given, **named)

        return counted


def calculon(checkout: Path, count: Count) -> dict[str, Any]:
    """``llm-optimal-execution`` (calculon-ai/calculon@caa4b11), its pool of processes replaced by this one."""
    from calculon.llm import optimal_execution as tool  # type: ignore[import-not-found]

    class Pool:
        def __init__(self, _: int) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def starmap(self, search: Callable[..., Any], every: list[Any]) -> list[Any]:
            made = []
            for each in every:
                made.append(search(*each))
                count.add(made[-1][1])
            return made

    tool.mp = SimpleNamespace(Pool=Pool)
    out = Path("calculon.json").resolve()
    options = Namespace(
        application=str(checkout / "models" / "gpt3-175B.json"), system=str(checkout / "systems" / "a100_80g.json"),
        num_procs=GPUS, max_batch_size=BATCH, datatype="float16", output=str(out), cpus=1, noneok=True, mbs_break=True,
        top_n=1, layers=False, fused_activation=[True], no_tp_overlap=False, no_dp_overlap=False, debug=False,
    )  # fmt: skip
    quiet = SimpleNamespace(**dict.fromkeys(("info", "fatal", "debug", "warning", "warn"), lambda *_: None))
    tool.OptimalExecution.run_command(quiet, options)
    how = json.loads(out.read_text())["0"]["execution"]
    return {"tp": how["tensor_par"], "pp": how["pipeline_par"], "mbs": how["microbatch_size"]}


def simumax(checkout: Path, count: Count) -> dict[str, Any]:
    """``PerfLLM.search_best_parallel_strategy`` (MooreThreads/SimuMax@4dcaae5), once for each micro-batch."""
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig  # type: ignore[import-not-found]
    from simumax.core.perf_llm import PerfLLM  # type: ignore[import-not-found]

    PerfLLM.run_estimate = count.over(PerfLLM.run_estimate)
    strategy = StrategyConfig.read_json_file(str(checkout / "configs/strategy/tp1_pp2_dp4_mbs1.json"))
    strategy |= {"enable_recompute": False, "recompute_granularity": None, "recompute_layer_num": 0, "seq_len": LENGTH}
    model = PerfLLM()
    model.configure(
        strategy_config=StrategyConfig.init_from_dict(strategy),
        model_config=ModelConfig.init_from_config_file(str(checkout / "configs/models/gpt3-175b.json")),
        system_config=SystemConfig.init_from_config_file(str(checkout / "configs/system/a100_pcie.json")),
    )
    best: tuple[float, dict[str, Any]] = (0.0, {})
    for size in (1, 2, 4, 8):
        found = model.search_best_parallel_strategy(
            world_size=GPUS, gmi_error=10, micro_batch_size=size, global_batch_size=BATCH, all_search_result={},
            tp_search_list=[1, 2, 4, 8], dump_path=None, verbose=False,
        )  # fmt: skip
        if found and found["TGS_per_gpu"] > best[0]:
            words = found["parallelism"].replace(".", " ").split()
            sizes = {name: int(word[2:]) for word in words for name in ("tp", "pp") if word.startswith(name)}
            best = found["TGS_per_gpu"], {**sizes, "mbs": size}
    return best[1]


def tpe(checkout: Path, count: Count) -> dict[str, Any]:
    """``execute_1d`` (ShashankSubramanian/transformer-perf-estimates@54278b0); it needs pandas 2."""
    import execution  # type: ignore[import-not-found]

    execution.totals = count.over(execution.totals)
    system = {**json.loads((checkout / "systems" / "config-A100.json").read_text()), "nvlink_size": 8}
    model = {"l": LENGTH, "e": 12288, "f": 4 * 12288, "h": 96, "depth": 96}
    (((_, _, how, _),),) = execution.execute_1d(model, [GPUS], global_batch_size=BATCH, system=system, nlargest=1)
    return {name: how[name] for name in ("tp", "pp", "mbs")}


def llm_analysis(_: Path, count: Count) -> dict[str, Any]:
    """It has no search (cli99/llm-analysis@d841e40): its ``training`` over the degrees that its laws can be asked."""
    import logging

    logging.disable(logging.CRITICAL)
    from llm_analysis import analysis as tool  # type: ignore[import-not-found]

    model = tool.ModelConfig(
        name="gpt3_175b", num_layers=96, n_head=96, hidden_dim=12288, vocab_size=51200, max_seq_len=LENGTH,
        num_key_value_heads=96, ffn_embed_dim=4 * 12288, expansion_ratio=4,
    )  # fmt: skip
    gpu, types = tool.get_gpu_config_by_name("a100-sxm-80gb"), tool.get_dtype_config_by_name("w16a16e16")
    best: tuple[float, dict[str, Any]] = (float("inf"), {})
    for tp in (1, 2, 4, 8):
        for pp in (pp for pp in range(1, GPUS + 1) if 96 % pp == 0 and GPUS % (tp * pp) == 0):
            dp = GPUS // (tp * pp)
            split = tool.ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp)
            for size in (size for size in (1, 2, 4, 8) if BATCH % (size * dp) == 0):
                for again in tool.ActivationRecomputation:
                    count.add()
                    try:
                        said = tool.LLMAnalysis(model, gpu, types, split).training(
                            batch_size_per_gpu=size, global_batch_size=BATCH, seq_len=LENGTH,
                            activation_recomputation=again, ds_zero=tool.DSZeRO.STAGE_1,
                        )  # fmt: skip
                    except (AssertionError, ValueError):  # it does not fit
                        continue
                    if said["latency_per_iter"] < best[0]:
                        best = said["latency_per_iter"], {"tp": tp, "pp": pp, "mbs": size}
    return best[1]


TOOLS = {"calculon": calculon, "simumax": simumax, "transformer-perf-estimates": tpe, "llm-analysis": llm_analysis}


def main(name: str, checkout: Path, seconds: float) -> None:
    sys.path.insert(0, str(checkout))
    count = Count(seconds)
    try:
        best = TOOLS[name](checkout, count)
    except Stopped:
        best = None
    print(json.dumps({"candidates": count.number, "seconds": count.seconds, "best": best}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), float(sys.argv[3]))
