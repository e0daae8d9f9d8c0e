"""A second `tpustack bootstrap` takes no lock of one that may be at work."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tpustack.conftest import Run, recovery_of
from tpustack import bootstrap
from tpustack.engine import toolchain
from tpustack.errors import TpustackError
from tpustack.recovery.locks import Lock, LockedError

LOCK = Lock("file:///state/locks/1.json", "ada", "laptop", 42, datetime.now(timezone.utc))


class Here:
    """The first run's state in a folder, behind a lock."""

    def __init__(self, *, dead: bool) -> None:
        self.dead, self.locked, self.began = dead, True, False

    def recovery(self, line: object) -> Any:
        return recovery_of(
            interrupted=lambda: None,
            ask_for_lock=self.ask,
            are_orphaned=lambda locks: self.dead,
            release=self.release,
        )

    def ask(self) -> None:
        if self.locked:
            raise LockedError([LOCK])

    def release(self, locks: list[Lock]) -> None:
        assert locks == [LOCK]
        self.locked = False

    def up(self, line: object) -> str:
        self.began = True
        return "updated"

    def outputs(self) -> dict[str, str]:
        return {"bucket": "b"}

    def copy_to(self, other: object) -> None:
        """Nothing is kept."""


def started(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    (tmp_path / "bootstrap").mkdir()
    elsewhere = SimpleNamespace(select=lambda name: here)
    there = SimpleNamespace(
        elsewhere=lambda folder: elsewhere, stacks=lambda: {"pipeline"}, stack=lambda name: None
    )
    settings: Any = SimpleNamespace(bucket="b")
    for name, value in {
        "root": lambda: tmp_path,
        "state": lambda: tmp_path,
        "Backend": lambda environment, program: there,
    }.items():
        monkeypatch.setattr(bootstrap, name, value)
    return bootstrap.bootstrap("pipeline", settings, {}, print)


def test_bootstrap_refuses_while_another_may_run_and_names_its_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Here(dead=False)
    with pytest.raises(
        TpustackError, match=r"ada@laptop \(process 42\).*delete file:///state/locks/1"
    ):
        started(here, monkeypatch, tmp_path)
    assert (here.locked, here.began) == (True, False)


def test_wrong_settings_are_told_before_a_missing_engine_and_with_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "clone", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("bootstrap", "--stack", "nosuch")
    assert done.code == 2
    wrong, missing = done.err.splitlines()
    assert wrong == "error: bootstrap/ has no Pulumi.nosuch.yaml. Available: pipeline"
    assert missing.startswith("pulumi is not on PATH. Install the Pulumi CLI")


def test_bootstrap_continues_after_a_dead_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Here(dead=True)
    assert started(here, monkeypatch, tmp_path) == ("updated", {"bucket": "b"})
    assert (here.locked, here.began) == (False, True)
