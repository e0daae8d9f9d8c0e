"""The Google APIs of a project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pulumi
import pulumi_gcp as gcp

from infra.apis import wait_until_it_answers


class ProjectServices(pulumi.ComponentResource):
    """Enables APIs. It never disables one, on purpose: others in the project may use it."""

    enabled: Mapping[str, pulumi.Resource]
    """By name, so that each resource waits for the API that it needs and for no other."""

    def __init__(self, project: str, apis: Iterable[str], *, enable: bool = True) -> None:
        """Without `enable` an administrator has enabled them."""
        super().__init__("tpu-stack:infra:ProjectServices", "services")
        self.enabled = {api: self._enable(project, api) if enable else self for api in apis}
        self.register_outputs({})

    def after(self, *apis: str, parent: pulumi.Resource) -> pulumi.ResourceOptions:
        """Return the options of a resource that needs these APIs."""
        return pulumi.ResourceOptions(parent=parent, depends_on=[self.enabled[api] for api in apis])

    def _enable(self, project: str, api: str) -> gcp.projects.Service:
        # Resources that wait for this one wait for the hook, too.
        options = pulumi.ResourceOptions(parent=self, hooks=until_they_answer())
        return gcp.projects.Service(
            api, project=project, service=api, disable_on_destroy=False, opts=options
        )


def until_they_answer() -> pulumi.ResourceHookBinding | None:
    """Return the hook that makes resources wait until a just-enabled API answers."""
    return pulumi.ResourceHookBinding(after_create=[_wait])


def _wait(args: pulumi.ResourceHookArgs) -> None:
    made = args.new_inputs or {}
    wait_until_it_answers(made["project"], made["service"])
