"""Grants that a stack's state does not have: somebody made them by hand, or by a hostile commit.

A stack declares single grants, not whole policies, so the engine sees no others. Accounts of the
stack's project may share its bucket, by another stack. A project's policy has many grants that are
none of the stack's business, with people's addresses: only the roles that the stack gives there are
looked at, which are those that its deployer can give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tpustack.cloud.google import Google
from tpustack.engine.stack import Change

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}:getIamPolicy"
_BUCKET = "https://storage.googleapis.com/storage/v1/b/{}/iam"
_OWN = "gcp:storage/bucket:Bucket"
_ON_PROJECT = "gcp:projects/iAMMember:IAMMember"
_ON_BUCKET = "gcp:storage/bucketIAMMember:BucketIAMMember"
# Who has a role in the project: each bucket begins with grants to them.
_OF_PROJECT = ("projectOwner:{}", "projectEditor:{}", "projectViewer:{}")
Json = Mapping[str, Any]
Grant = tuple[str, str]


def on_buckets(google: Google, project: str, resources: Sequence[Json]) -> Iterator[Change]:
    """Yield each bucket of the stack's own with grants that its state lacks.

    Raises TpustackError where they may not be read.
    """
    for each in resources:
        name = (each.get("outputs") or {}).get("name")
        if each["type"] == _OWN and name:
            url = _BUCKET.format(quote(name, safe=""))
            policy = google.get(url, {"optionsRequestedPolicyVersion": 3})
            more = _strangers(policy, project) - _known(resources, _ON_BUCKET, name)
            if said := tuple(f"IAM: {role} to {member}" for role, member in sorted(more)):
                yield Change("update", _OWN, each["urn"].rpartition("::")[2], said)


def on_project(google: Google, project: str, resources: Sequence[Json]) -> str:
    """Return which grants on the project the state lacks. Raises TpustackError."""
    known = _known(resources, _ON_PROJECT, project)
    ours = {role for role, _ in known}
    asked = {"options": {"requestedPolicyVersion": 3}}
    more = _strangers(google.ask(_PROJECT.format(project), asked), project) - known
    return "; ".join(f"{role} to {member}" for role, member in sorted(more) if role in ours)


def _strangers(policy: Json, project: str) -> set[Grant]:
    """Return the grants of a policy, without those to accounts and members of the project."""
    account = f"@{'.'.join(reversed(project.split(':')))}.iam.gserviceaccount.com"
    ours = (account, *(each.format(project) for each in _OF_PROJECT))
    return {
        (binding["role"], member)
        for binding in policy.get("bindings") or ()
        for member in binding.get("members") or ()
        if not member.endswith(ours)
    }


def _known(resources: Iterable[Json], kind: str, name: str) -> set[Grant]:
    """Return the grants of the state on a bucket or project."""
    outputs = [each.get("outputs") or {} for each in resources if each["type"] == kind]
    return {
        (each["role"], each["member"])
        for each in outputs
        if name in (each.get("project"), str(each.get("bucket")).removeprefix("b/"))
    }
