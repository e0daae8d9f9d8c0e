"""Workload identity pools and their OpenID Connect providers: whose tokens STS exchanges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid, not_found
from localcloud.core.registry import Collection
from localcloud.services.iam.api import API
from localcloud.services.paging import page

POOL = "workload-identity-pool"
"""The store's kind of pools; the key is `projects/ID/locations/global/workloadIdentityPools/P`."""
PROVIDER = "workload-identity-provider"
"""The store's kind of providers; the key is the pool's with `/providers/NAME`."""

_PATH = "projects.locations.workloadIdentityPools"
_RIGHTS = "iam.googleapis.com/workloadIdentityPool"
_POOLS = Collection(API, _PATH, f"{_RIGHTS}s")
_PROVIDERS = Collection(API, f"{_PATH}.providers", f"{_RIGHTS}Providers")
_ID = re.compile(r"(?!gcp-)[a-z0-9-]{4,32}")
_MAPPED = re.compile(r"google\.(subject|groups)|(?=.{1,100}$)attribute\.[a-z0-9_]+")
_LONGEST_EXPRESSION, _LONGEST_CONDITION = 2048, 4096
_OTHER_KINDS = ("aws", "saml", "x509")
# These issue tokens to everybody: a provider without a condition would admit the whole world.
_SHARED_ISSUERS = ("token.actions.githubusercontent.com", "gitlab.com", "app.terraform.io")
_KEPT = ("displayName", "description", "disabled")
_PROVIDER_KEPT = (*_KEPT, "oidc", "attributeMapping", "attributeCondition")


def key_of(call: Call) -> str:
    """Return the key of the pool or provider in the path.

    Raises:
        ApiError: 400 for a location other than `global`, where all pools are.
    """
    if call.params["locationsId"] != "global":
        raise invalid(f"Location {call.params['locationsId']} must be 'global'.")
    parts = [f"projects/{call.project}/locations/global/workloadIdentityPools"]
    if "workloadIdentityPoolsId" in call.params:
        parts.append(call.params["workloadIdentityPoolsId"])
    if "providersId" in call.params:
        parts += ["providers", call.params["providersId"]]
    return "/".join(parts)


@_POOLS.method("create")
def create_pool(cloud: Cloud, call: Call) -> Json:
    """Create a pool."""
    if call.body.get("mode", "FEDERATION_ONLY") != "FEDERATION_ONLY":
        raise ApiError(501, "the local cloud has pools of the mode FEDERATION_ONLY only")
    return _create(cloud, call, POOL, key_of(call), call.arg("workloadIdentityPoolId"), _KEPT)


@_PROVIDERS.method("create")
def create_provider(cloud: Cloud, call: Call) -> Json:
    """Create a provider in a pool."""
    pool = _require(cloud, POOL, key_of(call))
    _check_provider(call.body)
    short = call.arg("workloadIdentityPoolProviderId")
    return _create(cloud, call, PROVIDER, f"{pool}/providers", short, _PROVIDER_KEPT)


@_POOLS.method("get")
@_PROVIDERS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one pool or provider; a deleted one is shown for thirty days."""
    key = key_of(call)
    return cloud.store.load(_kind(call), key, not_found(key))


@_POOLS.method("list")
def list_pools(cloud: Cloud, call: Call) -> Json:
    """Return the pools of a project."""
    return page(call, "workloadIdentityPools", _listed(cloud, call, POOL, key_of(call)))


@_PROVIDERS.method("list")
def list_providers(cloud: Cloud, call: Call) -> Json:
    """Return the providers of a pool."""
    return page(call, "workloadIdentityPoolProviders", _listed(cloud, call, PROVIDER, key_of(call)))


@_POOLS.method("patch", verb="update")
@_PROVIDERS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is taken away."""
    kind = _kind(call)
    kept = _KEPT if kind == POOL else _PROVIDER_KEPT
    with cloud.store.locked():
        key = _require(cloud, kind, key_of(call))
        record = cloud.store.get(kind, key) or {}
        for path in call.arg("updateMask").split(","):
            field = path.partition(".")[0]
            if field not in kept:
                raise invalid(f"updateMask: {path!r} is none of {', '.join(kept)}.")
            record.pop(field, None)
            if call.body.get(field):
                record[field] = call.body[field]
        if kind == PROVIDER:
            _check_provider(record)
        cloud.store.put(kind, key, record)
    return _done(cloud, key)


