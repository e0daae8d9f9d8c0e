"""The right of the machines to read the address that they send messages to."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.apis import SECRETS_API
from infra.components.identity import Identity
from infra.components.services import ProjectServices
from infra.settings import StackSettings


def declare_messages(
    settings: StackSettings, identity: Identity, services: ProjectServices
) -> None:
    """Declare them, if the stack has a webhook."""
    if settings.jobs.webhook is not None:
        api = services.enabled[SECRETS_API]
        Messages(
            "messages",
            MessagesArgs(settings.project, settings.jobs.webhook, identity.email, api),
        )


@dataclass(frozen=True)
class MessagesArgs:
    """The right to declare.

    Attributes:
        secret: the id of a secret that is there already.
        account: the address of the machines' account.
        requires: the API that it waits for.
    """

    project: str
    secret: str
    account: pulumi.Input[str]
    requires: pulumi.Resource


class Messages(pulumi.ComponentResource):
    """The machines' account may read one secret, which holds the URL of a webhook.

    The stack does not make the secret, on purpose: its content would lie in the stack's state, and
    whoever deploys would have to know it.
    """

    def __init__(
        self, name: str, args: MessagesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Messages", name, None, opts)
        gcp.secretmanager.SecretIamMember(
            "webhook",
            project=args.project,
            secret_id=args.secret,
            role="roles/secretmanager.secretAccessor",
            member=pulumi.Output.concat("serviceAccount:", args.account),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[args.requires]),
        )
        self.register_outputs({})
