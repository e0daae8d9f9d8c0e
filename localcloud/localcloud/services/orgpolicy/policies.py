"""Policies of a project by constraint. Other APIs obey what constraints.py knows."""

from __future__ import annotations

import re

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.services.paging import page

API = Api("orgpolicy", ("v2",))
POLICY = "org-policy"
"""The store's kind of policies, by `projects/ID/policies/CONSTRAINT`."""
_CONSTRAINT = re.compile(r"(?:custom\.)?[a-z]\w*(?:\.[A-Za-z]\w*)+", re.ASCII)
_POLICIES = Collection(API, "projects.policies", "orgpolicy.policy")
# What holds where nobody has set anything: booleans are off, and lists allow everything.
_NOTHING: Json = {"rules": []}


def _key(call: Call) -> str:
    return f"projects/{call.project}/policies/{call.params['policiesId']}"


def _view(call: Call, constraint: str, spec: Json) -> Json:
    number = projects.number(call.project)
    return {"name": f"projects/{number}/policies/{constraint}", "spec": spec}


@API.method("projects.policies.create", permission="orgpolicy.policy.set")
def create(cloud: Cloud, call: Call) -> Json:
    """Set a policy that there is none of yet."""
    constraint = str(call.body.get("name", "")).rpartition("/")[2]
    if not _CONSTRAINT.fullmatch(constraint):
        raise invalid(f"The constraint {constraint!r} is not a valid constraint name.")
    key = f"projects/{call.project}/policies/{constraint}"
    taken = ApiError(409, f"Requested entity already exists: {key}")
    cloud.store.add(POLICY, key, call.body.get("spec", {}), taken)
    return _view(call, constraint, call.body.get("spec", {}))


@_POLICIES.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a policy that was set on the project itself."""
    missing = ApiError(404, f"Requested entity was not found: {_key(call)}")
    return _view(call, call.params["policiesId"], cloud.store.load(POLICY, _key(call), missing))


@_POLICIES.method("getEffectivePolicy", verb="get")
def get_effective(cloud: Cloud, call: Call) -> Json:
    """Return what holds in the project."""
    constraint = call.params["policiesId"]
    if not _CONSTRAINT.fullmatch(constraint):
        raise invalid(f"The constraint {constraint!r} is not a valid constraint name.")
    return _view(call, constraint, cloud.store.get(POLICY, _key(call)) or _NOTHING)


@API.method("projects.policies.list", permission="orgpolicy.policies.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the policies that were set on the project itself."""
    found = cloud.store.items(POLICY, f"projects/{call.project}/policies/")
    views = [_view(call, key.rpartition("/")[2], spec) for key, spec in found]
    return page(call, "policies", views)


@API.method("projects.policies.delete", permission="orgpolicy.policy.set")
def delete(cloud: Cloud, call: Call) -> Json:
    """Take a policy back."""
    cloud.store.load(POLICY, _key(call), ApiError(404, f"Policy {_key(call)} was not found."))
    cloud.store.delete(POLICY, _key(call))
    return {}
