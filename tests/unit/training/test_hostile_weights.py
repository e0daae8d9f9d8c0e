"""Files of weights that others wrote read no files of this machine and stay small."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tpu_training.checkpoints import initial_weights
from tpu_training.checkpoints.initial_weights import read_weights
from tpu_training.errors import InputError

pytestmark = pytest.mark.training


def _external(file: Any, folder: Path) -> None:
    (folder / "secret").write_bytes(b"ya29.SECRET-OF-THE-ONE-WHO-TRAINS")
    file.create_dataset("w", (32,), "u1", external=[(str(folder / "secret"), 0, 32)])


def _virtual(file: Any, folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "w", (4,))
    file.create_virtual_dataset("w", layout)


def _soft(file: Any, folder: Path) -> None:
    file.create_group("a")["w"] = pytest.importorskip("h5py").SoftLink("/elsewhere")


def _other_file(file: Any, folder: Path) -> None:
    file["w"] = pytest.importorskip("h5py").ExternalLink(str(folder / "other.h5"), "w")


def _bomb(file: Any, folder: Path) -> None:
    file.create_dataset("w", (1 << 20, 1 << 20), "f4", chunks=(1024, 1024))


def _many_small_ones(file: Any, folder: Path) -> None:
    for number in range(200):
        file.create_dataset(f"w{number}", (1 << 20,), "u1", chunks=(1024,))


def _overflow(file: Any, folder: Path) -> None:
    """So many bytes that a 64-bit number of them is 0."""
    file.create_dataset("w", (1 << 31, 1 << 33), "u1", chunks=(1024, 1024))


HOSTILE = {
    "in other files": (_external, _virtual),
    "w is a link": (_soft, _other_file),
    "announce 4398046511104, as": (_bomb,),
    "announce 209715200, as": (_many_small_ones,),
    "announce 18446744073709551616, as": (_overflow,),
}


@pytest.mark.parametrize("ending", [".h5", ".weights.h5", ".keras"])
@pytest.mark.parametrize(
    ("make", "words"), [(make, words) for words, makes in HOSTILE.items() for make in makes]
)
def test_weights_that_read_other_files_or_announce_too_much_are_refused(
    tmp_path: Path, make: Callable[[Any, Path], None], words: str, ending: str
) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / f"net{ending}"
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        make(file, tmp_path)
    if ending == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "weights.h5", "model.weights.h5")
    else:
        shutil.copy(tmp_path / "weights.h5", path)
    with pytest.raises(InputError, match=rf"{path}: can't be read .*{words}"):
        read_weights(str(path))
    model = SimpleNamespace(load_weights=lambda *_, **__: pytest.fail("Keras reads it"))
    with pytest.raises(InputError, match=rf"{path}: Keras can't load it .*{words}"):
        initial_weights._load(str(path), model)


def test_an_archive_that_unpacks_to_far_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "net.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(64 << 20))
    with pytest.raises(InputError, match="bytes announce 67108864, as no weights do"):
        read_weights(str(tmp_path / "net.keras"))
