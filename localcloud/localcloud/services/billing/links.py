"""Which billing account pays for which project."""

from __future__ import annotations

from localcloud.core import access, projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.services.billing import accounts
from localcloud.services.billing.api import API, account_name, account_resources
from localcloud.services.paging import page


@API.method("projects.getBillingInfo", permission="resourcemanager.projects.get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return the project's billing account."""
    if projects.find(cloud, call.project) is None:
        raise ApiError(403, "The caller does not have permission")
    return _view(cloud, call.project)


@API.method(
    "projects.updateBillingInfo", permission="resourcemanager.projects.createBillingAssignment"
)
def update(cloud: Cloud, call: Call) -> Json:
    """Put the project on another account, or on none."""
    name = call.body.get("billingAccountName", "")
    if name:
        accounts.load(cloud, name)
        permission = "billing.resourceAssociations.create"
        access.require(cloud, call.principal, permission, [name])
    cloud.store.put(accounts.LINK, f"projects/{call.project}", {"billingAccountName": name})
    return _view(cloud, call.project)


@API.method(
    "billingAccounts.projects.list",
    permission="billing.resourceAssociations.list",
    resources=account_resources,
)
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the projects on an account."""
    found = [
        _view(cloud, key.removeprefix("projects/"))
        for key, link in cloud.store.items(accounts.LINK)
        if link["billingAccountName"] == account_name(call)
    ]
    return page(call, "projectBillingInfo", found)


def _view(cloud: Cloud, project: str) -> Json:
    link = cloud.store.get(accounts.LINK, f"projects/{project}") or {}
    account = link.get("billingAccountName", "")
    return {
        "name": f"projects/{project}/billingInfo",
        "projectId": project,
        "billingAccountName": account,
        "billingEnabled": bool(account),
    }
