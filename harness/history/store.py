"""The store of history: one SQLite file. A recording is one transaction, so it is in the store whole or not at all,
whoever writes beside it and whenever the process is killed (SQLite rolls the torn one back when the file is next
opened). Every mistake is an :class:`InputError` that names the file: damaged, foreign, of a newer version, locked, not
writable."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from harness.contracts.results import SCHEMA_VERSION, Row, RunFacts
from projector.dataclass import dataclass
from projector.errors import NO_FILE, InputError, Problem

#: ``PRAGMA application_id``: "hist"; tells a store from any other file of SQLite.
APPLICATION = 0x68697374

VERSION = 1
#: The tables of this version. ``item``: a row or the facts of a run, as JSON, kept once for all recordings that share it.
#: ``recording.body``: the recording, and the numbers of its items in order. ``hash``: of the body beside it.
_TABLES = (
    "CREATE TABLE recording (id INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE item (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, body TEXT NOT NULL)",
    # for people with a shell of SQLite: every recorded row with its recording
    """CREATE VIEW recorded_row AS SELECT recording.id AS recording,
        json_extract(recording.body, '$.recording.recorded') AS recorded,
        json_extract(recording.body, '$.recording.revision') AS revision,
        json_extract(item.body, '$.suite') AS suite, json_extract(item.body, '$.run_id') AS run_id,
        json_extract(item.body, '$.predictor') AS predictor, json_extract(item.body, '$.fit') AS fit,
        json_extract(item.body, '$.error') AS error, item.body AS body
        FROM recording, json_each(recording.body, '$.rows') AS place JOIN item ON item.id = place.value""",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_WAIT = 60.0  # seconds for another writer to finish: a recording takes less than one
_EXPECTED = "a store of history that `harness run --record` wrote"
_RUN_OWN = ("seconds_to_project",)  # differs from one run of the same code to the next


def check(path: Path) -> None:
    """Raises :class:`InputError` where a recording could not be appended to ``path``. Nothing is written."""
    if not path.exists():
        if path.parent.exists() and not path.parent.is_dir():
            raise InputError([Problem(str(path), "", f"{path.parent} is no folder", "a path that can be written")])
        return
    with _opened(path) as store:
        _version(store, path)
        store.execute("BEGIN IMMEDIATE")
        store.execute("ROLLBACK")


def append(path: Path, recording: Recording, rows: Sequence[Row], facts: Mapping[str, RunFacts]) -> None:
    """Adds one evaluation; makes the store where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path, create=True) as store:
        store.execute("BEGIN IMMEDIATE")
        try:
            for statement in () if _version(store, path) else _TABLES:
                store.execute(statement)
            _insert(store, recording, rows, facts)
            store.execute("COMMIT")
        except BaseException:
            if store.in_transaction:
                store.execute("ROLLBACK")
            raise


def read(path: Path, fit: str = "") -> tuple[Recorded, ...]:
    """Returns all recordings in the order in which they were written, each with its rows (of one ``fit``, if stated)."""
    with _opened(path) as store:
        store.execute("BEGIN")  # all reads see one state
        if not _version(store, path, whole=True):
            raise _wrong(path, "an empty file", _EXPECTED)
        bodies = [_checked(*record) for record in store.execute("SELECT hash, body FROM recording ORDER BY id")]
        for body in bodies:
            if body["row_schema"] > SCHEMA_VERSION:
                raise _wrong(path, f"rows of schema {body['row_schema']}", f"rows of schema {SCHEMA_VERSION} or older")
        items = {number: _checked(*rest) for number, *rest in store.execute("SELECT id, hash, body FROM item")}
        if any(number not in items for body in bodies for number in (*body["rows"], *body["facts"])):
            raise sqlite3.DatabaseError("a row is missing")
        rows = {number: Row(**item) for number, item in items.items() if "fit" in item and fit in ("", item["fit"])}
        facts = {number: _facts(items[number]) for body in bodies for number in body["facts"]}
        return tuple(_recorded(body, rows, facts) for body in bodies)


def _recorded(body: Mapping[str, Any], rows: Mapping[int, Row], facts: Mapping[int, RunFacts]) -> Recorded:
    known = [facts[number] for number in body["facts"]]
    chosen = tuple(rows[number] for number in body["rows"] if number in rows)
    return Recorded(recording=Recording(**body["recording"]), rows=chosen, facts={fact.run_id: fact for fact in known})


def _facts(mapping: Mapping[str, Any]) -> RunFacts:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in mapping.items()}
    return RunFacts(**values)


def _checked(digest: str, body: str) -> dict[str, Any]:
    """Returns a body as it was written. Raises where it does not match its hash."""
    if _hash(body) != digest:
        raise sqlite3.DatabaseError("a row is not what it was when it was written")
    return dict(json.loads(body))


