"""The Resource Manager API: projects and their IAM policies."""

from __future__ import annotations

from localcloud.services.resourcemanager import policy, projects
from localcloud.services.resourcemanager.api import API

__all__ = ["API", "policy", "projects"]
