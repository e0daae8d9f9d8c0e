"""Exchanges a pipeline's own token for one of Google's."""

from __future__ import annotations

import json
from typing import Any

from localcloud.core import access, projects
from localcloud.core.call import Call, Json, Response
from localcloud.core.cloud import Cloud
from localcloud.core.conditions import evaluate
from localcloud.core.errors import ApiError
from localcloud.core.registry import Api
from localcloud.core.tokens import Principal
from localcloud.services.iam import federation
from localcloud.services.sts.jwt import BadToken, claims

API = Api("sts", ("v1",), gated=False)
ISSUERS = "oidc-issuers"
"""The setting that holds the keys of issuers whose own are only on the internet."""
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_SUBJECT_TYPES = (
    "urn:ietf:params:oauth:token-type:jwt",
    "urn:ietf:params:oauth:token-type:id_token",
)
_LIFETIME = 3600.0
_IAM = "//iam.googleapis.com/"
_LONGEST_SUBJECT, _LARGEST_MAPPED = 127, 8 * 1024


@API.raw("POST", "/v1/token", like="token", hosts=("sts.googleapis.com",), upload=True)
def token(cloud: Cloud, call: Call) -> Response:
    """Issue a federated token, which generateAccessToken takes for a service account's."""
    sent = _form(call)
    try:
        principal = _principal(cloud, sent)
    except BadToken as error:
        return _refused("invalid_grant", str(error))
    except ApiError as error:
        return _refused("invalid_request", error.message)
    return Response.of_json(
        {
            "access_token": cloud.token(principal, lifetime=_LIFETIME),
            "issued_token_type": _ACCESS_TOKEN,
            "token_type": "Bearer",
            "expires_in": int(_LIFETIME),
        }
    )


def _principal(cloud: Cloud, sent: dict[str, str]) -> Principal:
    if sent.get("grant_type") != _EXCHANGE:
        raise ApiError(400, f"Invalid grant type: {sent.get('grant_type')}")
    if sent.get("subject_token_type") not in _SUBJECT_TYPES:
        raise ApiError(400, f"Invalid subject token type: {sent.get('subject_token_type')}")
    pool, provider = _provider(cloud, sent.get("audience", ""))
    said = _verified(cloud, provider, sent.get("subject_token", ""))
    names = {"assertion": said, **_mapped(provider, said)}
    condition = provider.get("attributeCondition")
    if condition and evaluate(condition, names) is not True:
        raise BadToken("The given credential is rejected by the attribute condition.")
    access.require_service(cloud, pool.split("/")[1], "sts.googleapis.com")
    name = f"{_IAM}{projects.numbered(pool)}"
    sets = {f"principalSet:{name}/*"}
    sets |= {
        f"principalSet:{name}/attribute.{attribute}/{value}"
        for attribute, value in names["attribute"].items()
    }
    groups = names["google"].get("groups", [])
    sets |= {f"principalSet:{name}/group/{group}" for group in groups}
    scopes = frozenset(sent.get("scope", "").split())
    member = f"principal:{name}/subject/{names['google']['subject']}"
    return Principal(member, scopes, frozenset(sets))


def _provider(cloud: Cloud, audience: str) -> tuple[str, Json]:
    """Return the pool's key and the provider that an audience names."""
    parts = audience.removeprefix(_IAM).split("/")
    if not audience.startswith(_IAM) or len(parts) != 8:
        raise ApiError(400, f"Invalid value for audience: {audience}")
    parts[1] = projects.identifier(cloud, parts[1])
    key = "/".join(parts)
    pool = key.rpartition("/providers/")[0]
    found = cloud.store.get(federation.POOL, pool), cloud.store.get(federation.PROVIDER, key)
    for record in found:
        if record is None or record["state"] != "ACTIVE" or record.get("disabled"):
            raise BadToken("The target service indicated by the audience is invalid, or disabled.")
    return pool, found[1] or {}


def _verified(cloud: Cloud, provider: Json, subject_token: str) -> dict[str, Any]:
    oidc = provider["oidc"]
    issuers = cloud.setting(ISSUERS)
    known = json.loads(oidc["jwksJson"]) if oidc.get("jwksJson") else issuers.get(oidc["issuerUri"])
    if not known:
        raise BadToken(
            f"the local cloud has no keys of {oidc['issuerUri']}: give the provider jwksJson, or "
            f"set `{ISSUERS}`"
        )
    said = claims(subject_token, known["keys"])
    if said.get("iss") != oidc["issuerUri"]:
        raise BadToken(f"The issuer in ID Token {said.get('iss')} does not match the expected one.")
    if float(said.get("exp", 0)) <= cloud.clock.now():
        raise BadToken("The ID Token is expired.")
    url = f"{_IAM}{provider['name']}"
    allowed = oidc.get("allowedAudiences") or [f"https:{url}", url]
    heard = said.get("aud") if isinstance(said.get("aud"), list) else [said.get("aud")]
    if not set(allowed).intersection(heard or []):
        raise BadToken("The audience in ID Token does not match the expected audience.")
    return said


def _mapped(provider: Json, said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    mapped: dict[str, dict[str, Any]] = {"google": {}, "attribute": {}}
    for target, expression in provider["attributeMapping"].items():
        kind, _, name = target.partition(".")
        mapped.setdefault(kind, {})[name] = evaluate(expression, {"assertion": said})
    _require_sizes(mapped)
    return mapped


def _require_sizes(mapped: dict[str, dict[str, Any]]) -> None:
    """Refuse what is larger than the discovery document allows (`attributeMapping`)."""
    values = [str(value) for attributes in mapped.values() for value in attributes.values()]
    if len("".join(values).encode()) > _LARGEST_MAPPED:
        raise ApiError(400, "The size of the entire mapped attributes exceeds the 8 KB limit.")
    if len(str(mapped["google"]["subject"]).encode()) > _LONGEST_SUBJECT:
        # docs.cloud.google.com/iam/docs/troubleshooting-workload-identity-federation (2026-11-24)
        raise ApiError(
            400,
            f"The size of mapped attribute google.subject exceeds the {_LONGEST_SUBJECT} bytes "
            "limit. Either modify your attribute mapping or the incoming assertion to produce a "
            f"mapped attribute that is less than {_LONGEST_SUBJECT} bytes.",
        )


def _form(call: Call) -> dict[str, str]:
    """Return the fields, which clients send as a form or, in camel case, as JSON."""
    if "json" not in call.request.headers.get("Content-Type", ""):
        return call.request.form()
    fields = ("grantType", "audience", "scope", "subjectToken", "subjectTokenType")
    snake = ("grant_type", "audience", "scope", "subject_token", "subject_token_type")
    sent = json.loads(call.request.read())
    return {name: sent[field] for name, field in zip(snake, fields, strict=True) if field in sent}


def _refused(error: str, description: str) -> Response:
    return Response.of_json({"error": error, "error_description": description}, 400)
