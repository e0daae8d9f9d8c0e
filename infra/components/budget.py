"""The budget and its alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.apis import BILLING_API, BUDGETS_API, MONITORING_API, PROJECTS_API, PUBSUB_API
from infra.components.billing import billing_provider
from infra.components.channels import email_channels
from infra.settings.budget import BudgetScope, BudgetSettings


@dataclass(frozen=True)
class BudgetArgs:
    """The budget to declare.

    Attributes:
        amount: what may be spent in a month, in whole units of the currency.
        label: the one that only this stack's resources have.
        requires: the APIs that it waits for, by name.
    """

    project: str
    name: str
    amount: int
    settings: BudgetSettings
    label: tuple[str, str]
    labels: Mapping[str, str]
    requires: Mapping[str, pulumi.Resource]


class Budget(pulumi.ComponentResource):
    """A monthly budget of the project's billing account, with alerts by e-mail and Pub/Sub.

    It stops nothing, on purpose: Google reports costs hours late, and a TPU that a bill switches
    off loses what it has computed.
    """

    def __init__(
        self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Budget", name, None, opts)
        settings = args.settings
        project = gcp.organizations.get_project_output(
            project_id=args.project,
            opts=pulumi.InvokeOutputOptions(
                parent=self, depends_on=[args.requires[BILLING_API], args.requires[PROJECTS_API]]
            ),
        )
        labels = {args.label[0]: args.label[1]} if settings.scope is BudgetScope.STACK else None
        account = settings.billing_account or project.billing_account.apply(_required)
        gcp.billing.Budget(
            "budget",
            billing_account=account,
            display_name=args.name,
            amount={
                "specified_amount": {
                    "units": str(args.amount),
                    "currency_code": settings.currency,
                }
            },
            budget_filter={
                # By number, since Google answers with the number whatever it was given.
                "projects": [pulumi.Output.concat("projects/", project.number)],
                "labels": labels,
            },
            threshold_rules=[
                {"threshold_percent": percent / 100, "spend_basis": basis}
                for basis, percents in (
                    ("CURRENT_SPEND", settings.thresholds),
                    ("FORECASTED_SPEND", settings.forecast_thresholds),
                )
                for percent in sorted(percents)
            ],
            all_updates_rule=self._told(args),
            opts=pulumi.ResourceOptions.merge(
                self._after(args, BUDGETS_API),
                pulumi.ResourceOptions(provider=billing_provider(args.project, self)),
            ),
        )
        self.register_outputs({})

    def _told(self, args: BudgetArgs) -> gcp.billing.BudgetAllUpdatesRuleArgs | None:
        settings = args.settings
        channels: list[pulumi.Output[str]] = []
        if settings.emails:
            after = self._after(args, MONITORING_API)
            channels = email_channels(args.project, args.name, settings.emails, after)
        topic: pulumi.Input[str] | None = settings.pubsub_topic
        if settings.own_topic:
            topic = gcp.pubsub.Topic(
                "topic",
                name=settings.own_topic,
                project=args.project,
                labels=dict(args.labels),
                opts=self._after(args, PUBSUB_API),
            ).id
        if not channels and topic is None:
            return None
        return gcp.billing.BudgetAllUpdatesRuleArgs(
            monitoring_notification_channels=channels or None, pubsub_topic=topic
        )

    def _after(self, args: BudgetArgs, api: str) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[args.requires[api]])


def _required(account: str) -> str:
    if not account:
        raise pulumi.RunError(
            "budget.billingAccount: (not set) and the project has no billing account, or you may "
            "not see it. Set budget.billingAccount: `gcloud billing accounts list` shows them."
        )
    return account
