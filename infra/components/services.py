"""The Google APIs that the stack needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from infra.components import projects
from infra.enabled import wait_until_it_answers


@dataclass(frozen=True)
class ProjectServicesArgs:
    """`services` are names of APIs, for example `tpu.googleapis.com`.

    Without `enable` somebody else has enabled them.
    """

    project: str
    services: tuple[str, ...]
    enable: bool


class ProjectServices(pulumi.ComponentResource):
    """Enables APIs. It never disables one, on purpose: others in the project may use it."""

    enabled: Mapping[str, pulumi.Resource]
    """By name, so that each resource waits for the API that it needs and for no other."""

    def __init__(
        self,
        name: str,
        args: ProjectServicesArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("tpu-stack:infra:ProjectServices", name, None, opts)
        self.enabled = dict.fromkeys(args.services, self)
        if args.enable:
            self.enabled = {service: self._enable(service, args) for service in args.services}
        self.register_outputs({})

    def _enable(self, service: str, args: ProjectServicesArgs) -> projects.Service:
        return projects.Service(
            service,
            project=args.project,
            service=service,
            disable_on_destroy=False,
            opts=pulumi.ResourceOptions(
                parent=self,
                # Resources that wait for this one wait for the hook, too.
                hooks=until_they_answer(),
            ),
        )


def until_they_answer() -> pulumi.ResourceHookBinding | None:
    """Return the hook that makes resources wait until a just-enabled API answers."""
    return pulumi.ResourceHookBinding(after_create=[_wait])


def _wait(args: pulumi.ResourceHookArgs) -> None:
    made = args.new_inputs or {}
    wait_until_it_answers(made["project"], made["service"])
