"""Operations as google.longrunning.Operation shows them."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.core.store import Record

EMPTY: Json = {"@type": "type.googleapis.com/google.protobuf.Empty"}
"""The response of an operation that leaves nothing to show."""


def shown(name: str, metadata: Json, record: Record, response: Callable[[Json], Json]) -> Json:
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
