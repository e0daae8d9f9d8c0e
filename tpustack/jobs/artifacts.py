"""The files that a job has left in the bucket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpustack.errors import TpustackError


@dataclass(frozen=True)
class Artifact:
    """A file: its name in the job's folder, where it lies, its size."""

    name: str
    url: str
    bytes: int


def of_job(queue: Queue, job: str) -> list[Artifact]:
    """Return what lies in a job's folder, but for its logs. Raises StoreError."""
    folder, logs = paths.folder(job), paths.logs(job)
    bucket = queue.store.bucket
    return [
        Artifact(item.path.removeprefix(folder), f"gs://{bucket}/{item.path}", item.size)
        for item in queue.store.items(folder)
        if not item.path.startswith(logs) and not item.path.endswith("/")
    ]


def download(queue: Queue, found: Iterable[Artifact], output: Path) -> None:
    """Write files into a folder.

    Raises:
        TpustackError: a name leads out of it, or it can't be written.
        StoreError: the bucket refuses.
    """
    bucket = f"gs://{queue.store.bucket}/"
    for one in found:
        name = PurePosixPath(one.name)
        if name.is_absolute() or ".." in name.parts:
            raise TpustackError(f"{one.url} is not downloaded: its name leads out of {output}")
        content = queue.store.read(one.url.removeprefix(bucket))
        if content is None:
            continue
        path = output / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content[0])
        except OSError as error:
            raise TpustackError(f"--output: {path} can't be written: {error.strerror}") from None
