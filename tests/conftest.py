"""Marks what a test needs besides Python; `make unit` leaves the marked tests out.

Those that need most come first: a long test that starts last leaves the other processes idle.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import register_profiles

register_profiles()

# TensorFlow's C++ reads it once, whichever test loads it; a command in that process comes too late.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The engine and the provider are Go: collecting garbage is a tenth of what these short runs take.
os.environ |= {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
HERE = Path(__file__).parent
# Folders of which every test needs it, and fixtures that start it.
FOLDERS = {"e2e": "engine", "integration": "engine", "unit/localcloud/cli": "server"}
TRAINING = ("bars", "cluster", "digits", "start_training", "worker_process")
FIXTURES = dict.fromkeys(TRAINING, "training")
ORDER = ("engine", "training", "server", "slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for needs in _needs(item):
            item.add_marker(needs)
    items.sort(key=_place)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector pass over what stays: thousands of tests and their modules."""
    quick = "not training" in session.config.option.markexpr
    if quick and "tensorflow" in sys.modules:
        raise pytest.UsageError("a module that is not marked `training` imports TensorFlow")
    gc.collect()
    gc.freeze()
    if quick:
        # Looking for garbage after each 700 new objects takes a seventh of the time. The whole
        # suite looks as often as users' processes do: what is freed too early shows there.
        gc.set_threshold(100_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave long tests out after the time that .ci/run sets: the quick ones must still end."""
    until = float(os.environ.get("LONG_TESTS_UNTIL", "inf"))
    if time.time() > until and _place(item) < len(ORDER):
        pytest.skip("a long test, for which no time is left")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Refuse a test that loads TensorFlow, which takes seconds, where none is asked for."""
    # A test may set it to None, as if it were not installed.
    before = sys.modules.get("tensorflow")
    yield
    if not before and "not training" in item.config.option.markexpr:
        assert not sys.modules.get("tensorflow"), "imports TensorFlow and isn't marked `training`"


@functools.cache
def _needs_of_folders(path: Path) -> frozenset[str]:
    return frozenset(needs for name, needs in FOLDERS.items() if HERE / name in path.parents)


def _needs(item: pytest.Item) -> frozenset[str]:
    fixtures = getattr(item, "fixturenames", ())
    of_fixtures = {needs for name, needs in FIXTURES.items() if name in fixtures}
    return _needs_of_folders(item.path) | of_fixtures


def _place(item: pytest.Item) -> int:
    needs = {mark.name for mark in item.iter_markers()}
    return next((place for place, name in enumerate(ORDER) if name in needs), len(ORDER))
