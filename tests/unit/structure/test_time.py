"""CI ends in time on a slow machine, too: long tests that would come later are left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_runtest_setup


def needing(*names: str) -> Any:
    return SimpleNamespace(iter_markers=lambda: [SimpleNamespace(name=name) for name in names])


def test_only_long_tests_are_left_out_once_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONG_TESTS_UNTIL", "0")
    pytest_runtest_setup(needing("parametrize"))
    with pytest.raises(pytest.skip.Exception, match="no time is left"):
        pytest_runtest_setup(needing("training"))


def test_without_a_limit_every_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONG_TESTS_UNTIL", raising=False)
    pytest_runtest_setup(needing("engine"))
