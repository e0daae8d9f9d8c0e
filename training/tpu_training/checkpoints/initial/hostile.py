"""Refuse files of weights that read other files, or unpack to far more than they hold.

HDF5 can keep an array in any file of the machine, from where it would get into checkpoints
(CVE-2026-1669), and announce sizes of which nothing is stored.
"""

import io
import math
import zipfile
from typing import Any

from tpu_training.errors import require

_WEIGHTS = "model.weights.h5"
# Weights hardly get smaller by compression. A small sum counts for nothing.
_MOST_TIMES, _SMALL_BYTES = 100, 1 << 20


def unpack_keras(content: bytes) -> bytes:
    """Return the weights in a .keras file. Raises ValueError."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
        _refuse_bomb(unpacked, content)
        return archive.read(_WEIGHTS)


def check_hdf5(content: bytes) -> bytes:
    """Return the HDF5 file. Raises ValueError with the name of what is refused in it."""
    library = require("h5py", "h5py", "cpu", "--init_from=….h5")

    announced = 0

    def visit(name: str, node: Any) -> None:
        nonlocal announced
        if isinstance(node, library.Group):
            for key in node:
                if not isinstance(node.get(key, getlink=True), library.HardLink):
                    raise ValueError(f"{name}/{key} is a link, perhaps to another file")
        elif isinstance(node, library.Dataset):
            if node.external or node.is_virtual:
                raise ValueError(f"{name} is kept in other files")
            announced += math.prod(node.shape or ()) * node.dtype.itemsize

    with library.File(io.BytesIO(content), "r") as file:
        visit("", file)
        file.visititems(visit)
    _refuse_bomb(announced, content)
    return content


def _refuse_bomb(announced: int, content: bytes) -> None:
    if announced > max(_SMALL_BYTES, _MOST_TIMES * len(content)):
        raise ValueError(f"{len(content)} bytes announce {announced}, as no weights do")
