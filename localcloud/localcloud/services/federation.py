"""Workload identity federation: pools, their OpenID Connect providers, exchange of tokens."""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from localcloud.core import Api, ApiError, Cloud, Collection, Record, access, invalid, projects
from localcloud.core.call import Call, Json, Principal, Response, camel
from localcloud.core.conditions import evaluate
from localcloud.core.errors import not_found
from localcloud.services.iam import API
from localcloud.services.kind import Kind, serve

POOL = "workload-identity-pool"
"""The store's kind of pools; the key is `projects/ID/locations/global/workloadIdentityPools/P`."""
PROVIDER = "workload-identity-provider"
"""The store's kind of providers; the key is the pool's with `/providers/NAME`."""

_PATH = "projects.locations.workloadIdentityPools"
_RIGHTS = "iam.googleapis.com/workloadIdentityPool"
_ID = re.compile(r"(?!gcp-)[a-z0-9-]{4,32}")
_OTHER_KINDS = ("aws", "saml", "x509")
# These issue tokens to everybody: a provider without a condition would admit the whole world.
_SHARED_ISSUERS = ("token.actions.githubusercontent.com", "gitlab.com", "app.terraform.io")
_KEPT = ("displayName", "description", "disabled")
_PROVIDER_KEPT = (*_KEPT, "oidc", "attributeMapping", "attributeCondition")
STS = Api("sts", ("v1",), gated=False)
ISSUERS = "oidc-issuers"
"""The setting that holds the keys of issuers whose own are only on the internet."""
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_SUBJECT_TYPES = [f"urn:ietf:params:oauth:token-type:{kind}" for kind in ("jwt", "id_token")]
_LIFETIME = 3600.0
_IAM = "//iam.googleapis.com/"
_LONGEST_SUBJECT = 127


def _place(call: Call) -> str:
    """Return the location in the path; 400 for another than `global`, where all pools are."""
    if call.params["locationsId"] != "global":
        raise invalid(f"Location {call.params['locationsId']} must be 'global'.")
    return f"projects/{call.project}/locations/global"


# A deleted pool or provider is shown for thirty days; so `get` finds it, and its ID stays taken.
_POOL = Kind(
    collection=Collection(API, _PATH, f"{_RIGHTS}s"),
    store=POOL,
    items="workloadIdentityPools",
    missing=lambda name: not_found(name).message,
    parent=_place,
    chosen=lambda call, record: record["state"] != "DELETED",
)
_PROVIDER = Kind(
    collection=Collection(API, f"{_PATH}.providers", f"{_RIGHTS}Providers"),
    store=PROVIDER,
    items="workloadIdentityPoolProviders",
    missing=lambda name: not_found(name).message,
    parent=_POOL.name,
    chosen=lambda call, record: record["state"] != "DELETED",
)
_POOLS, _PROVIDERS = _POOL.collection, _PROVIDER.collection
serve(_POOL, "get", "list")
serve(_PROVIDER, "get", "list")


@_POOLS.method("create")
def create_pool(cloud: Cloud, call: Call) -> Json:
    """Create a pool."""
    if call.body.get("mode", "FEDERATION_ONLY") != "FEDERATION_ONLY":
        raise ApiError(501, "the local cloud has pools of the mode FEDERATION_ONLY only")
    return _create(cloud, call, _POOL, call.arg("workloadIdentityPoolId"), _KEPT)


@_PROVIDERS.method("create")
def create_provider(cloud: Cloud, call: Call) -> Json:
    """Create a provider in a pool.

    What is checked is what would be refused at the first exchange otherwise, with a message that
    names neither mapping nor issuer.
    """
    _present(cloud, _POOL, call)
    _check_provider(call.body)
    short = call.arg("workloadIdentityPoolProviderId")
    return _create(cloud, call, _PROVIDER, short, _PROVIDER_KEPT)


@_POOLS.method("patch", verb="update")
@_PROVIDERS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is taken away."""
    kind = _kind(call)
    kept = _KEPT if kind is _POOL else _PROVIDER_KEPT
    with cloud.store.locked():
        record = _present(cloud, kind, call)
        for path in call.arg("updateMask").split(","):
            field = path.partition(".")[0]
            if field not in kept:
                raise invalid(f"updateMask: {path!r} is not one of {', '.join(kept)}.")
            record.pop(field, None)
            if call.body.get(field):
                record[field] = call.body[field]
        if kind is _PROVIDER:
            _check_provider(record)
        cloud.store.put(kind.store, kind.name(call), record)
    return _done(cloud, kind.name(call))


@_POOLS.method("delete")
@_PROVIDERS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete; its id stays taken.

    So a pool that a policy names cannot be recreated by another person under the same principals.
    """
    kind = _kind(call)
    with cloud.store.locked():
        gone = _present(cloud, kind, call) | {"state": "DELETED"}
        cloud.store.put(kind.store, kind.name(call), gone)
    return _done(cloud, kind.name(call))


