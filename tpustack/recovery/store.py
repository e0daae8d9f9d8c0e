"""Files next to the state: in the folder or the bucket of the engine's backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from infra.names import backend
from tpu_core.bucket import Bucket as Store
from tpustack.cloud.google import Google


def store_of(environment: Mapping[str, str]) -> Folder | Bucket | None:
    """Return the files of a backend; None where it is neither a folder nor a bucket of Google's."""
    url = urlsplit(backend(environment))
    if url.scheme == "file" and url.netloc + url.path:
        return Folder(Path(url.netloc + url.path).expanduser())
    return Bucket(url.netloc, url.path.strip("/")) if url.scheme == "gs" else None


class Folder:
    """A folder's. All raise OSError where it can't be read or written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def files(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield names and texts of the files in a folder."""
        for path in (self._root / folder).glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                yield f"{folder}{path.name}", path.read_text(encoding="utf-8", errors="replace")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        # The engine keeps a file's hash next to it.
        for each in (name, f"{name}.attrs"):
            (self._root / each).unlink(missing_ok=True)


class Bucket:
    """A bucket's. All raise TpustackError where it can't be reached, OSError where it refuses."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._store = Store(bucket, Google().exchange)
        self._prefix = f"{prefix}/" if prefix else ""

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        self._store.write(self._prefix + name, text.encode())

    def files(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield names and texts of the files in a folder."""
        for each in self._store.items(self._prefix + folder):
            if there := self._store.read(each.path):
                name = each.path.removeprefix(self._prefix)
                yield name, there[0].decode(errors="replace")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        if there := self._store.look(self._prefix + name):
            self._store.delete(self._prefix + name, there.generation)
