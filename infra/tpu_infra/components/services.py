"""The Google APIs of a project, as resources."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pulumi
import pulumi_gcp as gcp

from tpu_infra.apis import wait_until_it_answers


class ProjectServices(pulumi.ComponentResource):
    """Enables APIs. It never disables one, on purpose: others in the project may use it."""

    enabled: Mapping[str, pulumi.Resource]
    """By name, so that each resource waits for the API that it needs and for no other."""

    def __init__(self, project: str, apis: Iterable[str], *, enable: bool = True) -> None:
        """Without `enable` an administrator has enabled them."""
        super().__init__("tpu-stack:infra:ProjectServices", "services")
        own = pulumi.ResourceOptions(parent=self)
        self.enabled = {api: enabled(api, project, api, own) if enable else self for api in apis}
        self.register_outputs({})

    def after(
        self,
        *apis: str,
        parent: pulumi.Resource,
        depends_on: Sequence[pulumi.Resource] = (),
        **options: Any,
    ) -> pulumi.ResourceOptions:
        """Return the options of a resource that needs these APIs; `options` are more of them."""
        needs = [*(self.enabled[api] for api in apis), *depends_on]
        return pulumi.ResourceOptions(parent=parent, depends_on=needs, **options)


def enabled(
    name: str, project: str, api: str, opts: pulumi.ResourceOptions | None = None
) -> gcp.projects.Service:
    """Declare an enabled API, which stays enabled. What waits for it waits until it answers."""
    # Resources that wait for this one wait for the hook, too.
    own = pulumi.ResourceOptions(hooks=until_they_answer())
    return gcp.projects.Service(
        name,
        project=project,
        service=api,
        disable_on_destroy=False,
        opts=pulumi.ResourceOptions.merge(opts, own),
    )


def until_they_answer() -> pulumi.ResourceHookBinding | None:
    """Return the hook that makes resources wait until a just-enabled API answers."""
    return pulumi.ResourceHookBinding(after_create=[_wait])


def _wait(args: pulumi.ResourceHookArgs) -> None:
    made = args.new_inputs or {}
    wait_until_it_answers(made["project"], made["service"])
