"""The budget and its alerts."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra.apis import BILLING_API, BUDGETS_API, MONITORING_API, PROJECTS_API, PUBSUB_API
from infra.checks import CheckedStack
from infra.components.messages import email_channels
from infra.components.services import ProjectServices
from infra.settings.budget import BudgetScope, BudgetSettings

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
        apis = [services.enabled[api] for api in (BILLING_API, PROJECTS_API)]
        project = gcp.organizations.get_project_output(
            project_id=stack.settings.project,
            opts=pulumi.InvokeOutputOptions(parent=self, depends_on=apis),
        )
        in_stack = settings.scope is BudgetScope.STACK
        provider = billing_provider(stack.settings.project, self)
        gcp.billing.Budget(
            "budget",
            billing_account=settings.billing_account or project.billing_account.apply(_required),
            display_name=stack.names.prefix,
            amount={
                "specified_amount": {
                    "units": str(settings.amount),
                    "currency_code": settings.currency,
                }
            },
            budget_filter={
                # By number, since Google answers with the number whatever it was given.
                "projects": [pulumi.Output.concat("projects/", project.number)],
                "labels": {"tpu-stack": stack.context.stack} if in_stack else None,
            },
            threshold_rules=[
                {"threshold_percent": percent / 100, "spend_basis": basis}
                for basis, percents in (
                    ("CURRENT_SPEND", settings.thresholds),
                    ("FORECASTED_SPEND", settings.forecast_thresholds),
                )
                for percent in sorted(percents)
            ],
            all_updates_rule=self._recipients(stack, settings, services),
            opts=pulumi.ResourceOptions.merge(
                services.after(BUDGETS_API, parent=self),
                pulumi.ResourceOptions(provider=provider),
            ),
        )
        self.register_outputs({})

    def _recipients(
        self, stack: CheckedStack, settings: BudgetSettings, services: ProjectServices
    ) -> gcp.billing.BudgetAllUpdatesRuleArgs | None:
        project, prefix = stack.settings.project, stack.names.prefix
        channels: list[pulumi.Output[str]] = []
        if settings.emails:
            after = services.after(MONITORING_API, parent=self)
            channels = email_channels(project, prefix, settings.emails, after)
        topic: pulumi.Input[str] | None = settings.pubsub_topic
        if settings.own_topic:
            topic = gcp.pubsub.Topic(
                "topic",
                name=settings.own_topic,
                project=project,
                labels=stack.labels,
                opts=services.after(PUBSUB_API, parent=self),
            ).id
        if not channels and topic is None:
            return None
        return gcp.billing.BudgetAllUpdatesRuleArgs(
            monitoring_notification_channels=channels or None, pubsub_topic=topic
        )


def billing_provider(project: str, parent: pulumi.Resource) -> gcp.Provider:
    """Declare a provider with a quota project, which the API of budgets requires."""
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
