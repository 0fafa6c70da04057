"""The tables of a store of history, and the steps that bring an older store to them.

History of the version (``PRAGMA user_version``)
    1  first tables.
"""

from __future__ import annotations

#: ``PRAGMA application_id``: "hist"; tells a store from any other file of SQLite.
APPLICATION = 0x68697374

#: ``STEPS[n]``: from version n to n + 1. ``item``: a row or the facts of a run, as JSON; what two recordings share is kept
#: once. ``recording.body``: the recording, and the numbers of its items in order. ``hash``: of the body beside it.
STEPS: tuple[tuple[str, ...], ...] = (
    (
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
    ),
)

VERSION = len(STEPS)
