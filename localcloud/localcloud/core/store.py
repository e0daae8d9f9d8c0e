"""The emulator's state: JSON records in SQLite, and long-running operations.

An operation's effect is a function registered by name, so that one that is still to come survives
a restart of the emulator: the store holds its name and arguments.
"""

import itertools
import json
import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from localcloud.core.body import require_read
from localcloud.core.call import Json, compact
from localcloud.core.clock import Clock, rfc3339
from localcloud.core.errors import ApiError

Record = dict[str, Any]
POLICY = "policy"
"""The kind of IAM policies; the key is the full name of the resource they are set on."""
log = logging.getLogger(__name__)
Effect = Callable[..., "Record | None"]
_EFFECTS: dict[str, Effect] = {}
_OPERATION = "operation"
_parsed: Callable[[str], Record] = lru_cache(maxsize=512)(json.loads)
EMPTY: Json = {"@type": "type.googleapis.com/google.protobuf.Empty"}
"""The response of an operation that leaves nothing to show."""


def public(record: Record) -> Record:
    """Return a record without the emulator's own fields, whose names begin with `_`."""
    return {field: value for field, value in record.items() if not field.startswith("_")}


class Store:
    """Records by (kind, key), in memory for reading, on disk first: a full one changes neither.

    Values stay JSON text in memory, too: parsing is how every reader gets a copy of its own.

    Every read gives a copy: a handler changes a record and puts it back. Handlers that read,
    change and write hold `locked()`.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # No other process opens it: one lock for good spares seven system calls with each change.
        # Asked for before anything is read, it also spares the file of the journal's index.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        # A killed emulator loses nothing this way; only a power cut might (sqlite.org/pragma.html).
        # Asked for before the journal, it also spares the start two waits for the disk.
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS record "
            "(kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID"
        )
        self._records: dict[str, dict[str, str]] = {}
        for kind, key, value in self._db.execute("SELECT kind, key, value FROM record"):
            self._records.setdefault(kind, {})[key] = value

    def locked(self) -> AbstractContextManager[object]:
        """Hold off every other reader and writer; reentrant."""
        return self._lock

    def get(self, kind: str, key: str) -> Record | None:
        """Return a copy of the record, or None."""
        with self._lock:
            value = self._records.get(kind, {}).get(key)
        return json.loads(value) if value is not None else None

    def view(self, kind: str, key: str) -> Record | None:
        """Return what `get` does, to be read alone: the same object each time, until it changes."""
        with self._lock:
            value = self._records.get(kind, {}).get(key)
        return _parsed(value) if value is not None else None

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
        """Create or replace the record, once the handler has read all that its caller sent."""
        value = compact(record)
        require_read()
        with self._lock:
            self._write("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (kind, key, value))
            self._records.setdefault(kind, {})[key] = value

    def delete(self, kind: str, key: str) -> bool:
        """Remove the record; False when there was none."""
        require_read()
        with self._lock:
            if key not in self._records.get(kind, {}):
                return False
            self._write("DELETE FROM record WHERE kind = ? AND key = ?", (kind, key))
            del self._records[kind][key]
            return True

    def _write(self, statement: str, values: tuple[str, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            # Python before 3.11 has no sqlite_errorcode: SQLITE_FULL is known by its text alone.
            if "disk is full" not in str(error):
                raise
            raise ApiError(507, f"the local cloud's disk is full: {error}") from None

    def has(self, kind: str) -> bool:
        """Return whether there is a record of a kind."""
        return bool(self._records.get(kind))

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
        """Return the sorted keys of records below `prefix` with the string `text` as a value.

        A search in text is faster than parsing all records, and exact enough: names are whole
        values.
        """
        quoted = json.dumps(text)
        with self._lock:
            records = self._records.get(kind, {}).items()
            return sorted(k for k, value in records if k.startswith(prefix) and quoted in value)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()


def effect(name: str) -> Callable[[Effect], Effect]:
    """Register `function(cloud, **arguments)`; what it returns is the operation's response."""

    def register(function: Effect) -> Effect:
        if name in _EFFECTS:
            raise ValueError(f"effect {name} is registered twice")
        _EFFECTS[name] = function
        return function

    return register


