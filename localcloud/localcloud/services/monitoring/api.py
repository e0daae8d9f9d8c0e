"""The Cloud Monitoring API's registration."""

from __future__ import annotations

from localcloud.core.registry import Api

API = Api("monitoring", ("v3",))
