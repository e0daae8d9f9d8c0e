"""Who may do what: roles, permissions, policies, the scopes of tokens, service accounts."""

import logging
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from localcloud import data
from localcloud.core import conditions, projects
from localcloud.core.call import ANONYMOUS, CLOUD_PLATFORM, Call, Principal
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, error_info
from localcloud.core.store import POLICY, Record

Names = Sequence[str]
Attributes = Mapping[str, Any]
_NONE: Attributes = MappingProxyType({})
CUSTOM_ROLE = "role"
QUOTA_PROJECT = "X-Goog-User-Project"
"""Header with the project whose quota a call takes."""
# APIs whose calls count for their client's project. Google's page has no list
# (docs.cloud.google.com/docs/quotas/quota-project, 2026-11). Known by their refusals: orgpolicy
# (golang/oauth2#702, 2024-02) and billingbudgets (the provider's page on google_billing_budget).
_CLIENT_BASED = ("billingbudgets.googleapis.com", "orgpolicy.googleapis.com")
# Reports of 2026 disagree about Vertex AI: the setting `vertex-quota-project` {"on": true} decides.
_VERTEX = "aiplatform.googleapis.com"
_PROJECT_ROLES = {
    "projectOwner": "roles/owner",
    "projectEditor": "roles/editor",
    "projectViewer": "roles/viewer",
}
log = logging.getLogger(__name__)
_PROJECT_SERVICE = "resourcemanager"
ACCOUNT = "service-account"
"""The store's kind of accounts, by their full name `projects/p/serviceAccounts/EMAIL`."""
OWN_DOMAIN = ".iam.gserviceaccount.com"
# The accounts that Google makes carry the project's number: Compute Engine's default account, and
# those as which its services act.
_GOOGLES = re.compile(
    r"(\d+)-compute@developer\.gserviceaccount\.com|service-(\d+)@[-a-z0-9]+\.iam\.gserviceaccount\.com"
)


def predefined_roles() -> dict[str, list[str]]:
    """Return the permissions (patterns with `*`) of each predefined role of Google's."""
    roles: dict[str, list[str]] = data.load("roles")
    return roles


def policy(cloud: Cloud, resource: str) -> Record:
    """Return the IAM policy set on a resource such as `projects/p` or `buckets/b`.

    The etag is the one that Google gives to a policy that was never set.
    """
    return cloud.store.get(POLICY, resource) or {"etag": "ACAB", "bindings": []}


def permissions(cloud: Cloud, role: str) -> list[str]:
    """Return the permissions of a predefined or custom role; none when there is no such role."""
    custom = cloud.store.get(CUSTOM_ROLE, role)
    if custom is not None:
        included: list[str] = custom.get("includedPermissions", [])
        return [] if custom.get("deleted") else included
    return predefined_roles().get(role, [])


@lru_cache(maxsize=4096)
def _predefined_grants(role: str, permission: str) -> bool:
    return any(fnmatchcase(permission, pattern) for pattern in predefined_roles().get(role, []))


def grants(cloud: Cloud, role: str, permission: str) -> bool:
    """Return whether a role has a permission.

    Roles of Google's are known by patterns, custom ones list each permission.
    """
    if role.startswith("roles/"):
        return _predefined_grants(role, permission)
    return permission in permissions(cloud, role)


def allowed(
    cloud: Cloud, principal: Principal, permission: str, resources: Names, about: Attributes = _NONE
) -> bool:
    """Return what `has` returns, and record it for `localcloud permissions`."""
    if permission not in known_permissions():
        raise LookupError(f"{permission} is not a permission of Google's")
    granted = has(cloud, principal, permission, resources, about)
    with cloud.store.locked():
        cloud.asked.setdefault(principal.member, {})[permission] = granted
    return granted


def has(
    cloud: Cloud, principal: Principal, permission: str, resources: Names, about: Attributes = _NONE
) -> bool:
    """Return whether a policy on one of `resources` grants `permission` to `principal`.

    Args:
        principal: who calls.
        permission: what the call takes.
        resources: what is accessed, and what it is in: whose policies count.
        about: the call's own attributes, which conditions read with `api.getAttribute`.
    """
    # What a policy may call the caller.
    members = {principal.member, "allUsers", "allAuthenticatedUsers", *principal.sets}
    if principal is ANONYMOUS:
        members = {"allUsers"}
    for resource in resources:
        for binding in _bindings(cloud, resource):
            named = binding.get("members", [])
            if members.isdisjoint(named) and not _by_project_role(cloud, principal, named):
                continue
            if not grants(cloud, binding["role"], permission):
                continue
            if _holds(binding, permission, about, resources[0]):
                return True
    return False


def _bindings(cloud: Cloud, resource: str) -> list[Record]:
    bindings: list[Record] = (cloud.store.view(POLICY, resource) or {}).get("bindings", [])
    return bindings


