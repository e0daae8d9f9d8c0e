"""A few errors of the bucket in a row hold no checkpoint up for minutes."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tpu_training import __main__ as program
from tpu_training.data.retries import set_retries


def test_pauses_between_tries_are_seconds_and_bridge_two_minutes() -> None:
    environ: dict[str, str] = {}
    set_retries(environ)
    first, longest, tries = map(int, environ.values())
    pauses = [min(first * 2**n, longest) / 1e6 for n in range(tries)]
    assert sum(pauses[:4]) < 5
    assert max(pauses) <= 8
    assert sum(pauses) > 120


def test_a_setting_of_the_users_is_kept() -> None:
    environ = {"GCS_RETRY_CONFIG_MAX_RETRIES": "3"}
    set_retries(environ)
    assert environ["GCS_RETRY_CONFIG_MAX_RETRIES"] == "3"


def test_they_are_set_before_tensorflow_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    set_before: list[str | None] = []

    def load(given: list[str]) -> None:
        set_before.append(os.environ.get("GCS_RETRY_CONFIG_MAX_RETRIES"))
        raise KeyboardInterrupt

    monkeypatch.delenv("GCS_RETRY_CONFIG_MAX_RETRIES", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(program, "prepare", load)
    assert program.main(["train", "--debug"]) == 130
    assert set_before == ["20"]


def test_tensorflow_knows_these_settings() -> None:
    """The oldest that this runs with may not; it keeps its own pauses."""
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        pytest.skip("TensorFlow is not installed")
    environ: dict[str, str] = {}
    set_retries(environ)
    libraries = Path(found.origin).parent.glob("libtensorflow_framework.so*")
    content = b"".join(path.read_bytes() for path in libraries if not path.is_symlink())
    if b"GCS_READ_CACHE_MAX_STALENESS" not in content:
        pytest.skip("this TensorFlow keeps its buckets elsewhere")
    assert [name for name in environ if name.encode() not in content] == []
