"""Whom Google tells: the messages of the machines, and the budget."""

from __future__ import annotations

from collections.abc import Iterable

import pulumi
import pulumi_gcp as gcp

from tpu_infra import apis
from tpu_infra.checks import CheckedStack
from tpu_infra.components.services import ProjectServices
from tpu_infra.settings import BudgetScope, BudgetSettings

# The shortest period that Google allows for a policy on log entries, and how long an incident
# stays open. https://docs.cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#AlertStrategy
_RATE, _OPEN = "300s", "1800s"
_PARTS = ("subject", "text")
_PUBLISHER = "serviceAccount:service-{}@gcp-sa-monitoring-notification.iam.gserviceaccount.com"


class Messages(pulumi.ComponentResource):
    """An alert policy that sends each entry of the messages' log to the stack's channels.

    The stack makes channels for e-mail and Pub/Sub. One for Slack or a webhook holds a token, which
    would stand in the stack's state: a person makes it, and the settings name it.
    """

    def __init__(self, stack: CheckedStack, services: ProjectServices) -> None:
        super().__init__("tpu-stack:infra:Messages", "messages")
        messages, project = stack.settings.messages, stack.settings.project
        name = f"{stack.names.prefix}: messages"
        after = services.after(apis.MONITORING_API, apis.LOGGING_API, parent=self)
        channels: list[pulumi.Input[str]] = [
            *messages.channels,
            *email_channels(project, name, messages.emails, after),
        ]
        if messages.pubsub_topic is not None:
            channels.append(self._topic(stack, services, messages.pubsub_topic))
        # Google notifies for each different pair of these values, so that two messages within the
        # period are two notifications: LogMatch.labelExtractors in monitoring:v3.
        parts = {part: f"EXTRACT(jsonPayload.{part})" for part in _PARTS}
        log = f'logName="{stack.names.messages_log}"'
        gcp.monitoring.AlertPolicy(
            "messages",
            project=project,
            display_name=name,
            combiner="OR",
            conditions=[
                {
                    "display_name": "A notification of the stack",
                    "condition_matched_log": {"filter": log, "label_extractors": parts},
                }
            ],
            documentation={
                "subject": "${log.extracted_label.subject}",
                "content": "${log.extracted_label.text}",
                "mime_type": "text/markdown",
            },
            alert_strategy={"notification_rate_limit": {"period": _RATE}, "auto_close": _OPEN},
            notification_channels=channels,
            user_labels=stack.labels,
            opts=after,
        )
        self.register_outputs({})

    def _topic(
        self, stack: CheckedStack, services: ProjectServices, name: str
    ) -> pulumi.Output[str]:
        """Declare a topic and its channel; return the channel's name."""
        project = stack.settings.project
        topic = _own_topic(name, stack, services, self)
        channel = gcp.monitoring.NotificationChannel(
            "topic",
            project=project,
            type="pubsub",
            display_name=f"{stack.names.prefix}: {name}",
            labels={"topic": topic.id},
            opts=services.after(apis.MONITORING_API, parent=self),
        )
        # The account exists as soon as the project has a channel of this kind.
        number = gcp.organizations.get_project_output(
            project_id=project,
            opts=pulumi.InvokeOutputOptions(
                parent=self, depends_on=[services.enabled[apis.PROJECTS_API], channel]
            ),
        ).number
        gcp.pubsub.TopicIAMMember(
            "publisher",
            project=project,
            topic=topic.name,
            role="roles/pubsub.publisher",
            member=number.apply(_PUBLISHER.format),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[channel], deleted_with=topic),
        )
        described: pulumi.Output[str] = channel.name
        return described


def _own_topic(
    name: str, stack: CheckedStack, services: ProjectServices, parent: pulumi.Resource
) -> gcp.pubsub.Topic:
    return gcp.pubsub.Topic(
        "topic",
        name=name,
        project=stack.settings.project,
        labels=stack.labels,
        opts=services.after(apis.PUBSUB_API, parent=parent),
    )


