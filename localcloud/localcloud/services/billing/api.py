"""The registrations of Cloud Billing and its budgets, and whose policies count."""

from __future__ import annotations

from collections.abc import Sequence

from localcloud.core import access
from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.registry import Api, Collection

# Neither has a project in its paths: the caller's project must have the API enabled.
API = Api("cloudbilling", ("v1",), gated=False)
BUDGETS_API = Api("billingbudgets", ("v1",), gated=False)

ACCOUNT = "billing-account"
"""The store's kind of billing accounts, by `billingAccounts/ID`."""
BUDGET = "budget"
"""The store's kind of budgets, by `billingAccounts/ID/budgets/UUID`."""

_ADDRESS_END = ".iam.gserviceaccount.com"


def account_name(call: Call) -> str:
    """Return the full name of the billing account in the path."""
    return f"billingAccounts/{call.params['billingAccountsId']}"


def account_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policy counts: the account's."""
    return (account_name(call),)


ACCOUNTS = Collection(API, "billingAccounts", "billing.accounts", account_resources)


def budget_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policy counts: the account's.

    A call is refused whose quota project lacks the API, or that has none.

    A service account's calls count for its own project, a person's for the one that its client
    names: Google's command line and libraries have none unless they are told.

    Raises:
        ApiError: 403.
    """
    named = call.request.headers.get(access.QUOTA_PROJECT, "")
    if not named and call.principal.member.startswith("serviceAccount:"):
        named = call.principal.email.partition("@")[2].removesuffix(_ADDRESS_END)
    if not named:
        raise ApiError(
            403,
            "Your application is authenticating by using local Application Default Credentials. "
            "The billingbudgets.googleapis.com API requires a quota project, which is not set by "
            "default. To learn how to set your quota project, see "
            "https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds .",
            reason="SERVICE_DISABLED",
        )
    access.require_service(cloud, named, "billingbudgets.googleapis.com")
    return account_resources(cloud, call)
