"""No bucket can be read or written by everyone."""

from __future__ import annotations

import json
from collections.abc import Iterator

from policy.machines import Property
from policy.resource import UNKNOWN, Resource, items, named
from policy.rule import ALLOWED, Config, ResourceRule, allowed

_BUCKET = "gcp:storage/bucket:Bucket"
_EVERYONE = ("allUsers", "allAuthenticatedUsers")
_PUBLIC_ACLS = ("publicRead", "publicReadWrite", "authenticatedRead")
_PREVENTION, _UNIFORM = "publicAccessPrevention", "uniformBucketLevelAccess"
# Where grants on buckets and objects say to whom.
_MEMBERS = {
    "gcp:storage/bucketIAMMember:BucketIAMMember": ("member",),
    "gcp:storage/bucketIAMBinding:BucketIAMBinding": ("members",),
    "gcp:storage/bucketIAMPolicy:BucketIAMPolicy": ("policyData",),
    "gcp:storage/bucketAccessControl:BucketAccessControl": ("entity",),
    "gcp:storage/defaultObjectAccessControl:DefaultObjectAccessControl": ("entity",),
    "gcp:storage/objectAccessControl:ObjectAccessControl": ("entity",),
    "gcp:storage/bucketACL:BucketACL": ("predefinedAcl", "defaultAcl", "roleEntities"),
    "gcp:storage/defaultObjectACL:DefaultObjectACL": ("roleEntities",),
    "gcp:storage/objectACL:ObjectACL": ("predefinedAcl", "roleEntities"),
    "gcp:storage/bucketObject:BucketObject": ("predefinedAcl",),
}


def _check(resource: Resource, config: Config) -> Iterator[str]:
    props = resource.props
    if resource.matches(config[ALLOWED]) or named(props.get("bucket"), config[ALLOWED]):
        return
    if resource.type == _BUCKET:
        prevention, uniform = props.get(_PREVENTION), props.get(_UNIFORM)
        if prevention not in ("enforced", UNKNOWN):
            yield resource.wrong(
                _PREVENTION, prevention, "so a grant can make it public", "Set it to enforced"
            )
        if uniform not in (True, UNKNOWN):
            yield resource.wrong(
                _UNIFORM, uniform, "so each object can have grants of its own", "Set it to true"
            )
    for path in _MEMBERS.get(resource.type, ()):
        for public in _public(Property(path, props.get(path))):
            yield resource.wrong(
                public.path,
                public.value,
                "which is everyone on the internet",
                "Name the accounts that need access, or add the bucket to "
                "no-public-buckets.allowed",
            )


def _public(of: Property) -> Iterator[Property]:
    """Yield the parts of a property that let everyone in."""
    if of.path == "policyData":
        policy = json.loads(of.value) if isinstance(of.value, str) else {}
        for number, binding in enumerate(items(policy, "bindings")):
            members = Property(f"policyData.bindings[{number}].members", binding.get("members"))
            yield from _public(members)
    elif isinstance(of.value, list):
        for number, value in enumerate(of.value):
            yield from _public(Property(f"{of.path}[{number}]", value))
    elif isinstance(of.value, str) and (
        of.value.rpartition(":")[2] in _EVERYONE or of.value in _PUBLIC_ACLS
    ):
        yield of


NO_PUBLIC_BUCKETS = ResourceRule(
    "no-public-buckets",
    "Buckets have uniform access, prevent public access, and are granted to nobody unknown.",
    {ALLOWED: allowed("buckets that may be public")},
    check=_check,
)
