"""Computes answers in a process of its own, which is stopped after a time and limited in memory."""

from __future__ import annotations

import multiprocessing
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from projector.dataclass import dataclass
from projector.errors import InputError, Unsupported

_MEMORY = 6 << 30  # bytes of address space of the process
_KEPT = 256  # cached answers
_WAITING = 8  # questions that may wait


@dataclass(frozen=True)
class Answer:
    """An answer: ``status`` of HTTP with a document."""

    status: int
    document: Mapping[str, Any]


class Worker:
    """Answers one question after the other. ``seconds``: limit of one answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn, self._room = threading.Lock(), threading.BoundedSemaphore(_WAITING)
        self._kept: OrderedDict[tuple[Any, ...], Answer] = OrderedDict()
        self._process: Any = None
        self._pipe: Any = None

    def answer(self, command: str, query: Mapping[str, str]) -> Answer:
        """Returns a cached or computed answer: 400 for a mistake, 422 for what is not modelled, 503 for a full queue or
        a timeout."""
        key = (command, *query.items())
        if (known := self._kept.get(key)) is not None:
            return known
        if not self._room.acquire(blocking=False):
            return _refused(503, f"more than {_WAITING} questions wait")
        try:
            with self._turn:
                reply = self._ask_process(command, query)
        finally:
            self._room.release()
        if reply.status != 503:
            self._kept[key] = reply
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return reply

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _ask_process(self, command: str, query: Mapping[str, str]) -> Answer:
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_answer_until_closed, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((command, dict(query)))
            if self._pipe.poll(self._seconds):
                return Answer(*self._pipe.recv())
        except (EOFError, OSError):
            self.close()
            return _refused(503, "it takes more memory than it may")
        self.close()
        return _refused(503, f"it takes more than {self._seconds:g} s")


def _answer_until_closed(pipe: Connection) -> None:
    with suppress(ImportError):  # not on Windows
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if most < 0 else min(_MEMORY, most), most))
    while True:
        try:
            command, query = pipe.recv()
        except EOFError:
            return
        reply = computed(command, query)
        pipe.send((reply.status, dict(reply.document)))


def computed(command: str, query: Mapping[str, str]) -> Answer:
    """Returns the answer, computed in this process."""
    from projector.cli import as_json
    from projector.serve import answers

    try:
        return Answer(200, as_json.plain(answers.known() if command == "catalogue" else answers.answer(command, query)))
    except InputError as error:
        keys = ((p.key or p.where).removeprefix("recipe.").lstrip("-") for p in error.problems)
        keyed = zip(keys, error.problems, strict=True)
        problems = ({"key": key, "found": str(p.found), "expected": p.expected} for key, p in keyed)
        return Answer(400, {"schema_version": 1, "errors": list(problems)})
    except Unsupported as error:
        return _refused(422, str(error))
    except MemoryError:
        return _refused(503, "it takes more memory than it may")


def _refused(status: int, why: str) -> Answer:
    return Answer(status, {"schema_version": 1, "errors": [{"key": "", "found": why, "expected": "another question"}]})
