"""Read the files of a job's ledger, from a directory or a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from tpu_training.goodput.ledger import File
    from tpustack.cloud.google import Google

_OBJECTS = "https://storage.googleapis.com/storage/v1/b/{}/o"
_SCHEME = "gs://"
_AT_ONCE = 8


def files_of(model_dir: str, google: Google | None = None) -> Iterator[File]:
    """Yield the files of the ledger in a model directory. Raises TpustackError.

    Args:
        model_dir: here or gs://…
        google: the access to Google that is there already.
    """
    where = model_dir.rstrip("/")
    yield from _objects(where, google) if where.startswith(_SCHEME) else _paths(where)


def _paths(where: str) -> Iterator[File]:
    from tpu_training.goodput.ledger import ASIDE, FOLDER, File

    folder = Path(where, FOLDER)
    for path in sorted(folder.glob(f"*{ASIDE}")):
        yield File(str(path), "")
    for path in sorted(folder.glob("*.json")):
        yield File(str(path), path.read_text(encoding="utf-8", errors="replace"))


def _objects(where: str, google: Google | None) -> Iterator[File]:
    """Yield the files with the time at which the bucket says that they were written."""
    from tpu_training.goodput.ledger import ASIDE, FOLDER, File
    from tpustack.cloud.google import Google

    google = google or Google()
    bucket, _, folder = where.removeprefix(_SCHEME).partition("/")
    objects = _OBJECTS.format(quote(bucket, safe=""))

    def fetch(item: dict[str, Any]) -> File:
        if item["name"].endswith(ASIDE):
            return File(f"{_SCHEME}{bucket}/{item['name']}", "")
        text = google.text(f"{objects}/{quote(item['name'], safe='')}", {"alt": "media"})
        return File(f"{_SCHEME}{bucket}/{item['name']}", text, _seconds(item["updated"]))

    # A job that was preempted often has hundreds.
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = google.pages(objects, "items", {"prefix": f"{folder}/{FOLDER}/"})
        kinds = (".json", ASIDE)
        # TensorFlow's own marks of folders are objects, too.
        yield from threads.map(fetch, (item for item in found if item["name"].endswith(kinds)))


def _seconds(timestamp: str) -> float:
    # Python 3.10 does not read Z.
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
