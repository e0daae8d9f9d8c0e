"""Files on this machine and in gs:// buckets, read and written by this process."""

import hashlib

import tensorflow as tf

_CHUNK_BYTES = 8 << 20


def read_text(path: str) -> str | None:
    """Return the content of `path`, or None when there is no such file."""
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            return str(file.read())
    except tf.errors.NotFoundError:
        return None


def write_text(path: str, text: str) -> None:
    """Write `path`; directories that it needs are made."""
    tf.io.gfile.makedirs(path.rpartition("/")[0] or ".")
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


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
