"""Grants that a stack's state does not have: somebody made them by hand, or by a hostile commit.

A stack declares single grants, not whole policies, so the engine sees no others. Another stack that
shares the bucket grants it to an account of the project; grants to anybody else are drift. On a
project, other grants are usual, and are told only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tpustack.cloud.google import Google
from tpustack.engine.events import Change

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}:getIamPolicy"
_BUCKET = "https://storage.googleapis.com/storage/v1/b/{}/iam"
_OWN = "gcp:storage/bucket:Bucket"
# Where grants in the state say on what they are.
_ON = {
    "gcp:projects/iAMMember:IAMMember": "project",
    "gcp:storage/bucketIAMMember:BucketIAMMember": "bucket",
}
# Who has a role in the project: each bucket begins with grants to them.
_OF_PROJECT = ("projectOwner:{}", "projectEditor:{}", "projectViewer:{}")
Json = Mapping[str, Any]
Grant = tuple[str, str]


def on_buckets(google: Google, project: str, resources: Sequence[Json]) -> Iterator[Change]:
    """Yield each bucket of the stack's own with grants that its state lacks.

    Raises TpustackError where they may not be read.
    """
    account = f"@{'.'.join(reversed(project.split(':')))}.iam.gserviceaccount.com"
    ours = (account, *(each.format(project) for each in _OF_PROJECT))
    for each in resources:
        name = (each.get("outputs") or {}).get("name")
        if each["type"] == _OWN and name:
            policy = google.get(
                _BUCKET.format(quote(name, safe="")), {"optionsRequestedPolicyVersion": 3}
            )
            more = sorted(_grants(policy) - _known(resources, "bucket", name))
            said = tuple(f"IAM: {role} to {who}" for role, who in more if not who.endswith(ours))
            if said:
                yield Change("update", _OWN, each["urn"].rpartition("::")[2], said)


def on_project(google: Google, project: str, resources: Sequence[Json]) -> str:
    """Return which grants on the project the state lacks. Raises TpustackError."""
    asked = {"options": {"requestedPolicyVersion": 3}}
    policy = google.ask(_PROJECT.format(project), asked)
    more = _grants(policy) - _known(resources, "project", project)
    return "; ".join(f"{role} to {member}" for role, member in sorted(more))


def _grants(policy: Json) -> set[Grant]:
    return {
        (binding["role"], member)
        for binding in policy.get("bindings") or ()
        for member in binding.get("members") or ()
    }


def _known(resources: Iterable[Json], on: str, name: str) -> set[Grant]:
    """Return the grants of the state on a bucket or project."""
    known = set()
    for each in resources:
        outputs = each.get("outputs") or {}
        if _ON.get(each["type"]) == on and str(outputs.get(on)).removeprefix("b/") == name:
            known.add((outputs["role"], outputs["member"]))
    return known
