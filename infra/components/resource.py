"""Google's resources, declared without the SDK's classes for them.

`pulumi_gcp.compute` defines thousands of classes for all of Compute Engine, and importing it takes
longer than everything else that the program does before it declares its first resource;
`pulumi_gcp.storage` and `pulumi_gcp.projects` took 0.045 s of a preview of 1.3 s. The classes made
here take the same arguments under the same names, and the engine sees the same resources;
tests/unit/infra/test_resource.py compares them with the SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pulumi
from pulumi_gcp import _utilities

# Their keys are the user's own words.
_MAPS = ("labels", "metadata")
_LABELS = ("effectiveLabels", "pulumiLabels")


class Resource(pulumi.CustomResource):
    """A resource of the provider. Its module and its class are named there as they are here.

    Args:
        name: its name in the program.
        opts: Pulumi's options.
        inputs: its arguments, in snake_case as the SDK has them; groups are dictionaries.
    """

    labelled: ClassVar[bool] = False
    """Whether it has labels; what the provider makes of them may be secret."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Arguments that the engine encrypts in the state."""
    name: pulumi.Output[str]

    def __init__(
        self, name: str, /, *, opts: pulumi.ResourceOptions | None = None, **inputs: Any
    ) -> None:
        defaults = pulumi.ResourceOptions.merge(
            _utilities.get_resource_opts_defaults(),
            pulumi.ResourceOptions(additional_secret_outputs=self.secret_outputs() or None),
        )
        hidden = {
            key: pulumi.Output.secret(value)
            for key, value in inputs.items()
            if key in self.secrets and value is not None
        }
        super().__init__(
            self.token(),
            name,
            {"name": None, "selfLink": None, **_in_camel_case(inputs | hidden)},
            pulumi.ResourceOptions.merge(defaults, opts),
        )

    @classmethod
    def token(cls) -> str:
        """Return its type in the provider, e.g. `gcp:compute/disk:Disk`."""
        kind, module = cls.__name__, cls.__module__.rpartition(".")[2]
        return f"gcp:{module}/{kind[0].lower()}{kind[1:]}:{kind}"

    @classmethod
    def secret_outputs(cls) -> list[str]:
        """Return the outputs that the engine encrypts in the state."""
        return [*(_LABELS if cls.labelled else ()), *map(_camel, cls.secrets)]

    @property
    def self_link(self) -> pulumi.Output[str]:
        """The resource's address."""
        link: pulumi.Output[str] = self.__dict__["selfLink"]
        return link


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
