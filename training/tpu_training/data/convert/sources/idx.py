"""Read IDX files, the format of MNIST, plain or gzipped.

Format: two zero bytes, the element type, the number of dimensions, each dimension as a big-endian
32-bit number, then the elements. http://yann.lecun.com/exdb/mnist/
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpu_training.errors import DataError

_UNSIGNED_BYTE = 0x08
_HEADER_BYTES = 4
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the array of unsigned bytes in `path`, which must have `dimensions` dimensions.

    Raises:
        DataError: The magic number or the length is wrong; the message names the file.
    """
    content = _read(path)
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if content[:_HEADER_BYTES] != magic:
        raise DataError(
            f"{path}: magic number {content[:_HEADER_BYTES].hex() or 'missing'}, expected "
            f"{magic.hex()} (unsigned bytes in {dimensions} dimensions); is it the right file?"
        )
    start = _HEADER_BYTES + 4 * dimensions
    shape = tuple(np.frombuffer(content[_HEADER_BYTES:start], dtype=">u4").astype(int).tolist())
    expected = start + math.prod(shape)
    if len(shape) != dimensions or len(content) != expected:
        raise DataError(
            f"{path}: {len(content)} bytes, expected {expected} for the shape {shape} in its "
            "header; the file is incomplete or damaged, download it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: can't be read ({error}); download it again") from error
