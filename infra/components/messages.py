"""What the machines need to send messages: a secret's URL, a topic, or e-mail by an alert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.apis import LOGGING_API, MONITORING_API, PUBSUB_API, SECRETS_API
from infra.components.channels import email_channels
from infra.components.identity import Identity
from infra.components.services import ProjectServices
from infra.names import Names
from infra.settings import StackSettings
from infra.settings.messages import MessagesSettings

# The least that Google allows for a policy on log entries, and for how long an incident stays open:
# https://docs.cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#AlertStrategy
_RATE, _OPEN = "300s", "1800s"
_PARTS = ("subject", "text")


def declare_messages(
    settings: StackSettings,
    names: Names,
    labels: Mapping[str, str],
    identity: Identity,
    services: ProjectServices,
) -> None:
    """Declare them, if the stack tells anybody anything."""
    if settings.messages.any:
        args = MessagesArgs(
            settings.project, names, settings.messages, identity.email, labels, services.enabled
        )
        Messages("messages", args)


@dataclass(frozen=True)
class MessagesArgs:
    """What to declare.

    Attributes:
        account: the address of the machines' account.
        requires: the APIs that it waits for, by name.
    """

    project: str
    names: Names
    settings: MessagesSettings
    account: pulumi.Input[str]
    labels: Mapping[str, str]
    requires: Mapping[str, pulumi.Resource]


class Messages(pulumi.ComponentResource):
    """The machines' account may read one secret and publish to one topic, and a log is mailed.

    The stack does not make the secret, on purpose: its content would lie in the stack's state, and
    whoever deploys would have to know it.
    """

    def __init__(
        self, name: str, args: MessagesArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Messages", name, None, opts)
        member = pulumi.Output.concat("serviceAccount:", args.account)
        if args.settings.webhook is not None:
            gcp.secretmanager.SecretIamMember(
                "webhook",
                project=args.project,
                secret_id=args.settings.webhook,
                role="roles/secretmanager.secretAccessor",
                member=member,
                opts=self._after(args, SECRETS_API),
            )
        if args.settings.pubsub_topic is not None:
            self._topic(args, args.settings.pubsub_topic, member)
        if args.settings.emails:
            self._mail(args)
        self.register_outputs({})

    def _topic(self, args: MessagesArgs, name: str, member: pulumi.Input[str]) -> None:
        topic = gcp.pubsub.Topic(
            "topic",
            name=name,
            project=args.project,
            labels=dict(args.labels),
            opts=self._after(args, PUBSUB_API),
        )
        gcp.pubsub.TopicIAMMember(
            "publisher",
            project=args.project,
            topic=topic.name,
            role="roles/pubsub.publisher",
            member=member,
            opts=pulumi.ResourceOptions(parent=self, deleted_with=topic),
        )

    def _mail(self, args: MessagesArgs) -> None:
        """Have Google mail each entry of the messages' log, which the machines may write anyway.

        "Each combination of extracted values is treated as a separate rule for the purposes of
        triggering notifications": so two messages within five minutes are two mails. Source:
        LogMatch.labelExtractors in the discovery document of monitoring:v3.
        """
        name = f"{args.names.prefix}: messages"
        after = self._after(args, MONITORING_API)
        gcp.monitoring.AlertPolicy(
            "mail",
            project=args.project,
            display_name=name,
            combiner="OR",
            conditions=[
                {
                    "display_name": "A message of the stack",
                    "condition_matched_log": {
                        "filter": f'logName="{args.names.messages_log(args.project)}"',
                        "label_extractors": {
                            part: f"EXTRACT(jsonPayload.{part})" for part in _PARTS
                        },
                    },
                }
            ],
            documentation={
                "subject": "${log.extracted_label.subject}",
                "content": "${log.extracted_label.text}",
                "mime_type": "text/markdown",
            },
            alert_strategy={"notification_rate_limit": {"period": _RATE}, "auto_close": _OPEN},
            notification_channels=email_channels(args.project, name, args.settings.emails, after),
            user_labels=dict(args.labels),
            opts=pulumi.ResourceOptions.merge(after, self._after(args, LOGGING_API)),
        )

    def _after(self, args: MessagesArgs, api: str) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[args.requires[api]])
