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

from tabled import sample


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
            "calculon/__init__.py": "",
            "calculon/system.py": sample("calculon_system.py.txt"),
            "calculon/llm/__init__.py": "",
            "calculon/llm/llm.py": sample("calculon_llm.py.txt"),
            "systems/a100_80g.json": system_json(312, 78, 80, 2048, 300, 25),
            "systems/h100_80g_nvl8.json": system_json(1000, 120, 80, 3072, 450, 50),
        },
    )


def llm_analysis_package(folder: Path) -> Path:
    return write(folder, {"llm_analysis/__init__.py": "", "llm_analysis/analysis.py": sample("llm_analysis.py.txt")})


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