def _holds(binding: Record, permission: str, about: Attributes, accessed: str) -> bool:
    condition = binding.get("condition")
    if not condition:
        return True
    if conditions.is_unheard(condition["expression"], permission):
        return False
    names = {"api": about, **conditions.resource(accessed)}
    return bool(conditions.evaluate(condition["expression"], names))


def _by_project_role(cloud: Cloud, principal: Principal, named: Sequence[str]) -> bool:
    """Return whether the caller has the role in a project that one of `named` stands for.

    Only buckets have such members: cloud.google.com/storage/docs/access-control/iam#convenience.
    """
    for member in named:
        kind, _, project = member.partition(":")
        role = _PROJECT_ROLES.get(kind)
        for binding in _bindings(cloud, f"projects/{project}") if role else ():
            if binding["role"] == role and principal.member in binding["members"]:
                return True
    return False


def require(
    cloud: Cloud, principal: Principal, permission: str, resources: Names, about: Attributes = _NONE
) -> None:
    """Raise the 403 that Google answers when `permission` is missing on all of `resources`."""
    if allowed(cloud, principal, permission, resources, about):
        return
    resource = resources[0] if resources else "the resource"
    # Google's words leave out the API in the names of some:
    # github.com/hashicorp/terraform-provider-google/issues/11789.
    permission = permission.replace("iam.googleapis.com/", "iam.")
    who, details = principal.email or "anonymous caller", []
    if resource.startswith("buckets/"):
        kind = "object" if "/objects/" in resource else "bucket"
        message = (
            f"{principal.email or 'Anonymous caller'} does not have {permission} access to the "
            f"Google Cloud Storage {kind}. Permission '{permission}' denied on resource (or it "
            "may not exist)."
        )
    elif permission.startswith("resourcemanager."):
        message = "The caller does not have permission"
    else:
        message = (
            f"Permission '{permission}' denied on resource '//{resource}' for {who} (or it may not "
            "exist)."
        )
        named = {"permission": permission, "resource": resource}
        details = [error_info("IAM_PERMISSION_DENIED", "iam.googleapis.com", **named)]
    raise ApiError(401 if principal is ANONYMOUS else 403, message, details=details)


def require_scope(principal: Principal, scopes: frozenset[str], method: str) -> None:
    """Raise the 403 that Google answers when the token has none of the method's scopes.

    Scopes narrow what a VM's token can do, whatever roles its account has.
    """
    if principal is ANONYMOUS or not scopes or CLOUD_PLATFORM in principal.scopes:
        return
    if scopes.isdisjoint(principal.scopes):
        raise ApiError(
            403,
            "Request had insufficient authentication scopes.",
            reason="insufficientPermissions",
            details=[error_info("ACCESS_TOKEN_SCOPE_INSUFFICIENT", method=method)],
        )


def require_quota_project(cloud: Cloud, call: Call, service: str) -> None:
    """Raise the 403 that Google answers when the quota project of a call is not usable.

    Source: "Set the quota project", docs.cloud.google.com/docs/quotas/set-quota-project.
    """
    named = call.request.headers.get(QUOTA_PROJECT, "")
    if not named:
        vertex = service == _VERTEX and cloud.setting("vertex-quota-project").get("on")
        asked = vertex or service in _CLIENT_BASED
        if asked and call.principal is not ANONYMOUS and not call.principal.own_client:
            require_service(cloud, _clients_project(call, service), service)
        return
    project = projects.identifier(cloud, named)
    if not allowed(cloud, call.principal, "serviceusage.services.use", (f"projects/{project}",)):
        raise ApiError(
            403,
            f"Caller does not have required permission to use project {named}. Grant the caller "
            "the roles/serviceusage.serviceUsageConsumer role, or a custom role with the "
            "serviceusage.services.use permission, by visiting https://console.developers.google."
            f"com/iam-admin/iam/project?project={named} and then retry. Propagation of the new "
            "permission may take a few minutes.",
            details=[
                error_info("USER_PROJECT_DENIED", consumer=f"projects/{named}", service=service)
            ],
        )
    require_service(cloud, project, service)


def _clients_project(call: Call, service: str) -> str:
    """Return a service account's own project; a person has none, which Google refuses."""
    if call.principal.member.startswith("serviceAccount:"):
        return call.principal.email.partition("@")[2].partition(".iam.")[0]
    raise ApiError(
        403,
        "Your application is authenticating by using local Application Default Credentials. The "
        f"{service} API requires a quota project, which is not set by default. To learn how to set "
        "your quota project, see https://cloud.google.com/docs/authentication/adc-troubleshooting/"
        "user-creds .",
        details=[error_info("SERVICE_DISABLED", consumer="projects/764086051850", service=service)],
    )


