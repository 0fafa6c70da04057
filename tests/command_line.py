"""Runs a command of one of the two programs as a user does: a process, streams, a folder and an environment of its own.

The process is forked from that of the tests, where Python and the packages are loaded already: a command then costs what
it does, not a second of imports. Beside torch, whose threads outlive no fork, and with ``fresh`` it is a new interpreter.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn, TextIO

ROOT = Path(__file__).resolve().parents[1]
_WITH_TORCH = ("projector.benchmark", "harness.measure")
Done = subprocess.CompletedProcess[str]


def run(
    program: str,
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    fresh: bool = False,
) -> Done:
    """``python -m PROGRAM ARGUMENTS`` in ``cwd`` (default: the checkout) with ``env`` beside the variables of the tests."""
    words = [str(word) for word in arguments]
    folder = cwd or ROOT
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **(env or {})}
    if fresh or "torch" in sys.modules or not hasattr(os, "fork"):
        command = [sys.executable, "-m", program, *words]
        return subprocess.run(
            command,
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            encoding="utf-8",
        )
    main = _loaded(program)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        child = os.fork()
        if child == 0:
            _become(main, words, folder, variables, out, err)
        code = _wait(child, timeout)
        out.seek(0)
        err.seek(0)
        return Done([program, *words], code, out.read(), err.read())


@cache
def _loaded(program: str) -> Callable[[], int]:
    """The program's ``main``, with all of its modules imported: commands import theirs when they are called."""
    for found in pkgutil.walk_packages(importlib.import_module(program).__path__, f"{program}."):
        if not found.name.startswith(_WITH_TORCH):
            importlib.import_module(found.name)
    if program == "harness":
        evaluate = importlib.import_module("harness.evaluation.evaluate")
        for name, rows in (evaluate.observations.packaged() or {}).items():
            evaluate._fit(name, (), rows)  # remembered by ``conditioned_once`` of tests/conftest.py
    return importlib.import_module(f"{program}.__main__").main


def _wait(child: int, timeout: float) -> int:
    last = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > last:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise subprocess.TimeoutExpired(str(child), timeout)
        time.sleep(0.005)


def _become(
    main: Callable[[], int], words: list[str], folder: Path, variables: Mapping[str, str], out: TextIO, err: TextIO
) -> NoReturn:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, "r" if i == 0 else "w", encoding="utf-8") for i in range(3))
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        tempfile.tempdir = None
        sys.path.insert(0, str(folder))
        sys.argv = ["", *words]
        warnings.resetwarnings()
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        warnings.showwarning = lambda *about: sys.stderr.write(warnings.formatwarning(*about[:4]))
        try:
            code = main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
