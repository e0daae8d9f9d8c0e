"""Read and write files on this machine and in gs:// buckets, from this process."""

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import tensorflow as tf

from tpu_core.google import GoogleError
from tpu_training.cluster import google
from tpu_training.errors import InputError, TrainingError

_CHUNK_BYTES = 8 << 20
# Cloud Storage's words for a missing bucket, which differ from those for a missing object.
_NO_BUCKET = "bucket does not exist"

logger = logging.getLogger(__name__)


def read_text(path: str) -> str | None:
    """Return the content of `path`; None if there is no such file.

    Raises:
        NotFoundError: The bucket itself does not exist.
    """
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            return str(file.read())
    except tf.errors.NotFoundError as error:
        if _NO_BUCKET in str(error):
            raise
        return None


def read_json(path: str) -> dict[str, Any]:
    """Return the object in the JSON file `path`; an empty one when it is missing or broken."""
    try:
        content = json.loads(read_text(path) or "{}")
    except ValueError:
        logger.warning("%s is not JSON and counts as empty", path)
        return {}
    return content if isinstance(content, dict) else {}


def check_bucket(path: str, flag: str) -> None:
    """Raise InputError that names `flag` if `path` is in a bucket that does not exist.

    In such a bucket TensorFlow's makedirs never returns, not even on a signal.
    """
    if not path.startswith("gs://"):
        return
    try:
        # Any object will do: a missing one is answered differently from a missing bucket.
        read_text(f"{path.rstrip('/')}/metrics.json")
    except tf.errors.NotFoundError as error:
        bucket = path.removeprefix("gs://").partition("/")[0]
        raise InputError(
            f"{flag}={path}: there is no bucket {bucket}; create it, or correct the name"
        ) from error


def names(directory: str) -> list[str]:
    """Return the names in `directory`, sorted; none where there is no such directory."""
    return sorted(tf.io.gfile.listdir(directory)) if tf.io.gfile.isdir(directory) else []


def make_directory(path: str) -> None:
    """Create the directory `path` and missing parents."""
    with _named(path):
        tf.io.gfile.makedirs(path)


def write_text(path: str, text: str) -> None:
    """Write `path`; create missing directories."""
    write_bytes(path, text.encode())


def read_bytes(path: str) -> bytes:
    """Return the content of `path`."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return bytes(file.read())


def write_bytes(path: str, content: bytes) -> None:
    """Write `path`; create missing directories."""
    make_directory(path.rpartition("/")[0] or ".")
    with _named(path), tf.io.gfile.GFile(path, "wb") as file:
        file.write(content)


@cache
def local_copy(folder: str) -> str:
    """Return a folder of this machine with all the files of `folder`, which may be in a bucket.

    A folder of this machine is returned as it is. A copy is made once, and deleted when the process
    ends.

    Raises:
        InputError: There is no such folder.
    """
    check_bucket(folder, "local_copy")
    if not tf.io.gfile.isdir(folder):
        raise InputError(f"local_copy: there is no folder {folder}")
    if not google.is_bucket(folder):
        return folder
    copy = tempfile.mkdtemp(prefix="copy-")
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for at, _, found in tf.io.gfile.walk(folder):
        to = f"{copy}/{at.removeprefix(folder).strip('/')}"
        os.makedirs(to, exist_ok=True)
        for name in found:
            tf.io.gfile.copy(f"{at.rstrip('/')}/{name}", f"{to}/{name}")
    return copy


def size(path: str) -> int | None:
    """Return the size of `path` in bytes; None if there is no such file."""
    try:
        return int(tf.io.gfile.stat(path).length)
    except tf.errors.NotFoundError:
        return None


def sizes(directory: str) -> Mapping[str, int]:
    """Return the size of each file in `directory` by its name; a bucket is asked only once."""
    if directory.startswith("gs://"):
        bucket, _, folder = f"{directory}/".removeprefix("gs://").partition("/")
        try:
            items = google.bucket(bucket).items(folder, deep=False)
            return {item.path.removeprefix(folder): item.size for item in items}
        except (GoogleError, TrainingError) as error:
            # TensorFlow may have other rights, and tries again.
            logger.warning("%s: can't be listed at once (%s)", directory, error)
    return {name: size(f"{directory}/{name}") or 0 for name in names(directory)}


def sha256(path: str) -> str:
    """Return the SHA-256 of `path` in hexadecimal."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Add `path` to errors that lack it: Cloud Storage names the denied action, not the object."""
    try:
        yield
    except tf.errors.OpError as error:
        if path in error.message:
            raise
        message = f"{path}: {error.message}"
        raise type(error)(error.node_def, error.op, message) from error
