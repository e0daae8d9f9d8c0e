"""Marks what a test needs beside Python; `make unit` leaves the marked tests out.

Those that need most come first: a long test that starts last leaves the other processes idle.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's load, not the code's fault.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

HERE = Path(__file__).parent
# Folders of which every test needs it, and fixtures that start it.
FOLDERS = {"e2e": "engine", "integration": "engine", "unit/localcloud/cli": "server"}
TRAINING = ("bars", "cluster", "digits", "start_training", "worker_process")
FIXTURES = dict.fromkeys(TRAINING, "training")
ORDER = ("engine", "training", "server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for needs in _needs(item):
            item.add_marker(needs)
    items.sort(key=_place)


def _needs(item: pytest.Item) -> set[str]:
    folders = {needs for name, needs in FOLDERS.items() if HERE / name in item.path.parents}
    fixtures = getattr(item, "fixturenames", ())
    return folders | {needs for name, needs in FIXTURES.items() if name in fixtures}


def _place(item: pytest.Item) -> int:
    needs = {mark.name for mark in item.iter_markers()}
    return next((place for place, name in enumerate(ORDER) if name in needs), len(ORDER))
