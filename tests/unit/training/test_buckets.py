"""How TensorFlow uses buckets is set once: for the command line, fit() and the worker."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

from tpu_training import __main__ as program
from tpu_training.api import write_data
from tpu_training.errors import InputError
from tpu_training.job.start import BUCKET_SETTINGS, prepare_tensorflow, set_up_buckets

ROOT = Path(__file__).parents[3]


def test_pauses_between_tries_are_seconds_and_bridge_two_minutes() -> None:
    environ: dict[str, str] = {}
    set_up_buckets(environ)
    first, longest, tries = map(int, list(environ.values())[:3])
    pauses = [min(first * 2**n, longest) / 1e6 for n in range(tries)]
    assert sum(pauses[:4]) < 5
    assert max(pauses) <= 8
    assert sum(pauses) > 120


def test_fit_and_the_worker_of_a_tpu_vm_have_the_same_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environ)
    prepare_tensorflow(None, trains=False)
    assert {name: environ[name] for name in BUCKET_SETTINGS} == BUCKET_SETTINGS
    script = (ROOT / "agent" / "tpu_agent" / "startup" / "tpu_vm.sh").read_text(encoding="utf-8")
    assert dict(re.findall(r"^  (GCS_\w+)=(\d+)$", script, re.M)) == BUCKET_SETTINGS


def test_writing_data_has_them_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environ)
    (tmp_path / "used").touch()
    with pytest.raises(InputError, match="is not empty"):
        write_data(str(tmp_path), train=([], []), test=([], []))
    assert environ == BUCKET_SETTINGS


def test_a_setting_of_the_users_is_kept() -> None:
    environ = {"GCS_RETRY_CONFIG_MAX_RETRIES": "3"}
    set_up_buckets(environ)
    assert environ["GCS_RETRY_CONFIG_MAX_RETRIES"] == "3"


def test_they_are_set_before_tensorflow_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    set_before: list[str | None] = []

    def load(given: list[str]) -> None:
        set_before.append(os.environ.get("GCS_RETRY_CONFIG_MAX_RETRIES"))
        raise KeyboardInterrupt

    monkeypatch.delenv("GCS_RETRY_CONFIG_MAX_RETRIES", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(program, "parse", load)
    assert program.main(["train", "--debug"]) == 130
    assert set_before == ["20"]


def test_tensorflow_knows_these_settings() -> None:
    """The oldest that this runs with may not; it keeps its own pauses."""
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        pytest.skip("TensorFlow is not installed")
    environ: dict[str, str] = {}
    set_up_buckets(environ)
    libraries = Path(found.origin).parent.glob("libtensorflow_framework.so*")
    content = b"".join(path.read_bytes() for path in libraries if not path.is_symlink())
    if b"GCS_READ_CACHE_MAX_STALENESS" not in content:
        pytest.skip("this TensorFlow keeps its buckets elsewhere")
    assert [name for name in environ if name.encode() not in content] == []
