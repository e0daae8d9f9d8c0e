"""Organization policies of a project, and the constraints that other APIs enforce."""

import re

from localcloud.core import Api, ApiError, Call, Cloud, Collection, Json, invalid, projects, rfc3339
from localcloud.core.errors import failed_precondition
from localcloud.services import iam_policy

API = Api("orgpolicy", ("v2",))
ORG_POLICY = "org-policy"
"""The store's kind of policies, by `projects/ID/policies/CONSTRAINT`."""
# Without the prefix `constraints/`, which only the older API has.
_CONSTRAINT = re.compile(r"(?:custom\.)?[a-z]\w*(?:\.[A-Za-z]\w*)+", re.ASCII)
_POLICIES = Collection(API, "projects.policies", "orgpolicy.policy")
_SPECS = ("spec", "dryRunSpec")
# What applies by default: booleans are off, and lists allow everything.
_NOTHING: Json = {"rules": []}


def _valid(constraint: str) -> str:
    if not _CONSTRAINT.fullmatch(constraint):
        raise invalid(f"The constraint {constraint!r} is not a valid constraint name.")
    return constraint


def _key(call: Call) -> str:
    return f"projects/{call.project}/policies/{call.params['policiesId']}"


def _load(cloud: Cloud, call: Call) -> Json:
    missing = ApiError(404, "Requested entity was not found.")
    return cloud.store.load(ORG_POLICY, _key(call), missing)


def _view(call: Call, constraint: str, policy: Json) -> Json:
    return {"name": projects.numbered(f"projects/{call.project}/policies/{constraint}"), **policy}


@API.method("projects.policies.create", permission="orgpolicy.policy.set")
def _create(cloud: Cloud, call: Call) -> Json:
    constraint = _valid(str(call.body.get("name", "")).rpartition("/")[2])
    key = f"projects/{call.project}/policies/{constraint}"
    written = {"etag": iam_policy.etag(cloud), "updateTime": rfc3339(cloud.clock.now())}
    policy: Json = {field: {**spec, **written} for field, spec in call.sent(_SPECS).items()}
    policy["etag"] = written["etag"]
    cloud.store.add(ORG_POLICY, key, policy, ApiError(409, "Requested entity already exists"))
    return _view(call, constraint, policy)


@_POLICIES.method("get")
def _get(cloud: Cloud, call: Call) -> Json:
    return _view(call, call.params["policiesId"], _load(cloud, call))


@_POLICIES.method("getEffectivePolicy", verb="get")
def get_effective(cloud: Cloud, call: Call) -> Json:
    """Return the policy that applies to the project.

    There is no organization above it, so it is the project's own or Google's default.
    """
    constraint = _valid(call.params["policiesId"])
    policy = cloud.store.get(ORG_POLICY, _key(call)) or {}
    return _view(call, constraint, {"spec": policy.get("spec", _NOTHING)})


@API.method("projects.policies.delete", permission="orgpolicy.policy.set")
def _delete(cloud: Cloud, call: Call) -> Json:
    _load(cloud, call)
    cloud.store.delete(ORG_POLICY, _key(call))
    return {}


# The constraints that other APIs enforce. Where no record of Google's words was found, they are
# those of the other constraints.

SKIP_DEFAULT_NETWORK = "compute.skipDefaultNetworkCreation"
_EXTERNAL_IP = "compute.vmExternalIpAccess"
_OS_LOGIN = "compute.requireOsLogin"
_SERIAL_LOGGING = "compute.disableSerialPortLogging"
_VIOLATED = "Constraint constraints/{} violated for project {}."


def is_enforced(cloud: Cloud, project: str, constraint: str) -> bool:
    """Return whether a boolean constraint holds in the project.

    Conditions of rules, which are on tags, are not looked at: nothing has a tag here.
    """
    return any(rule.get("enforce") for rule in _rules(cloud, project, constraint))


def require_external_ip(cloud: Cloud, project: str, machine: str) -> None:
    """Refuse a public address that a machine (its path) may not have.

    Source of the words: github.com/gardener/gardener-extension-provider-gcp/issues/415 (2022).
    """
    for rule in _rules(cloud, project, _EXTERNAL_IP):
        values = rule.get("values", {})
        allowed = values.get("allowedValues")
        denied = rule.get("denyAll") or machine in values.get("deniedValues", [])
        if denied or (allowed is not None and machine not in allowed):
            message = _VIOLATED.format(_EXTERNAL_IP, projects.number(project))
            raise _unmet(
                f"{message} Add instance {machine} to the constraint to use external IP with it."
            )


def require_external_ips_of_tpus(cloud: Cloud, project: str) -> None:
    """Refuse TPU VMs with public addresses where no machine of the project may have one.

    Google's page has this constraint lifted for TPU VMs that are to be reached from outside
    (docs.cloud.google.com/tpu/docs/cross-project-sa-compute, 2025-09-04). The words are those of
    the other constraints. What a list of single machines means here is not known.
    """
    if any(rule.get("denyAll") for rule in _rules(cloud, project, _EXTERNAL_IP)):
        raise failed_precondition(_VIOLATED.format(_EXTERNAL_IP, projects.number(project)))


def require_os_login(cloud: Cloud, project: str, metadata: Json) -> None:
    """Refuse a machine that switches OS Login off where it is required.

    "Requests that set enable-oslogin to false in VM or project metadata are rejected"
    (cloud.google.com/compute/docs/oslogin/manage-oslogin-in-an-org).
    """
    if _value(metadata, "enable-oslogin") in ("", "TRUE"):
        return
    if is_enforced(cloud, project, _OS_LOGIN):
        raise _unmet(_VIOLATED.format(_OS_LOGIN, f"projects/{project}"))


def forbid_serial_port_logging(cloud: Cloud, project: str, metadata: Json) -> None:
    """Refuse a machine that sends its serial port to Cloud Logging where that is forbidden.

    Source: docs.cloud.google.com/composer/docs/composer-1/known-issues.
    """
    if _value(metadata, "serial-port-logging-enable") not in ("TRUE", "1"):
        return
    if is_enforced(cloud, project, _SERIAL_LOGGING):
        raise _unmet(_VIOLATED.format(_SERIAL_LOGGING, f"projects/{project}"))


def _value(metadata: Json, key: str) -> str:
    items = {item["key"]: item.get("value", "") for item in metadata.get("items", [])}
    return str(items.get(key, "")).upper()


def _unmet(message: str) -> ApiError:
    return ApiError(412, message, reason="conditionNotMet")


def _rules(cloud: Cloud, project: str, constraint: str) -> list[Json]:
    policy = cloud.store.get(ORG_POLICY, f"projects/{project}/policies/{constraint}") or {}
    rules: list[Json] = policy.get("spec", {}).get("rules", [])
    return rules
