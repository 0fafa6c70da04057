"""Runs a command of one of the two programs as a user does: streams, a folder and an environment of its own.

The command runs in the process of the tests, where Python, the packages and catalogues are loaded already: it costs what
it does, not seconds of imports. With ``fresh`` it is a new interpreter, for tests of what only a process has.
"""

import contextlib
import importlib
import io
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
Done = subprocess.CompletedProcess[str]


def run(
    program: str,
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    fresh: bool = False,
) -> Done:
    """``python -m PROGRAM ARGUMENTS`` in ``cwd`` (default: the checkout) with ``env`` beside the variables of the tests."""
    words = [str(word) for word in arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **(env or {})}
    if fresh:
        command = [sys.executable, "-m", program, *words]
        options = {"capture_output": True, "encoding": "utf-8", "timeout": timeout, "check": False}
        return subprocess.run(command, cwd=cwd or ROOT, env=variables, **options)
    main = importlib.import_module(f"{program}.__main__").main
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(contextlib.redirect_stdout(out))
        enter(contextlib.redirect_stderr(err))
        enter(contextlib.chdir(cwd or ROOT))
        enter(mock.patch.dict(os.environ, variables))
        enter(mock.patch.object(sys, "argv", ["", *words]))
        enter(mock.patch.object(sys, "path", [str(cwd or ROOT), *sys.path]))
        enter(mock.patch.object(sys, "stdin", io.StringIO()))
        enter(mock.patch.object(tempfile, "tempdir", None))
        enter(warnings.catch_warnings())
        warnings.resetwarnings()
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        warnings.showwarning = lambda *about: sys.stderr.write(warnings.formatwarning(*about[:4]))
        code = _code(main)
    return Done([program, *words], code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def on_terminal(stream: str, program: str, *arguments: str, cwd: Path | None = None) -> tuple[str, str]:
    """What a command that succeeds shows on a terminal at ``stream``, and what it writes into a pipe that is stdout."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "80"}
    command = [sys.executable, "-m", program, *arguments]
    running = subprocess.Popen(command, cwd=cwd or ROOT, env=env, **{"stdout": subprocess.PIPE, stream: theirs})
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    out, _ = running.communicate(timeout=600)
    os.close(ours)
    assert running.returncode == 0
    return shown.decode(), (out or b"").decode()


def told(program: str, *arguments: str | Path) -> str:
    """What a command that succeeds, called from here, says on stdout."""
    done = run(program, *arguments, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


def document(program: str, *arguments: str | Path) -> Any:
    """The document of a command that succeeds."""
    return json.loads(told(program, *arguments, "--json"))


def refused(program: str, *arguments: str | Path) -> str:
    """What a command says on stderr that refuses: exit code 2, nothing on stdout, no traceback."""
    done = run(program, *arguments, cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def _code(main: Callable[[], int]) -> int:
    try:
        return main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception:
        traceback.print_exc()
        return 1