def _insert(
    store: sqlite3.Connection, recording: Recording, rows: Sequence[Row], facts: Mapping[str, RunFacts]
) -> None:
    body = _text(
        {
            "recording": asdict(recording),
            "row_schema": SCHEMA_VERSION,
            "rows": [_item_number(store, _stated(row)) for row in rows],
            "facts": [_item_number(store, fact.to_mapping()) for fact in facts.values()],
        }
    )
    store.execute("INSERT INTO recording (hash, body) VALUES (?, ?)", (_hash(body), body))


def _stated(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.to_mapping().items() if value is not None and name not in _RUN_OWN}


def _item_number(store: sqlite3.Connection, item: Mapping[str, Any]) -> int:
    """Returns the number of ``item``, which is added where the store does not hold it yet."""
    body = _text(item)
    digest = _hash(body)
    stored = store.execute("SELECT id FROM item WHERE hash = ?", (digest,)).fetchone()
    if stored:
        return int(stored[0])
    return int(store.execute("INSERT INTO item (hash, body) VALUES (?, ?)", (digest, body)).lastrowid or 0)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


@contextmanager
def _opened(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """Yields a connection without transactions of its own; exceptions of SQLite or by a foreign body become one mistake."""
    if not create and not path.is_file():
        raise _wrong(path, "a folder" if path.is_dir() else NO_FILE, _EXPECTED)
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_WAIT, isolation_level=None)) as store:
            yield store
    except sqlite3.OperationalError as error:
        locked = "locked" in str(error)
        raise _wrong(path, str(error), "a store that no other process holds" if locked else _EXPECTED) from None
    except sqlite3.DatabaseError as error:
        raise _wrong(path, f"damage ({error})", _EXPECTED) from None
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise _wrong(path, f"other content ({type(error).__name__}: {error})", _EXPECTED) from None


def _version(store: sqlite3.Connection, path: Path, *, whole: bool = False) -> int:
    """Returns the version of the store. Raises :class:`InputError` for a file that is no store of ours, or a newer one;
    ``whole``: for damage as well."""
    (application,) = store.execute("PRAGMA application_id").fetchone()
    (version,) = store.execute("PRAGMA user_version").fetchone()
    (tables,) = store.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION:
        if tables or application or version:
            raise _wrong(path, "a database of another program", _EXPECTED)
        return 0
    if version > VERSION:
        raise _wrong(path, f"version {version}", f"version {VERSION} or older; a newer harness wrote this store")
    if whole and (report := store.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(str(report))
    return int(version)


def _wrong(path: Path, found: str, expected: str) -> InputError:
    return InputError([Problem(str(path), "", found, expected)])


_SHORT = 9  # letters of a revision or digest, enough to distinguish the versions of one project


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The origin of the rows of one evaluation. Nothing in it names a machine.

    ``recorded``, ``committed``: ISO 8601 in UTC; ``revision``, ``committed`` and ``subject`` are empty away from a
    checkout. ``code``: hash of both packages as they ran, data included; ``changed``: files of the checkout differed
    from the revision. ``suites``: name → hash of the suite's file and of all runs that it read; all of them were
    evaluated, and so calibrated, together. ``settings``: those of the kernels that are not the default; ``versions``: of
    distributions, and the hash of the measured kernel tables.
    """

    recorded: str
    version: str
    code: str
    mode: str
    suites: Mapping[str, str]
    revision: str = ""
    committed: str = ""
    subject: str = ""
    changed: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Returns the revision, with the hash of the code where the revision does not identify the code."""
        name = self.revision[:_SHORT] or self.version
        return name if self.revision and not self.changed else f"{name}+{self.code[:_SHORT]}"

    @property
    def date(self) -> str:
        """Returns the day on which the code was made."""
        return (self.committed or self.recorded)[:10]

    @property
    def order(self) -> tuple[str, bool, str]:
        """Returns the sort key of versions as they were made: as committed, uncommitted changes behind their commit."""
        return (self.committed or self.recorded, self.changed, self.recorded)

    @property
    def key(self) -> tuple[object, ...]:
        """Returns the identity of an evaluation: two recordings of one key are the same evaluation, made twice."""
        stated = ({name: repr(value) for name, value in self.settings.items()}, self.suites, self.versions)
        return (self.revision, self.code, self.mode, *(tuple(sorted(values.items())) for values in stated))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recording with the rows that were asked for, in the order of their evaluation, and the facts of their runs."""

    recording: Recording
    rows: tuple[Row, ...]
    facts: Mapping[str, RunFacts]
