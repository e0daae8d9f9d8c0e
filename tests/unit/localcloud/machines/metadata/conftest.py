from __future__ import annotations

import pytest


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com", "iam.googleapis.com")
