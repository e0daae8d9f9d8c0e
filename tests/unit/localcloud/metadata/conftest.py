from __future__ import annotations

import pytest
from localcloud.core.clock import Clock


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com", "iam.googleapis.com")


@pytest.fixture
def clock() -> Clock:
    """Machines are real processes: they run in real time."""
    return Clock()
