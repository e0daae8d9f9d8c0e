"""The options that say whether Vertex AI runs a job, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

SPOT = "SPOT"
"""What the API calls the strategy of --spot."""
_F = TypeVar("_F", bound=Callable[..., Any])
IMAGE = click.option("--image", help="On vertex: the container; by default the framework's.")
_OPTIONS = (
    click.option("--on", type=click.Choice(("stack", "vertex")), default="stack", help="Runs it."),
    click.option("--tpu", help="On vertex: the TPU's type; by default the stack's."),
    IMAGE,
    click.option("--spot", is_flag=True, help="On vertex: a spot TPU, which Google may take away."),
)


def declared(command: _F) -> _F:
    """Declare the options, whose values `Asked` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """The values of the options."""

    on: str
    tpu: str | None
    image: str | None
    spot: bool

    @property
    def managed(self) -> bool:
        """Whether Vertex AI is to run it."""
        return self.on == "vertex"

    def for_vertex_alone(self) -> list[str]:
        """Return the options given that nobody else has a use for."""
        given = {"--tpu": self.tpu, "--image": self.image, "--spot": self.spot or None}
        return [name for name, value in given.items() if value is not None]


def asked(given: dict[str, Any]) -> Asked:
    """Take the options out of a command's values."""
    return Asked(**{field.name: given.pop(field.name) for field in fields(Asked)})
