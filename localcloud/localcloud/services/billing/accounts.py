"""Billing accounts, and which of them pays for which project.

There is one in US dollars, on which the default project is, and one in euros.
"""

from __future__ import annotations

from localcloud.core import access, projects
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import DEVELOPER, Cloud, cloud_started
from localcloud.core.errors import ApiError
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services import iam_policy
from localcloud.services.billing.api import ACCOUNT, ACCOUNTS, API, account_name, account_resources

DEFAULT_ACCOUNT = "billingAccounts/0A1B2C-3D4E5F-607182"
_CURRENCIES = {DEFAULT_ACCOUNT: "USD", "billingAccounts/0A1B2C-3D4E5F-607183": "EUR"}
LINK = "billing-link"
"""The store's kind of projects' billing accounts, by `projects/ID`."""
_ASSOCIATIONS = Collection(
    API, "billingAccounts.projects", "billing.resourceAssociations", account_resources
)


@cloud_started
def start(cloud: Cloud) -> None:
    """Open the accounts, once."""
    with cloud.store.locked():
        if cloud.store.get(ACCOUNT, DEFAULT_ACCOUNT) is not None:
            return
        for name, currency in _CURRENCIES.items():
            record = {"name": name, "displayName": "My Billing Account", "open": True}
            cloud.store.put(ACCOUNT, name, record | {"currencyCode": currency})
            iam_policy.grant(cloud, name, "roles/billing.admin", DEVELOPER)
        link = {"billingAccountName": DEFAULT_ACCOUNT}
        cloud.store.put(LINK, f"projects/{projects.DEFAULT_PROJECT}", link)


def load(cloud: Cloud, name: str) -> Record:
    """Return the account; 403 without one, as Google answers for a missing permission, too."""
    return cloud.store.load(ACCOUNT, name, ApiError(403, "The caller does not have permission"))


@ACCOUNTS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one account."""
    return load(cloud, account_name(call))


@API.method("billingAccounts.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the accounts that the caller may see."""
    found = [
        record
        for name, record in cloud.store.items(ACCOUNT)
        if access.has(cloud, call.principal, "billing.accounts.get", [name])
    ]
    return page(call, "billingAccounts", found)


iam_policy.serve(ACCOUNTS, lambda cloud, call: str(load(cloud, account_name(call))["name"]))


@API.method("projects.getBillingInfo", permission="resourcemanager.projects.get")
def get_link(cloud: Cloud, call: Call) -> Json:
    """Return the project's billing account."""
    if projects.find(cloud, call.project) is None:
        raise ApiError(403, "The caller does not have permission")
    return _view(cloud, call.project)


@API.method(
    "projects.updateBillingInfo", permission="resourcemanager.projects.createBillingAssignment"
)
def update_link(cloud: Cloud, call: Call) -> Json:
    """Put the project on another account, or on none."""
    name = call.body.get("billingAccountName", "")
    if name:
        load(cloud, name)
        permission = "billing.resourceAssociations.create"
        access.require(cloud, call.principal, permission, [name])
    cloud.store.put(LINK, f"projects/{call.project}", {"billingAccountName": name})
    return _view(cloud, call.project)


@_ASSOCIATIONS.method("list")
def list_projects(cloud: Cloud, call: Call) -> Json:
    """Return the projects on an account."""
    found = [
        _view(cloud, key.removeprefix("projects/"))
        for key, link in cloud.store.items(LINK)
        if link["billingAccountName"] == account_name(call)
    ]
    return page(call, "projectBillingInfo", found)


def _view(cloud: Cloud, project: str) -> Json:
    link = cloud.store.get(LINK, f"projects/{project}") or {}
    account = link.get("billingAccountName", "")
    return {
        "name": f"projects/{project}/billingInfo",
        "projectId": project,
        "billingAccountName": account,
        "billingEnabled": bool(account),
    }
