"""Compute Engine's resources, declared without the SDK's classes for them.

`pulumi_gcp.compute` defines thousands of classes for all of Compute Engine, and importing it takes
longer than everything else that the program does before it declares its first resource. These
eleven take the same arguments under the same names, and the engine sees the same resources;
tests/unit/infra/test_compute.py compares them with the SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pulumi
from pulumi_gcp import _utilities

# Their keys are the user's own words.
_MAPS = ("labels", "metadata")
_SECRET_OUTPUTS = ["effectiveLabels", "pulumiLabels"]


class _Resource(pulumi.CustomResource):
    """A resource of the provider, whose name there is the class's.

    Args:
        name: its name in the program.
        opts: Pulumi's options.
        inputs: its arguments, in snake_case as the SDK has them; groups are dictionaries.
    """

    labelled: ClassVar[bool] = False
    """Whether it has labels; what the provider makes of them may be secret."""
    name: pulumi.Output[str]

    def __init__(
        self, name: str, /, *, opts: pulumi.ResourceOptions | None = None, **inputs: Any
    ) -> None:
        defaults = pulumi.ResourceOptions.merge(
            _utilities.get_resource_opts_defaults(),
            pulumi.ResourceOptions(
                additional_secret_outputs=_SECRET_OUTPUTS if self.labelled else None
            ),
        )
        kind = type(self).__name__
        super().__init__(
            f"gcp:compute/{kind[0].lower()}{kind[1:]}:{kind}",
            name,
            {"name": None, "selfLink": None, **_in_camel_case(inputs)},
            pulumi.ResourceOptions.merge(defaults, opts),
        )

    @property
    def self_link(self) -> pulumi.Output[str]:
        """The resource's address."""
        link: pulumi.Output[str] = self.__dict__["selfLink"]
        return link


class Disk(_Resource):
    """A persistent disk."""

    labelled = True


class Firewall(_Resource):
    """A firewall rule."""


class HealthCheck(_Resource):
    """A health check."""


class Instance(_Resource):
    """A VM."""

    labelled = True


class InstanceGroupManager(_Resource):
    """A managed instance group in a zone."""


class InstanceTemplate(_Resource):
    """What a managed instance group makes its VMs from."""

    labelled = True


class Network(_Resource):
    """A VPC network."""


class PerInstanceConfig(_Resource):
    """One VM of a managed instance group."""


class Router(_Resource):
    """A Cloud Router."""


class RouterNat(_Resource):
    """Cloud NAT on a router."""


class Subnetwork(_Resource):
    """A subnet."""


RESOURCES: tuple[type[_Resource], ...] = tuple(_Resource.__subclasses__())


def _in_camel_case(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _camel(key): value if key in _MAPS else _value(value)
        for key, value in group.items()
        if value is not None
    }


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _in_camel_case(value)
    return [_value(item) for item in value] if isinstance(value, list) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
