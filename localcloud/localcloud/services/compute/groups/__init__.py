"""Managed instance groups: they make instances from a template and replace those that end."""

from __future__ import annotations

from localcloud.services.compute.groups import actions, health, lifecycle, members, views

__all__ = ["actions", "health", "lifecycle", "members", "views"]