class NotYetError(Exception):
    """What an effect raises to be run again in some seconds; its operation lasts until then."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Work:
    """What an operation does, and when.

    Attributes:
        effect: the name under which the effect is registered. An ApiError that it raises becomes
            the operation's error; what it returns becomes the operation's response.
        arguments: the effect's arguments, besides the cloud.
        seconds: how long the operation takes; 0 for one that is done in its first answer.
    """

    effect: str
    arguments: Record
    seconds: float = 0.0


@effect("report")
def _report(cloud: object, response: Record) -> Record:
    return response


class Operations:
    """All operations of the cloud, by key (the path under which clients poll them).

    A record has `about` (what the service shows of it), `started` and `finished`
    (seconds since the epoch), `done`, `response` and `error` (a google.rpc.Status).

    Args:
        store: where they are kept.
        clock: tells the time and runs what is still to come.
        cloud: the first argument of every effect.
    """

    def __init__(self, store: Store, clock: Clock, cloud: object) -> None:
        self._store = store
        self._clock = clock
        self._cloud = cloud
        # Numbers are taken more slowly than microseconds pass, so a restart begins beyond the last.
        self._sequence = itertools.count(int(clock.now() * 1e6))

    def number(self) -> int:
        """Return a number that no earlier operation or resource had."""
        return next(self._sequence)

    def start(self, key: str, work: Work, about: Record | None = None) -> Record:
        """Do the work when its seconds have passed; at once, inside this call, when it has none."""
        now = self._clock.now()
        record: Record = {
            "about": about or {},
            "effect": work.effect,
            "arguments": work.arguments,
            "started": now,
            "due": now + work.seconds,
            "done": False,
        }
        self._store.put(_OPERATION, key, record)
        if work.seconds > 0:
            self._clock.at(record["due"], partial(self._finish, key))
        else:
            self._finish(key)
        return self._store.get(_OPERATION, key) or record

    def report(self, key: str, response: Record) -> Record:
        """Keep an operation that was done before it was asked about."""
        return self.start(key, Work("report", {"response": response}))

    def load(self, key: str, missing: Exception) -> Record:
        """Return the operation's record; raise `missing` when there is none."""
        return self._store.load(_OPERATION, key, missing)

    def items(self, prefix: str) -> list[tuple[str, Record]]:
        """Return operations whose key begins with `prefix`."""
        return self._store.items(_OPERATION, prefix)

    def resume(self) -> None:
        """Plan again what was still to come when the emulator stopped."""
        for key, record in self._store.items(_OPERATION):
            if not record["done"]:
                self._clock.at(record["due"], partial(self._finish, key))

    def _finish(self, key: str) -> None:
        # A restart of the emulator may plan one twice.
        record = self._store.get(_OPERATION, key)
        if record is None or record["done"]:
            return
        try:
            record["response"] = _EFFECTS[record["effect"]](self._cloud, **record["arguments"])
        except NotYetError as later:
            record["due"] = self._clock.now() + later.seconds
            self._store.put(_OPERATION, key, record)
            self._clock.at(record["due"], partial(self._finish, key))
            return
        except ApiError as error:
            record["error"] = error.rpc_status() | {"http": error.code, "reason": error.reason}
        except Exception as error:
            log.exception("operation %s failed inside the emulator", key)
            record["error"] = ApiError(500, f"Internal error: {error}").rpc_status()
        record["done"] = True
        record["finished"] = self._clock.now()
        self._store.put(_OPERATION, key, record)


def show_operation(
    name: str, metadata: Json, record: Record, response: Callable[[Json], Json]
) -> Json:
    """Return an operation.

    Args:
        name: its full name.
        metadata: the API's own; a finished operation's gets its end.
        record: of the operation.
        response: puts the resource that it made into the API's form, with its type.
    """
    operation: Json = {"name": name, "metadata": metadata, "done": record["done"]}
    if not record["done"]:
        return operation
    metadata["endTime"] = rfc3339(record["finished"])
    if "error" in record:
        error = record["error"]
        return operation | {"error": {"code": error["code"], "message": error["message"]}}
    made = record.get("response")
    return operation | {"response": {**(EMPTY if made is None else response(made))}}
