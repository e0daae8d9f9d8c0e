"""A budget over the projects of the stacks."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from bootstrap.settings import BootstrapSettings, BudgetSettings
from infra.components.alerts import billing_provider

_MAILS_AT = (0.5, 0.9, 1.0)


@dataclass(frozen=True)
class BudgetArgs:
    """`requires` are the APIs that it waits for."""

    settings: BootstrapSettings
    budget: BudgetSettings
    requires: tuple[pulumi.Resource, ...] = ()


class Budget(pulumi.ComponentResource):
    """Mails the billing administrators. It stops nothing, on purpose: costs come in a day late."""

    def __init__(
        self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Budget", name, None, opts)
        # Budgets name projects by number.
        projects = [
            gcp.organizations.get_project_output(
                project_id=project, opts=pulumi.InvokeOptions(parent=self)
            ).number
            for project in args.settings.all_projects
        ]
        gcp.billing.Budget(
            "budget",
            billing_account=args.budget.billing_account,
            display_name=args.settings.name_prefix,
            # Without a currency it is the account's; Google refuses any other.
            amount={"specified_amount": {"units": str(args.budget.amount)}},
            budget_filter={
                "projects": [pulumi.Output.concat("projects/", number) for number in projects]
            },
            threshold_rules=[{"threshold_percent": percent} for percent in _MAILS_AT],
            opts=pulumi.ResourceOptions(
                parent=self,
                provider=billing_provider(args.settings.project, self),
                depends_on=list(args.requires),
            ),
        )
        self.register_outputs({})
