"""Google's provider starts while a preview's program loads."""

from __future__ import annotations

import inspect
import queue
import threading
from typing import Any

import pulumi
import pulumi_gcp as gcp
import pytest
from pulumi_gcp import _utilities

from infra import early

SECONDS = 30


class Monitor:
    """Takes the engine's place, and keeps what it is asked."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: queue.Queue[Any] = queue.Queue()
        self._fails = fails

    def Invoke(self, request: Any) -> None:
        self.asked.put(request)
        if self._fails:
            raise RuntimeError("the provider does not start")


def start(monkeypatch: pytest.MonkeyPatch, monitor: Monitor, *, preview: bool) -> None:
    monkeypatch.setattr(early, "get_monitor", lambda: monitor)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)
    early.start_provider()
    for thread in threading.enumerate():
        if thread.name == "provider":
            thread.join(SECONDS)


def test_a_preview_asks_for_the_very_provider_of_its_resources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = Monitor()
    start(monkeypatch, monitor, preview=True)
    request = monitor.asked.get_nowait()
    assert request.version == _utilities.get_version()
    assert request.pluginDownloadURL == (_utilities.get_plugin_download_url() or "")
    assert f"'{request.tok}'" in inspect.getsource(gcp.organizations.get_iam_policy)


def test_an_update_does_not_which_may_end_because_of_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = Monitor()
    start(monkeypatch, monitor, preview=False)
    assert monitor.asked.empty()


def test_what_is_wrong_with_the_provider_is_left_to_its_resources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unheard: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", unheard.append)
    monitor = Monitor(fails=True)
    start(monkeypatch, monitor, preview=True)
    assert monitor.asked.qsize() == 1
    assert not unheard
