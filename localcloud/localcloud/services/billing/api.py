"""The registrations of Cloud Billing and its budgets, and whose policies count."""

from __future__ import annotations

from collections.abc import Sequence

from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.registry import Api, Collection

# Neither has a project in its paths: the caller's project must have the API enabled.
API = Api("cloudbilling", ("v1",), gated=False)
BUDGETS_API = Api("billingbudgets", ("v1",))

ACCOUNT = "billing-account"
"""The store's kind of billing accounts, by `billingAccounts/ID`."""
BUDGET = "budget"
"""The store's kind of budgets, by `billingAccounts/ID/budgets/UUID`."""


def account_name(call: Call) -> str:
    """Return the full name of the billing account in the path."""
    return f"billingAccounts/{call.params['billingAccountsId']}"


def account_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policy counts: the account's."""
    return (account_name(call),)


ACCOUNTS = Collection(API, "billingAccounts", "billing.accounts", account_resources)
