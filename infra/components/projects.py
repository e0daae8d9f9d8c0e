"""A project's resources."""

from __future__ import annotations

from infra.components.resource import Resource


class IAMCustomRole(Resource):
    """A role of the project's own."""


class IAMMember(Resource):
    """Somebody's role on a project."""


class Service(Resource):
    """An API that is enabled."""


class ServiceIdentity(Resource):
    """The account as which a service of Google acts in the project."""
