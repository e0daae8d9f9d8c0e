"""The emulator's state: JSON records by kind and key, kept in SQLite over restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localcloud.core.reading import require_read

Record = dict[str, Any]
POLICY = "policy"
"""The kind of IAM policies; the key is the full name of the resource they are set on."""


class Store:
    """Records by (kind, key), in memory for reading, on disk first: a full one changes neither.

    Every read gives a copy: a handler changes a record and puts it back. Handlers that read,
    change and write hold `locked()` meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # A killed emulator loses nothing this way; only a power cut might.
        # Asked for first, it also spares the start two waits for the disk.
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS record "
            "(kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID"
        )
        self._records: dict[str, dict[str, str]] = {}
        for kind, key, value in self._db.execute("SELECT kind, key, value FROM record"):
            self._records.setdefault(kind, {})[key] = value

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold off every other reader and writer; reentrant."""
        with self._lock:
            yield

    def get(self, kind: str, key: str) -> Record | None:
        """Return a copy of the record, or None."""
        with self._lock:
            value = self._records.get(kind, {}).get(key)
        return json.loads(value) if value is not None else None

    def load(self, kind: str, key: str, missing: Exception) -> Record:
        """Return a copy of the record; raise `missing` when there is none."""
        record = self.get(kind, key)
        if record is None:
            raise missing
        return record

    def add(self, kind: str, key: str, record: Record, taken: Exception) -> None:
        """Create the record; raise `taken` when there is one."""
        with self._lock:
            if key in self._records.get(kind, {}):
                raise taken
            self.put(kind, key, record)

    def put(self, kind: str, key: str, record: Record) -> None:
        """Create or replace the record."""
        value = json.dumps(record, separators=(",", ":"))
        require_read()
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (kind, key, value))
            self._records.setdefault(kind, {})[key] = value

    def delete(self, kind: str, key: str) -> bool:
        """Remove the record; False when there was none."""
        require_read()
        with self._lock:
            if key not in self._records.get(kind, {}):
                return False
            self._db.execute("DELETE FROM record WHERE kind = ? AND key = ?", (kind, key))
            del self._records[kind][key]
            return True

    def keys(self, kind: str, prefix: str = "") -> list[str]:
        """Return the keys of a kind that begin with `prefix`, sorted."""
        with self._lock:
            return sorted(key for key in self._records.get(kind, {}) if key.startswith(prefix))

    def items(self, kind: str, prefix: str = "") -> list[tuple[str, Record]]:
        """Return copies of the records of a kind whose key begins with `prefix`, sorted by key."""
        with self._lock:
            records = self._records.get(kind, {})
            found = [(key, value) for key, value in records.items() if key.startswith(prefix)]
        return [(key, json.loads(value)) for key, value in sorted(found)]

    def mentioning(self, kind: str, prefix: str, text: str) -> list[str]:
        """Return the sorted keys of records below `prefix` with the string `text` as a value."""
        quoted = json.dumps(text)
        with self._lock:
            records = self._records.get(kind, {}).items()
            return sorted(k for k, value in records if k.startswith(prefix) and quoted in value)

    def counts(self) -> dict[str, int]:
        """Return how many records there are of each kind."""
        with self._lock:
            return {kind: len(records) for kind, records in self._records.items() if records}

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()
