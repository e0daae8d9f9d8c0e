"""Refuse files of weights that read other files, or unpack to far more than they hold.

HDF5 can keep an array in any file of the machine, from where it would get into checkpoints
(CVE-2026-1669), and announce sizes of which nothing is stored.
"""

import io
import zipfile
from typing import Any

from tpu_training.errors.extras import require

_WEIGHTS = "model.weights.h5"
# Weights hardly get smaller by compression. What is small counts for nothing.
_MOST_TIMES, _SMALL_BYTES = 100, 1 << 20


def unpack_keras(content: bytes) -> bytes:
    """Return the weights in a .keras file. Raises ValueError."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
        _refuse_bomb("the archive", unpacked, len(content))
        return archive.read(_WEIGHTS)


def check_hdf5(content: bytes) -> bytes:
    """Return the HDF5 file. Raises ValueError with the name of what is refused in it."""
    library = require("h5py", "h5py", "cpu", "--init_from=….h5")

    def visit(name: str, node: Any) -> None:
        if isinstance(node, library.Group):
            for key in node:
                if not isinstance(node.get(key, getlink=True), library.HardLink):
                    raise ValueError(f"{name}/{key} is a link, perhaps to another file")
        elif isinstance(node, library.Dataset):
            if node.external or node.is_virtual:
                raise ValueError(f"{name} is kept in other files")
            _refuse_bomb(name, node.nbytes, node.id.get_storage_size())

    with library.File(io.BytesIO(content), "r") as file:
        visit("", file)
        file.visititems(visit)
    return content


def _refuse_bomb(name: str, declared: int, stored: int) -> None:
    if declared > max(_SMALL_BYTES, _MOST_TIMES * stored):
        raise ValueError(f"{name}: announces {declared} bytes, of which only {stored} are stored")
