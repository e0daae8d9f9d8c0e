"""The Cloud Monitoring API: notification channels."""

from __future__ import annotations

from localcloud.services.monitoring import channels
from localcloud.services.monitoring.api import API

__all__ = ["API", "channels"]
