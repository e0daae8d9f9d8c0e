"""Where a conversion writes: a folder, or one of a bucket, from which a training may read then."""

from __future__ import annotations

import glob
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tpu_training.cluster.google import is_bucket
from tpu_training.data import manifest
from tpu_training.errors import DataError, InputError, describe

# Files that are open at once, with some others. macOS allows a process 10,240.
MOST_OPEN = 8192
# Those of a bucket that are on this machine's disk at the same time: a GiB.
_AT_ONCE = 64
# A training that reads them ends if it hears nothing for much longer (data/data_set.py).
_BEAT_SECONDS = 10.0
# What a conversion writes before its plan; none of them is whole data.
_REMAINS = re.compile(rf".*-\d{{5}}-of-\d{{5}}\.tfrecord|{manifest.PROGRESS}")
_Part = TypeVar("_Part")

logger = logging.getLogger(__name__)


def refuse_used(output: str) -> None:
    """Raise InputError if `output` holds something: a second set would mix with the first.

    Hidden files don't count: some systems put one into every new folder.
    """
    if is_bucket(output):
        if not output.startswith("gs://"):
            raise InputError(f"--output={output}: expected a local directory or gs://BUCKET/FOLDER")
        import tensorflow as tf

        from tpu_training.data import files

        files.check_bucket(output, "--output")
        # Unlike `listdir`, it fails where the bucket doesn't answer.
        pattern = f"{glob.escape(output.rstrip('/'))}/*"
        found = [path.rstrip("/").rpartition("/")[2] for path in tf.io.gfile.glob(pattern)]
        if manifest.FILE_NAME not in found:
            killed = manifest.PLAN in found
            found = [name for name in found if not (killed or _REMAINS.fullmatch(name))]
    else:
        found = os.listdir(output) if os.path.isdir(output) else []
    names = sorted(name for name in found if not name.startswith("."))
    if names:
        what = f"is not empty ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        raise InputError(f"--output={output}: {what}; choose a new folder, or remove this one")


@dataclass
class NewFolder:
    """Where files are written; those of a bucket's `url` go there as soon as they are finished.

    So a dataset may be larger than this machine's disk. `finished` is how many training files a
    training may read, -1 before the plan is there.
    """

    path: Path
    url: str = ""
    _there: set[str] = field(default_factory=set)
    finished: int = -1
    _beats: int = 0
    _beaten: float = 0.0

    @property
    def at_once(self) -> int:
        """How many files may be open and unfinished at the same time."""
        return _AT_ONCE if self.url else MOST_OPEN

    def finish(self, path: Path) -> None:
        """Let a finished file be where it belongs. Raises InputError."""
        if not self.url:
            return
        import tensorflow as tf

        url = f"{self.url}/{path.name}"
        self._there.add(url)
        try:
            tf.io.gfile.copy(str(path), url, overwrite=True)
        except tf.errors.OpError as error:
            message = f"--output={self.url}: can't be written ({describe(error)})"
            raise InputError(message) from error
        path.unlink()

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        (self.path / name).write_bytes(content)
        self.finish(self.path / name)

    def earlier(self) -> manifest.Manifest | None:
        """Return what a conversion that was killed has planned here, if there was one."""
        if not self.url:
            return None
        from tpu_training.data import files  # It loads TensorFlow.

        path = f"{self.url}/{manifest.PLAN}"
        text = files.read_text(path)
        return manifest.parse_manifest(text, path) if text else None

    def publish(self, planned: manifest.Manifest) -> None:
        """Let trainings read the training files that are finished."""
        train = planned.split(manifest.TRAIN)
        self.finished = train.finished
        names = {file.name for split in planned.splits.values() for file in split.files}
        self._there |= {f"{self.url}/{name}" for name in names | {planned.vocabulary} if name}
        self._beat()
        self.write(manifest.PLAN, planned.to_json().encode())

    def alive(self, parts: Iterable[_Part]) -> Iterator[_Part]:
        """Yield each of `parts`; tell trainings now and then that more of them come."""
        for part in parts:
            if self.finished >= 0 and time.monotonic() > self._beaten + _BEAT_SECONDS:
                self._beat()
            yield part

    def _beat(self) -> None:
        self._beats, self._beaten = self._beats + 1, time.monotonic()
        numbers = (f"{number:0{manifest.DIGITS}d}" for number in (self.finished, self._beats))
        self.write(manifest.PROGRESS, " ".join(numbers).encode())

    def remove(self) -> None:
        """Remove what is in the bucket, as far as that is possible."""
        import tensorflow as tf

        for url in self._there:
            with suppress(tf.errors.OpError):
                tf.io.gfile.remove(url)


@contextmanager
def new_folder(output: str) -> Iterator[NewFolder]:
    """Create `output` with missing parents; after an error remove what was made in it, and it.

    Raises:
        InputError: It can't be created or written.
    """
    if is_bucket(output):
        with tempfile.TemporaryDirectory(prefix="convert-") as work:
            folder = NewFolder(Path(work), output.rstrip("/"))
            try:
                yield folder
            except BaseException as error:
                # What is wrong with the source changes its examples; all else may pass.
                if folder.finished >= 0 and not isinstance(error, DataError):
                    logger.warning("data: %s stays; the same command continues", output)
                else:
                    folder.remove()
                raise
        return
    directory = Path(output)
    # Only what this conversion created is removed: the parents may be shared with others.
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    found = set(directory.iterdir()) if directory.is_dir() else set()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield NewFolder(directory)
    except BaseException as error:
        for path in set(directory.iterdir()) - found if directory.is_dir() else ():
            path.unlink(missing_ok=True)
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise InputError(f"--output={directory}: can't be written ({error})") from error
        raise
