"""A small client for tests against the local cloud: JSON in, JSON out, the status checked."""

from typing import Any

import requests

from localcloud.app import LocalCloud
from localcloud.core.call import CLOUD_PLATFORM, Json, Principal
from localcloud.core.cloud import DEVELOPER


class UnexpectedStatus(AssertionError):
    """A call that was answered with another status than the test expects."""


class Session(requests.Session):
    """A session that can be called, too: for status, headers and content."""

    def __call__(self, method: str, url: str, headers: Any, body: Any) -> tuple[int, Any, bytes]:
        """Send a request."""
        answer = self.request(method, url, headers=headers, data=body, timeout=60)
        return answer.status_code, answer.headers, answer.content


def session(local_cloud: LocalCloud, member: str = DEVELOPER, *scopes: str) -> Session:
    """Return a session that reaches the local cloud as `member`; without a token if it is empty.

    A person's token is of an OAuth client of their own: no API asks for a quota project.
    """
    made = Session()
    made.trust_env = False
    made.proxies = {"https": f"http://127.0.0.1:{local_cloud.listener.port}"}
    made.verify = str(local_cloud.authority.certificate)
    if member:
        own = not member.startswith("serviceAccount:")
        principal = Principal(member, frozenset(scopes or {CLOUD_PLATFORM}), own_client=own)
        token = local_cloud.cloud.token(principal, lifetime=30 * 86400)
        made.headers["Authorization"] = f"Bearer {token}"
    return made


def machine(zone: str | None = None, **fields: Any) -> Json:
    """Return the plainest machine, as an instance of `zone` or, without one, for a template."""

    disk = {
        "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
        "diskSizeGb": "50",
        "diskType": f"zones/{zone}/diskTypes/pd-balanced" if zone else "pd-balanced",
    }
    return {
        "machineType": f"zones/{zone}/machineTypes/n1-standard-2" if zone else "n1-standard-2",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    } | fields


class Client:
    """Calls APIs as one member.

    Args:
        local_cloud: a started local cloud.
        member: such as `user:…`, `serviceAccount:…`; empty for an anonymous caller.
        scopes: of its token; `cloud-platform` when none is given.
    """

    def __init__(self, local_cloud: LocalCloud, member: str = DEVELOPER, *scopes: str) -> None:
        self.local_cloud = local_cloud
        self.session = session(local_cloud, member, *scopes)

    def as_member(self, member: str, *scopes: str) -> "Client":
        """Return a client of the same cloud for another member."""
        return Client(self.local_cloud, member, *scopes)

    def call(
        self, verb: str, url: str, body: Json | None = None, *, status: int = 200, **query: Any
    ) -> Json:
        """Return the JSON answer to a call.

        Args:
            verb: HTTP method.
            url: with or without `https://`.
            body: sent as JSON.
            status: the expected HTTP status.
            query: query parameters; a `_` before a name (for Python's own words) is dropped.

        Raises:
            UnexpectedStatus: when the answer has another status; with its body.
        """
        url = url if url.startswith("https://") else f"https://{url}"
        params = {name.removeprefix("_"): value for name, value in query.items()}
        response = self.session.request(verb, url, json=body, params=params, timeout=30)
        if response.status_code != status:
            raise UnexpectedStatus(
                f"{verb} {url}: {response.status_code} instead of {status}: {response.text}"
            )
        answer: Json = response.json() if response.content else {}
        return answer

    def get(self, url: str, *, status: int = 200, **query: Any) -> Json:
        """GET, see `call`."""
        return self.call("GET", url, status=status, **query)

    def post(self, url: str, body: Json | None = None, *, status: int = 200, **query: Any) -> Json:
        """POST, see `call`."""
        return self.call("POST", url, body, status=status, **query)

    def put(self, url: str, body: Json, *, status: int = 200, **query: Any) -> Json:
        """PUT, see `call`."""
        return self.call("PUT", url, body, status=status, **query)

    def patch(self, url: str, body: Json, *, status: int = 200, **query: Any) -> Json:
        """PATCH, see `call`."""
        return self.call("PATCH", url, body, status=status, **query)

    def delete(self, url: str, *, status: int = 200, **query: Any) -> Json:
        """DELETE, see `call`."""
        return self.call("DELETE", url, status=status, **query)