def require_service(cloud: Cloud, project: str, service: str) -> None:
    """Raise the 403 that Google answers when `service` is not enabled in `project`."""
    # "-" stands for any project where a resource's name is unique without it.
    if not service or project in ("", "-") or projects.is_service_enabled(cloud, project, service):
        return
    record = projects.find(cloud, project)
    if record is None:
        raise _no_project(project, service)
    number = record["projectNumber"]
    title = projects.known_services().get(service, {}).get("title", service)
    url = f"https://console.developers.google.com/apis/api/{service}/overview?project={number}"
    raise ApiError(
        403,
        f"{title} has not been used in project {number} before or it is disabled. Enable it by "
        f"visiting {url} then retry. If you enabled this API recently, wait a few minutes for the "
        "action to propagate to our systems and retry.",
        reason="accessNotConfigured",
        details=[
            error_info(
                "SERVICE_DISABLED",
                consumer=f"projects/{number}",
                containerInfo=number,
                service=service,
                serviceTitle=title,
                activationUrl=url,
            ),
            {
                "@type": "type.googleapis.com/google.rpc.Help",
                "links": [{"description": "Google developers console API activation", "url": url}],
            },
        ],
    )


def _no_project(project: str, service: str) -> ApiError:
    if service == "compute.googleapis.com":
        return ApiError(404, f"The resource 'projects/{project}' was not found")
    return ApiError(
        403,
        f"Permission denied on resource project {project}.",
        details=[error_info("CONSUMER_INVALID", consumer=f"projects/{project}", service=service)],
    )


@lru_cache(maxsize=1)
def known_permissions() -> frozenset[str]:
    """Return the permissions of the resource types that are known in full.

    They are those of Google's reference, cloud.google.com/iam/docs/permissions-reference.
    """
    types: dict[str, list[str]] = data.load("permissions")["types"]
    return frozenset(f"{kind}.{verb}" for kind, verbs in types.items() for verb in verbs)


def is_testable(name: str, service: str = _PROJECT_SERVICE) -> bool:
    """Return whether a permission exists and can be tested on a resource of a service.

    A project takes those of all services. That others take only their own is our assumption.
    """
    above = data.load("permissions")["above"].get(service, ())
    if any(fnmatchcase(name, pattern) for pattern in above):
        return False
    own = service == _PROJECT_SERVICE or name.startswith(f"{service}.")
    return own and _permission_exists(name)


def _permission_exists(name: str) -> bool:
    """Return whether Google has a permission; where only its resource type is known, log that."""
    if name in known_permissions():
        return True
    facts = data.load("permissions")
    # Some are in the name of an API: iam.googleapis.com/workloadIdentityPools.get.
    service, _, rest = name.partition("/" if "/" in name else ".")
    kind, _, verb = rest.partition(".")
    known = service in facts["services"] or kind in facts["others"].get(service, ())
    taken = known and kind.isalnum() and verb.isalnum()
    if taken:
        log.warning("%s is taken for a permission of Google's: the local cloud can't tell", name)
    return taken


def find_account(cloud: Cloud, email: str) -> tuple[str, Record] | None:
    """Return the full name and record of an account, or None."""
    googles = _GOOGLES.fullmatch(email)
    if googles:
        project = projects.identifier(cloud, googles.group(1) or googles.group(2))
    else:
        project = email.partition("@")[2].removesuffix(OWN_DOMAIN)
    key = f"projects/{project}/serviceAccounts/{email}"
    record = cloud.store.get(ACCOUNT, key)
    return (key, record) if record is not None and is_account_visible(cloud, record) else None


def is_account_visible(cloud: Cloud, record: Record) -> bool:
    """Return whether Google finds the account, which it does only a while after its creation."""
    return bool(record.get("_visible", 0.0) <= cloud.clock.now())


def is_service_agent(email: str) -> bool:
    """Return whether the account is a service agent of Google's; lists leave those out."""
    return email.startswith("service-") and _GOOGLES.fullmatch(email) is not None


def may_act_as(cloud: Cloud, call: Call, email: str) -> bool:
    """Return whether the caller may attach the account to a machine of the project in the path.

    Otherwise everyone who may create machines could use every account of the project
    (cloud.google.com/iam/docs/service-accounts-actas).
    """
    project = f"projects/{call.project}"
    resources = [f"{project}/serviceAccounts/{email}", project]
    return allowed(cloud, call.principal, "iam.serviceAccounts.actAs", resources)


def account_problem(cloud: Cloud, email: str) -> str:
    """Return why the account can't be used; empty when it can."""
    found = find_account(cloud, email)
    if found is None:
        return f"the service account '{email}' does not exist"
    return f"the service account '{email}' is disabled" if found[1].get("disabled") else ""
