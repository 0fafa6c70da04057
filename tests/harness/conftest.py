"""Synthetic rows and a tiny suite, for the tests of the harness."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import disk_cache
from harness.contracts import frame
from harness.contracts.results import Row, RunFacts
from harness.predictors import ours
from projector.io import code
from tests.harness import plain_rows

SUITE = """\
suite: tiny
title: A tiny suite
select:
  - {runs: tiny, model: [llama3_8b]}
  - {id: mixtral-*}
cases:
  - {id: what-if, model: llama3_8b, gpu: mi355x, nodes: 2, recipe: {tp: 2, micro_batch_size: 1,
     global_batch_size: 64, seq_length: 8192}}
gate:
  simulate: {coverage: 1.0, mape: 10.0}
"""

RUN = """\
- id: {id}
  source: {{title: made up, kind: table}}
  gpu: {gpu}
  gpus: 8
  stack: {{framework: megatron-lm}}
  model: {model}
  recipe: {{{recipe}micro_batch_size: 1, global_batch_size: {gbs}, seq_length: 4096}}
  measured: {{step_seconds: {step}, tgs: {tgs}}}
  group: "{group}"
"""


def run_yaml(
    id: str, model: str, gbs: int, step: float, gpu: str = "h100_sxm", recipe: str = "", group: str = "g"
) -> str:
    """One measured run in the strict schema; TGS follows from the step time."""
    return RUN.format(
        id=id, model=model, gbs=gbs, step=step, tgs=gbs * 4096 / step / 8, gpu=gpu, recipe=recipe, group=group
    )


@pytest.fixture
def project_folder(tmp_path) -> Path:
    """``suites/tiny.yaml`` over ``measured/runs/tiny.yaml`` with two dense runs and a mixture-of-experts one."""
    (tmp_path / "suites").mkdir()
    (tmp_path / "measured" / "runs").mkdir(parents=True)
    (tmp_path / "suites" / "tiny.yaml").write_text(SUITE)
    runs = [
        run_yaml("llama-tp1", "llama3_8b", 64, 5.0, recipe="tp: 2, "),
        run_yaml("llama-tp4", "llama3_8b", 64, 6.0, recipe="tp: 4, "),
        run_yaml("mixtral-ep8", "mixtral_8x7b", 64, 7.0, recipe="ep: 8, ", group="h"),
    ]
    (tmp_path / "measured" / "runs" / "tiny.yaml").write_text("".join(runs))
    return tmp_path


@pytest.fixture
def six_families(tmp_path) -> Path:
    """A file of six families on three GPUs, each of a source of its own: enough for an interval."""
    path = tmp_path / "six.yaml"
    models = ("llama3_8b", "mixtral_8x7b", "llama2_7b", "qwen3_8b", "gpt3_5b", "nemotron4_15b")
    path.write_text(
        "".join(
            run_yaml(f"{model}-{gpu}-{i}", model, 64 * i, 5.0 * i * (1.0 + 0.05 * j), gpu, "tp: 2, ", "").replace(
                "made up", f"made up by {model} {gpu}"
            )
            for j, model in enumerate(models)
            for gpu in ("h100_sxm", "b200", "mi300x")
            for i in (1, 2)
        )
    )
    return path


def anew() -> None:
    """As a new process begins: nothing is remembered but on disk."""
    for each in (disk_cache._folder, disk_cache._code_unchanged, ours._projected):
        each.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder of a cache on disk that is empty."""
    monkeypatch.setenv("PROJECTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_cache, "_BEGAN", code.changed() + 1.0)
    anew()
    yield tmp_path / "cache"
    anew()


@pytest.fixture
def make_row() -> Callable[..., Row]:
    return plain_rows.row


@pytest.fixture
def framed() -> Callable[..., Any]:
    """Rows as a frame, with the same facts of every run, or with facts of their own."""

    def make(rows: Sequence[Row], facts: Mapping[str, RunFacts] | None = None, **same: Any) -> Any:
        return frame.of(rows, facts or {r.run_id: RunFacts(run_id=r.run_id, **same) for r in rows})

    return make


@pytest.fixture
def facts_for() -> Callable[..., dict[str, RunFacts]]:
    def make(*rows: Row, **more: Any) -> dict[str, RunFacts]:
        return {r.run_id: RunFacts(run_id=r.run_id, **more) for r in rows}

    return make
