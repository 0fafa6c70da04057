"""Builds AMD's Origami for this interpreter without ROCm: ``python tools/build_origami.py FOLDER``.

The source package rocm-origami of the index asks HIP for the device at hand and nothing else, so a header of nine lines
that never finds a device stands in for it. FOLDER then holds the module ``origami``: put it on PYTHONPATH. Needs pip, a
C++17 compiler and a minute. Exit code 1 with the reason where one of these is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.0.3"
NANOBIND = "nanobind==3.1.0"
HIP = """#pragma once
#include <cstddef>
struct hipDeviceProp_t {
  char gcnArchName[256];
  int multiProcessorCount, clockRate, memoryClockRate, l2CacheSize;
  std::size_t sharedMemPerBlock;
};
enum hipError_t { hipSuccess = 0, hipErrorNoDevice = 100 };
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t*, int) { return hipErrorNoDevice; }
inline const char* hipGetErrorString(hipError_t) { return "no HIP device"; }
"""


def main(folder: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        sys.exit("no C++ compiler: g++ or clang++")
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        source, bindings = _fetched(room)
        (room / "hip").mkdir()
        (room / "hip" / "hip_runtime.h").write_text(HIP)
        shutil.copytree(source / "python/src/origami", folder / "origami", dirs_exist_ok=True)
        files = [
            *source.glob("src/**/*.cpp"),
            source / "python/src/origami/bindings.cpp",
            bindings / "src/nb_combined.cpp",
        ]
        include = [room, source / "include", bindings / "include", bindings / "ext/robin_map/include"]
        include.append(Path(sysconfig.get_path("include")))
        built = folder / "origami" / f"origami{sysconfig.get_config_var('EXT_SUFFIX')}"
        flags = [
            "-O1",
            "-w",
            "-std=c++17",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            *(f"-I{each}" for each in include),
        ]
        _run([compiler, *flags, *map(str, files), "-o", str(built)], "the compiler")


def _fetched(room: Path) -> tuple[Path, Path]:
    """Where the sources of Origami and of its binding generator lie."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run(
        [*pip, "download", "--no-deps", "--no-binary=rocm-origami", f"--dest={room}", f"rocm-origami=={VERSION}"], "pip"
    )
    _run([*pip, "install", f"--target={room / 'site'}", NANOBIND], "pip")
    with tarfile.open(next(room.glob("*.tar.gz"))) as archive:
        archive.extractall(room, filter="data")
    return room / f"rocm_origami-{VERSION}", room / "site" / "nanobind"


def _run(command: list[str], who: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{who} failed: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