@API.method(f"{_PATH}.operations.get", f"{_PATH}.providers.operations.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Return an operation by its name."""
    name = call.params["name"]
    cloud.operations.load(f"iam/{name}", not_found(name))
    return {"name": projects.numbered(name), "done": True}


def _kind(call: Call) -> Kind:
    return _PROVIDER if "providersId" in call.params else _POOL


def _create(cloud: Cloud, call: Call, kind: Kind, short: str, kept: Sequence[str]) -> Json:
    key = kind.prefix(call) + short
    if not _ID.fullmatch(short):
        raise invalid(
            f"The id {short!r} must have 4 to 32 lower-case letters, digits and hyphens, and not "
            "begin with gcp-."
        )
    record = {"name": projects.numbered(key), "state": "ACTIVE"}
    record |= {field: call.body[field] for field in kept if call.body.get(field)}
    # Taken also by a deleted one: its id is free again only after thirty days.
    cloud.store.add(kind.store, key, record, ApiError(409, "Requested entity already exists"))
    return _done(cloud, key)


def _check_provider(provider: Json) -> None:
    # First: a provider of another kind has no issuer, and would be refused for that.
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
    if issuer.netloc in _SHARED_ISSUERS and "assertion." not in condition:
        raise invalid("The attribute condition must reference one of the provider's claims.")


def _present(cloud: Cloud, kind: Kind, call: Call) -> Record:
    """Return the record of the one in the path; 404 also for a deleted one."""
    record = kind.load(cloud, call)
    if record["state"] == "DELETED":
        raise not_found(kind.name(call))
    return record


def _done(cloud: Cloud, key: str) -> Json:
    """Return an operation as Google begins it; it ends done, without a response."""
    name = f"{key}/operations/{cloud.operations.number():x}"
    cloud.operations.report(f"iam/{name}", {})
    return {"name": projects.numbered(name)}


@STS.raw("POST", "/v1/token", like="token", hosts=("sts.googleapis.com",), upload=True)
def token(cloud: Cloud, call: Call) -> Response:
    """Issue a federated token, which generateAccessToken takes for a service account's.

    Errors have the form of OAuth, not of Google's APIs (RFC 8693): a client library of OAuth reads
    `error` and `error_description`.
    """
    sent = _form(call)
    try:
        principal = _principal(cloud, sent)
    except BadToken as error:
        return _refused("invalid_grant", str(error))
    except ApiError as error:
        return _refused("invalid_request", error.message)
    answer = {
        "access_token": cloud.token(principal, lifetime=_LIFETIME),
        "issued_token_type": _ACCESS_TOKEN,
        "token_type": "Bearer",
        "expires_in": int(_LIFETIME),
    }
    return Response.of_json(answer)


def _principal(cloud: Cloud, sent: dict[str, str]) -> Principal:
    if sent.get("grant_type") != _EXCHANGE:
        raise ApiError(400, f"Invalid grant type: {sent.get('grant_type')}")
    if sent.get("subject_token_type") not in _SUBJECT_TYPES:
        raise ApiError(400, f"Invalid subject token type: {sent.get('subject_token_type')}")
    pool, provider = _provider(cloud, sent.get("audience", ""))
    claims = _verified(cloud, provider, sent.get("subject_token", ""))
    names = {"assertion": claims, **_mapped_attributes(provider, claims)}
    condition = provider.get("attributeCondition")
    if condition and evaluate(condition, names) is not True:
        raise BadToken("The given credential is rejected by the attribute condition.")
    access.require_service(cloud, pool.split("/")[1], "sts.googleapis.com")
    name = f"{_IAM}{projects.numbered(pool)}"
    # A policy may name all of a pool, those with an attribute, or those of a group.
    sets = {"*", *(f"attribute.{one}/{value}" for one, value in names["attribute"].items())}
    sets |= {f"group/{group}" for group in names["google"].get("groups", [])}
    scopes = frozenset(sent.get("scope", "").split())
    member = f"principal:{name}/subject/{names['google']['subject']}"
    return Principal(member, scopes, frozenset(f"principalSet:{name}/{one}" for one in sets))


def _provider(cloud: Cloud, audience: str) -> tuple[str, Json]:
    """Return the pool's key and the provider that an audience names.

    The audience is the provider's full name with the project's number. "You cannot use a disabled
    pool to exchange tokens": one message for all that is off, gone or never was.
    """
    parts = audience.removeprefix(_IAM).split("/")
    if not audience.startswith(_IAM) or len(parts) != 8:
        raise ApiError(400, f"Invalid value for audience: {audience}")
    parts[1] = projects.identifier(cloud, parts[1])
    key = "/".join(parts)
    pool = key.rpartition("/providers/")[0]
    found = cloud.store.get(POOL, pool), cloud.store.get(PROVIDER, key)
    for record in found:
        if record is None or record["state"] != "ACTIVE" or record.get("disabled"):
            raise BadToken("The target service indicated by the audience is invalid, or disabled.")
    return pool, found[1] or {}


def _verified(cloud: Cloud, provider: Json, subject_token: str) -> dict[str, Any]:
    # Keys come with the provider or by a setting: the local cloud fetches nothing from the
    # internet.
    oidc = provider["oidc"]
    issuers = cloud.setting(ISSUERS)
    known = json.loads(oidc["jwksJson"]) if oidc.get("jwksJson") else issuers.get(oidc["issuerUri"])
    if not known:
        raise BadToken(
            f"the local cloud has no keys of {oidc['issuerUri']}: give the provider jwksJson, or "
            f"set `{ISSUERS}`"
        )
    claims = token_claims(subject_token, known["keys"])
    if (issuer := claims.get("iss")) != oidc["issuerUri"]:
        raise BadToken(f"The issuer in ID Token {issuer} does not match the expected one.")
    if float(claims.get("exp", 0)) <= cloud.clock.now():
        raise BadToken("The ID Token is expired.")
    url = f"{_IAM}{provider['name']}"
    # "If this list is empty, the OIDC token audience must be equal to the full canonical resource
    # name of the WorkloadIdentityPoolProvider, with or without the HTTPS prefix."
    allowed = oidc.get("allowedAudiences") or [f"https:{url}", url]
    audiences = claims.get("aud") if isinstance(claims.get("aud"), list) else [claims.get("aud")]
    if not set(allowed).intersection(audiences or []):
        raise BadToken("The audience in ID Token does not match the expected audience.")
    return claims


def _mapped_attributes(provider: Json, claims: dict[str, Any]) -> dict[str, dict[str, Any]]:
    mapped: dict[str, dict[str, Any]] = {"google": {}, "attribute": {}}
    for target, expression in provider["attributeMapping"].items():
        kind, _, name = target.partition(".")
        mapped.setdefault(kind, {})[name] = evaluate(expression, {"assertion": claims})
    if len(str(mapped["google"]["subject"]).encode()) > _LONGEST_SUBJECT:
        # docs.cloud.google.com/iam/docs/troubleshooting-workload-identity-federation (2026-11-24)
        raise ApiError(
            400,
            f"The size of mapped attribute google.subject exceeds the {_LONGEST_SUBJECT} bytes "
            "limit. Either modify your attribute mapping or the incoming assertion to produce a "
            f"mapped attribute that is less than {_LONGEST_SUBJECT} bytes.",
        )
    return mapped


def _form(call: Call) -> dict[str, str]:
    """Return the fields, which clients send as a form or, in camel case, as JSON."""
    if "json" not in call.request.headers.get("Content-Type", ""):
        return call.request.form()
    names = ("grant_type", "audience", "scope", "subject_token", "subject_token_type")
    sent = json.loads(call.request.read())
    return {name: sent[camel(name)] for name in names if camel(name) in sent}


def _refused(error: str, description: str) -> Response:
    return Response.of_json({"error": error, "error_description": description}, 400)


class BadToken(Exception):
    """A token that is malformed or that none of the issuer's keys has signed."""


def token_claims(token: str, keys: list[Json]) -> dict[str, Any]:
    """Return what a token says, once its signature was checked.

    Args:
        token: three parts in base64, joined by dots.
        keys: of the issuer, as in a JSON Web Key Set (RFC 7517).

    Raises:
        BadToken: saying why.
    """
    try:
        head, payload, signature = token.split(".")
        header, claims = (json.loads(_decoded(part)) for part in (head, payload))
        signed = _decoded(signature)
    except ValueError:
        raise BadToken("it is no JSON Web Token") from None
    if header.get("alg") != "RS256":
        raise BadToken(f"its algorithm is {header.get('alg')}, not RS256")
    # A token without `kid` may be signed by any of the keys.
    for key in keys:
        if header.get("kid") in (None, key.get("kid")) and _signs(key, f"{head}.{payload}", signed):
            result: dict[str, Any] = claims
            return result
    raise BadToken("none of the issuer's keys has signed it")


def _signs(key: Json, text: str, signature: bytes) -> bool:
    # PKCS #1 v1.5 with SHA-256 is what RS256 means (RFC 7518, section 3.3).
    modulus, exponent = (int.from_bytes(_decoded(key[part]), "big") for part in ("n", "e"))
    try:
        public = rsa.RSAPublicNumbers(exponent, modulus).public_key()
        public.verify(signature, text.encode(), padding.PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