@_POOLS.method("delete")
@_PROVIDERS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete; its id stays taken, and it can be brought back."""
    key = _require(cloud, _kind(call), key_of(call))
    return _moved(cloud, call, key, "DELETED")


@_POOLS.method("undelete")
@_PROVIDERS.method("undelete")
def undelete(cloud: Cloud, call: Call) -> Json:
    """Bring a deleted one back."""
    key = key_of(call)
    record = cloud.store.get(_kind(call), key)
    if record is None or record["state"] != "DELETED":
        raise ApiError(404, f"There is no deleted {key}.")
    return _moved(cloud, call, key, "ACTIVE")


@API.method(f"{_PATH}.operations.get", f"{_PATH}.providers.operations.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Return an operation by its name."""
    name = call.params["name"]
    cloud.operations.load(f"iam/{name}", not_found(name))
    return {"name": projects.numbered(name), "done": True}


def _kind(call: Call) -> str:
    return PROVIDER if "providersId" in call.params else POOL


def _create(
    cloud: Cloud, call: Call, kind: str, parent: str, short: str, kept: Sequence[str]
) -> Json:
    if not _ID.fullmatch(short):
        raise invalid(
            f"The id {short!r} must have 4 to 32 lower-case letters, digits and hyphens, and not "
            "begin with gcp-."
        )
    key = f"{parent}/{short}"
    record = {"name": projects.numbered(key), "state": "ACTIVE"}
    record |= {field: call.body[field] for field in kept if call.body.get(field)}
    # Taken also by a deleted one: its id is free again only after thirty days.
    cloud.store.add(kind, key, record, ApiError(409, "Requested entity already exists"))
    return _done(cloud, key)


def _check_provider(provider: Json) -> None:
    for kind in _OTHER_KINDS:
        if provider.get(kind):
            raise ApiError(501, f"the local cloud has OpenID Connect providers only, not {kind}")
    issuer = urlsplit((provider.get("oidc") or {}).get("issuerUri", ""))
    if issuer.scheme != "https" or not issuer.netloc:
        raise invalid("oidc.issuer_uri must be an https:// URL.")
    mapping = provider.get("attributeMapping") or {}
    if not mapping.get("google.subject"):
        raise invalid("The mapping must have google.subject.")
    condition = provider.get("attributeCondition") or ""
    # The sizes are the discovery document's, the words the local cloud's own.
    if max(map(len, mapping.values())) > _LONGEST_EXPRESSION or len(condition) > _LONGEST_CONDITION:
        raise invalid("A mapping's expression has at most 2048 characters, a condition 4096.")
    if not all(map(_MAPPED.fullmatch, mapping)):
        raise invalid("An attribute's name has at most 100 characters, of [a-z0-9_].")
    if issuer.netloc in _SHARED_ISSUERS and "assertion." not in condition:
        raise invalid("The attribute condition must reference one of the provider's claims.")


def _require(cloud: Cloud, kind: str, key: str) -> str:
    record = cloud.store.get(kind, key)
    if record is None or record["state"] == "DELETED":
        raise not_found(key)
    return key


def _listed(cloud: Cloud, call: Call, kind: str, parent: str) -> list[Json]:
    found = cloud.store.items(kind, f"{parent}/")
    return [one for _, one in found if call.flag("showDeleted") or one["state"] != "DELETED"]


def _moved(cloud: Cloud, call: Call, key: str, state: str) -> Json:
    with cloud.store.locked():
        record = (cloud.store.get(_kind(call), key) or {}) | {"state": state}
        cloud.store.put(_kind(call), key, record)
    return _done(cloud, key)


def _done(cloud: Cloud, key: str) -> Json:
    """Return an operation as Google begins it; it ends done, without a response."""
    name = f"{key}/operations/{cloud.operations.number():x}"
    cloud.operations.report(f"iam/{name}", {})
    return {"name": projects.numbered(name)}
