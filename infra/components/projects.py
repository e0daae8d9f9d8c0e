"""A project's resources."""

from __future__ import annotations

from infra.components.resource import Resource


class IAMMember(Resource):
    """Somebody's role on a project."""


class Service(Resource):
    """An API that is enabled."""
