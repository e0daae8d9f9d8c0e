"""Files on this machine and in gs:// buckets, read and written by this process."""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tpu_training.errors import InputError

_CHUNK_BYTES = 8 << 20
# What Cloud Storage says of a missing bucket, not of a missing object.
_NO_BUCKET = "bucket does not exist"

logger = logging.getLogger(__name__)


def read_text(path: str) -> str | None:
    """Return the content of `path`, or None when there is no such file; NotFoundError when there
    is not even the bucket."""
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
        logger.warning("%s is no JSON; it counts as empty", path)
        return {}
    return content if isinstance(content, dict) else {}


def check_bucket(path: str, flag: str) -> None:
    """Raise InputError that names `flag` where `path` lies in a bucket that does not exist.

    TensorFlow's makedirs never returns there, and not at a signal either.
    """
    if not path.startswith("gs://"):
        return
    try:
        # Any name does: a missing object is answered in other words than a missing bucket.
        read_text(f"{path.rstrip('/')}/metrics.json")
    except tf.errors.NotFoundError as error:
        bucket = path.removeprefix("gs://").partition("/")[0]
        raise InputError(
            f"{flag}={path}: there is no bucket {bucket}; create it, or correct the name"
        ) from error


def make_directory(path: str) -> None:
    """Make the directory `path` and those above it where they are missing."""
    with _named(path):
        tf.io.gfile.makedirs(path)


def write_text(path: str, text: str) -> None:
    """Write `path`; directories that it needs are made."""
    make_directory(path.rpartition("/")[0] or ".")
    with _named(path), tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


def read_bytes(path: str) -> bytes:
    """Return the content of `path`."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return bytes(file.read())


def write_bytes(path: str, content: bytes) -> None:
    """Write `path`; directories that it needs are made."""
    make_directory(path.rpartition("/")[0] or ".")
    with _named(path), tf.io.gfile.GFile(path, "wb") as file:
        file.write(content)


def size(path: str) -> int | None:
    """Return the bytes of `path`, or None when there is no such file."""
    try:
        return int(tf.io.gfile.stat(path).length)
    except tf.errors.NotFoundError:
        return None


def sha256(path: str) -> str:
    """Return the SHA-256 of `path` in hexadecimal digits."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Add `path` to errors without it: Cloud Storage says what may not be done, and not where."""
    try:
        yield
    except tf.errors.OpError as error:
        if path in error.message:
            raise
        message = f"{path}: {error.message}"
        raise type(error)(error.node_def, error.op, message) from error
