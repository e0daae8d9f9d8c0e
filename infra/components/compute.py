"""Compute Engine's resources."""

from __future__ import annotations

from infra.components.resource import Resource


class Disk(Resource):
    """A persistent disk."""

    labelled = True


class Firewall(Resource):
    """A firewall rule."""


class HealthCheck(Resource):
    """A health check."""


class Instance(Resource):
    """A VM."""

    labelled = True


class InstanceGroupManager(Resource):
    """A managed instance group in a zone."""


class InstanceTemplate(Resource):
    """What a managed instance group makes its VMs from."""

    labelled = True


class Network(Resource):
    """A VPC network."""


class PerInstanceConfig(Resource):
    """One VM of a managed instance group."""


class Router(Resource):
    """A Cloud Router."""


class RouterNat(Resource):
    """Cloud NAT on a router."""


class Subnetwork(Resource):
    """A subnet."""