def email_channels(
    project: str, name: str, addresses: Iterable[str], opts: pulumi.ResourceOptions
) -> list[pulumi.Output[str]]:
    """Declare a channel for each address; return their full names.

    `name` is shown before the address.
    """
    return [
        gcp.monitoring.NotificationChannel(
            address,
            project=project,
            type="email",
            display_name=f"{name}: {address}",
            labels={"email_address": address},
            opts=opts,
        ).name
        for address in addresses
    ]


# --- The budget and its alerts

# Settings that the second provider shares with the default one.
_CREDENTIALS = ("accessToken", "credentials", "impersonateServiceAccount")


class Budget(pulumi.ComponentResource):
    """A monthly budget of the project's billing account, with alerts by e-mail and Pub/Sub.

    It stops nothing, on purpose: Google reports costs hours late, and a TPU that a bill switches
    off loses what it has computed.
    """

    def __init__(
        self, stack: CheckedStack, settings: BudgetSettings, services: ProjectServices
    ) -> None:
        super().__init__("tpu-stack:infra:Budget", "budget")
        known = [services.enabled[api] for api in (apis.BILLING_API, apis.PROJECTS_API)]
        project = gcp.organizations.get_project_output(
            project_id=stack.settings.project,
            opts=pulumi.InvokeOutputOptions(parent=self, depends_on=known),
        )
        in_stack = settings.scope is BudgetScope.STACK
        provider = billing_provider(stack.settings.project, self)
        gcp.billing.Budget(
            "budget",
            billing_account=settings.billing_account or project.billing_account.apply(_required),
            display_name=stack.names.prefix,
            # Without a currency it is the account's own; Google refuses any other.
            amount={"specified_amount": {"units": str(settings.amount)}},
            budget_filter={
                # By number, since Google answers with the number whatever it was given.
                "projects": [pulumi.Output.concat("projects/", project.number)],
                "labels": {"tpu-stack": stack.context.stack} if in_stack else None,
            },
            threshold_rules=[
                {"threshold_percent": percent / 100} for percent in sorted(settings.thresholds)
            ],
            all_updates_rule=self._recipients(stack, settings, services),
            opts=services.after(apis.BUDGETS_API, parent=self, provider=provider),
        )
        self.register_outputs({})

    def _recipients(
        self, stack: CheckedStack, settings: BudgetSettings, services: ProjectServices
    ) -> gcp.billing.BudgetAllUpdatesRuleArgs | None:
        project, prefix = stack.settings.project, stack.names.prefix
        channels: list[pulumi.Output[str]] = []
        if settings.emails:
            after = services.after(apis.MONITORING_API, parent=self)
            channels = email_channels(project, prefix, settings.emails, after)
        topic: pulumi.Input[str] | None = settings.pubsub_topic
        if settings.own_topic:
            topic = _own_topic(settings.own_topic, stack, services, self).id
        if not channels and topic is None:
            return None
        return gcp.billing.BudgetAllUpdatesRuleArgs(
            monitoring_notification_channels=channels or None, pubsub_topic=topic
        )


def billing_provider(project: str, parent: pulumi.Resource) -> gcp.Provider:
    """Declare a provider with a quota project, which the API of budgets requires.

    The stack's own provider has none: with one, every call would take the permission
    `serviceusage.services.use`, which deployers of a stack without a budget do not need.
    """
    config = pulumi.Config("gcp")
    # Secret, since the state would hold them as plain text otherwise.
    access_token, credentials, account = (config.get_secret(name) for name in _CREDENTIALS)
    return gcp.Provider(
        "billing",
        project=project,
        billing_project=project,
        user_project_override=True,
        access_token=access_token,
        credentials=credentials,
        impersonate_service_account=account,
        opts=pulumi.ResourceOptions(parent=parent),
    )


def _required(account: str) -> str:
    if not account:
        raise pulumi.RunError(
            "budget.billingAccount: (not set) and the project has no billing account, or you may "
            "not see it. Set budget.billingAccount: `gcloud billing accounts list` shows them."
        )
    return account
