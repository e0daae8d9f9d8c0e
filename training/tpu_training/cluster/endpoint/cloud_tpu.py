"""Read a TPU's state from the Cloud TPU API, for TPU VMs and TPU nodes.

API v2 knows TPU VMs; only v1 may know a classic TPU node.
Reference: https://cloud.google.com/tpu/docs/reference/rest
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import requests

from tpu_training.cluster.endpoint.credentials import TokenSource, authorization
from tpu_training.cluster.endpoint.target import DEFAULT_PORT
from tpu_training.errors import AccessError, EndpointError

_ROOT = "https://tpu.googleapis.com"
_TIMEOUT_SECONDS = 30.0
_VERSION = re.compile(r"(?:^|tf-)(\d+\.\d+(?:\.\d+)?)")
_NEVER_HEALS = "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


class NotYet(EndpointError):
    """The API may answer later: not found, 429, 5xx, connection lost."""


class NotThere(NotYet):
    """The zone has no such TPU."""


class DeniedForNow(AccessError):
    """A 403 that goes away once a new role or a newly enabled API has propagated."""


@dataclass(frozen=True)
class TpuName:
    """A TPU's full name. It may be in one of several zones, with commas between them."""

    project: str
    zone: str
    name: str

    @property
    def in_each_zone(self) -> tuple["TpuName", ...]:
        """The name in one zone after the other."""
        zones = self.zone.split(",")
        return tuple(TpuName(self.project, zone.strip(), self.name) for zone in zones)

    def __str__(self) -> str:
        """Return the resource's path in the API."""
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.name}"


@dataclass(frozen=True)
class Tpu:
    """A TPU as the API describes it. `addresses` are `host:port` in worker order."""

    state: str
    addresses: tuple[str, ...]
    health: str
    tensorflow: str | None

    @classmethod
    def from_api(cls, node: Mapping[str, Any]) -> "Tpu":
        """Read a v1 or v2 Node; `health` may be missing (tensorflow/tpu#590)."""
        version = _VERSION.search(node.get("tensorflowVersion") or node.get("runtimeVersion") or "")
        return cls(
            state=node.get("state", "STATE_UNSPECIFIED"),
            addresses=tuple(
                f"{endpoint['ipAddress']}:{endpoint.get('port') or DEFAULT_PORT}"
                for endpoint in node.get("networkEndpoints", ())
                if endpoint.get("ipAddress")
            ),
            health=node.get("health", ""),
            tensorflow=version[1] if version else None,
        )


class TpuReader(Protocol):
    """The part of the Cloud TPU API that a look-up needs."""

    def get(self, name: TpuName) -> Tpu:
        """Return the TPU; raise as CloudTpuApi.get does."""


class CloudTpuApi:
    """Reads TPUs with the caller's credentials."""

    def __init__(self, tokens: TokenSource) -> None:
        """Authorize each request with an access token from `tokens`."""
        self._tokens = tokens
        self._session = requests.Session()

    def get(self, name: TpuName) -> Tpu:
        """Return the TPU called `name`.

        Raises:
            NotYet, DeniedForNow: Asking again may help.
            AccessError, EndpointError: Asking again will not help.
        """
        for version in ("v2", "v1"):
            answer = self._request(f"{_ROOT}/{version}/{name}")
            if answer.status_code != HTTPStatus.NOT_FOUND:
                break
        if answer.ok:
            return Tpu.from_api(answer.json())
        raise _error_of(answer, name)

    def _request(self, url: str) -> requests.Response:
        headers = authorization(url, self._tokens)
        try:
            return self._session.get(url, headers=headers, timeout=_TIMEOUT_SECONDS)
        except requests.RequestException as error:
            raise NotYet(f"the Cloud TPU API does not answer ({error})") from error


def look_for(api: TpuReader, name: TpuName) -> Tpu:
    """Return the TPU in the first of its zones that has it; raises as CloudTpuApi.get does."""
    for one in name.in_each_zone:
        with contextlib.suppress(NotThere):
            return api.get(one)
    raise NotThere(_nowhere(name))


def _nowhere(name: TpuName) -> str:
    return f"there is no TPU {name.name} in zone {name.zone} of project {name.project}"


def _error_of(answer: requests.Response, name: TpuName) -> EndpointError | AccessError:
    """Translate an error answer into an error that names the cure."""
    status = answer.status_code
    message, reasons = _message_and_reasons(answer)
    if status == HTTPStatus.NOT_FOUND:
        return NotThere(_nowhere(name))
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return NotYet(f"the Cloud TPU API answers {status} ({message})")
    if status == HTTPStatus.UNAUTHORIZED:
        return AccessError(f"the Cloud TPU API refuses the credentials ({message})")
    if status == HTTPStatus.FORBIDDEN and _NEVER_HEALS in reasons:
        return AccessError(
            "the VM's access scopes do not cover the Cloud TPU API: stop the VM, give it the scope "
            "https://www.googleapis.com/auth/cloud-platform, and start it again"
        )
    if status == HTTPStatus.FORBIDDEN and "SERVICE_DISABLED" in reasons:
        return DeniedForNow(
            f"the Cloud TPU API is disabled in project {name.project}: run "
            f"`gcloud services enable tpu.googleapis.com --project={name.project}`"
        )
    if status == HTTPStatus.FORBIDDEN:
        return DeniedForNow(
            f"permission tpu.nodes.get on {name} denied ({message}): grant roles/tpu.viewer in "
            f"project {name.project} to the account that runs the training"
        )
    return EndpointError(f"the Cloud TPU API answers {status} for {name} ({message})")


def _message_and_reasons(answer: requests.Response) -> tuple[str, set[str]]:
    """Parse Google's error object; of any other body return the first line and no reasons."""
    try:
        error = answer.json()["error"]
        details = [*error.get("details", ()), *error.get("errors", ())]
        reasons = {detail.get("reason", "") for detail in details}
        if "insufficient authentication scopes" in error.get("message", ""):
            reasons.add(_NEVER_HEALS)
        return error.get("message", ""), reasons
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer.text.partition("\n")[0][:200], set()
