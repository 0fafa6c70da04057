"""Wraps every command of both programs: decides how mistakes, signals and closed pipes end it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from projector.errors import InputError, NoMeasurement, Problem, Unsupported

_WRITABLE = "a path that can be read or written"
_INTERRUPTED, _TERMINATED = 130, 143  # 128 + the number of the signal, as shells say it
#: Packages of the extra ``harness``, which are loaded when they are used.
_EXTRA = ("scipy", "pandas", "matplotlib", "shtab", "junitparser", "tree-sitter", "tree-sitter-bash")


def guarded(command: Callable[[], int]) -> int:
    """Returns the exit code of ``command``: its own, or 2 for wrong input, with every mistake on its own line of
    stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" for a dash, not a traceback
    try:
        with _terminable():
            code = command()
            sys.stdout.flush()
            return code
    except InputError as error:
        return _refused(*error.lines())
    except Unsupported as error:
        return _refused(f"unsupported: {error}")
    except NoMeasurement as error:
        return _refused(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0].replace("_", "-")
        if package not in _EXTRA:
            raise
        return _refused(f"this needs the package {package}: pip install 'projector-harness[harness]'")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, a pager) closed first: that is no failure of ours, and Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # What a full disk left in the buffer of stdout goes nowhere: Python would try once more at exit, and
        # complain.
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refused(str(Problem(str(error.filename or "output"), "", error.strerror or str(error), _WRITABLE)))


def _refused(*lines: str) -> int:
    for line in lines:
        print(line, file=sys.stderr)
    return 2


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes ``kill`` end a command as an exception does, so that temporary files and child processes are cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    handler = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
