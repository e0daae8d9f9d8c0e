"""Policies of a project by constraint. Other APIs obey what constraints.py knows."""

from __future__ import annotations

import re

from localcloud.core import projects
from localcloud.core.call import Call, Json, page
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.services import iam_policy

API = Api("orgpolicy", ("v2",))
POLICY = "org-policy"
"""The store's kind of policies, by `projects/ID/policies/CONSTRAINT`."""
_CONSTRAINT = re.compile(r"(?:custom\.)?[a-z]\w*(?:\.[A-Za-z]\w*)+", re.ASCII)
_POLICIES = Collection(API, "projects.policies", "orgpolicy.policy")
_SPECS = ("spec", "dryRunSpec")
# What holds where nobody has set anything: booleans are off, and lists allow everything.
_NOTHING: Json = {"rules": []}


def _key(call: Call) -> str:
    return f"projects/{call.project}/policies/{call.params['policiesId']}"


def _load(cloud: Cloud, call: Call) -> Json:
    missing = ApiError(404, "Requested entity was not found.")
    return cloud.store.load(POLICY, _key(call), missing)


def _view(call: Call, constraint: str, policy: Json) -> Json:
    return {"name": projects.numbered(f"projects/{call.project}/policies/{constraint}"), **policy}


@API.method("projects.policies.create", permission="orgpolicy.policy.set")
def create(cloud: Cloud, call: Call) -> Json:
    """Set a policy that there is none of yet."""
    constraint = str(call.body.get("name", "")).rpartition("/")[2]
    if not _CONSTRAINT.fullmatch(constraint):
        raise invalid(f"The constraint {constraint!r} is not a valid constraint name.")
    key = f"projects/{call.project}/policies/{constraint}"
    written = {"etag": iam_policy.etag(cloud), "updateTime": rfc3339(cloud.clock.now())}
    policy: Json = {field: {**spec, **written} for field, spec in call.sent(_SPECS).items()}
    policy["etag"] = written["etag"]
    cloud.store.add(POLICY, key, policy, ApiError(409, "Requested entity already exists"))
    return _view(call, constraint, policy)


@_POLICIES.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a policy that was set on the project itself."""
    return _view(call, call.params["policiesId"], _load(cloud, call))


@_POLICIES.method("getEffectivePolicy", verb="get")
def get_effective(cloud: Cloud, call: Call) -> Json:
    """Return what holds in the project."""
    constraint = call.params["policiesId"]
    if not _CONSTRAINT.fullmatch(constraint):
        raise invalid(f"The constraint {constraint!r} is not a valid constraint name.")
    policy = cloud.store.get(POLICY, _key(call)) or {}
    return _view(call, constraint, {"spec": policy.get("spec", _NOTHING)})


@API.method("projects.policies.list", permission="orgpolicy.policies.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the policies that were set on the project itself."""
    found = cloud.store.items(POLICY, f"projects/{call.project}/policies/")
    views = [_view(call, key.rpartition("/")[2], policy) for key, policy in found]
    return page(call, "policies", views)


@API.method("projects.policies.delete", permission="orgpolicy.policy.set")
def delete(cloud: Cloud, call: Call) -> Json:
    """Take a policy back."""
    _load(cloud, call)
    cloud.store.delete(POLICY, _key(call))
    return {}
