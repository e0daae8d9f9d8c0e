"""The Compute Engine API."""

from __future__ import annotations

from localcloud.services.compute import operations
from localcloud.services.compute.api import API

__all__ = ["API", "operations"]
