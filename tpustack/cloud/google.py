"""Calls Google's APIs with the caller's credentials; the environment says whether real or local."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, Final, cast
from urllib.parse import quote

import requests
from google.auth.exceptions import GoogleAuthError
from urllib3.util import Retry

from infra import credentials
from infra.credentials import keep_to_google
from tpu_core.google import message
from tpustack.errors import TpustackError, UsageError

_OBJECT = "https://storage.googleapis.com/storage/v1/b/{}/o/{}"


class _Reads(Retry):
    """Retry reads, and anything that was never sent: the rest may have been carried out.

    urllib3 itself retries any method when TLS ends without a farewell, an "other" error to it.
    """

    def increment(self, method: str | None = None, *how: Any, **more: Any) -> Any:
        """Return what is left of the tries. Raises MaxRetryError if there are none."""
        left = self if method == "GET" else self.new(other=0)
        return super(_Reads, left).increment(method, *how, **more)


_RETRY = _Reads(
    total=5,
    backoff_factor=0.5,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("GET",),
    raise_on_status=False,
)


class NotFound(TpustackError):
    """The API has no such resource."""


class Forbidden(TpustackError):
    """The caller may not, or the API is disabled."""


def says_disabled(error: Forbidden) -> bool:
    """Return whether Google refuses since the API is off (its reason SERVICE_DISABLED)."""
    return "it is disabled" in str(error)


_KINDS: Final[Mapping[int, type[TpustackError]]] = {403: Forbidden, 404: NotFound}


class Google:
    """Requests to Google's REST APIs; reads are retried with backoff after transient errors.

    Tests pass a session of their own.
    """

    def __init__(self, session: requests.Session | None = None) -> None:
        self._session = session or _session()
        keep_to_google(self._session, _RETRY)

    def get(self, url: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Return the JSON at `url`.

        Raises:
            TpustackError: with the API's own message.
        """
        return cast("dict[str, Any]", self._ask("GET", url, parameters).json())

    def text(self, url: str, parameters: Mapping[str, str | int] | None = None) -> str:
        """Return the text at `url`, such as an object's content."""
        return cast(str, self._ask("GET", url, parameters).text)

    def content(self, url: str) -> str:
        """Return the text of an object by its gs:// address. Raises TpustackError."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return self.text(_OBJECT.format(quote(bucket), quote(name, safe="")), {"alt": "media"})

    def pages(
        self,
        url: str,
        field: str,
        parameters: Mapping[str, str | int] | None = None,
        *,
        partial: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yield the items in `field` of every page at `url`, of aggregated lists in every scope.

        Args:
            url: the list.
            field: its field with the items.
            parameters: of the query.
            partial: whether a list is good enough that lacks what Google does not reach.

        Raises:
            TpustackError: with the API's own message, or when Google can list a part only.
        """
        query = dict(parameters or {})
        while True:
            page = self.get(url, query)
            # What is missing then is not gone.
            if (places := page.get("unreachable")) and not partial:
                raise TpustackError(f"{url}: Google does not reach {', '.join(places)}")
            scopes = page.get("items")
            for part in scopes.values() if isinstance(scopes, dict) else (page,):
                yield from part.get(field, ())
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def ask(self, url: str, body: object) -> dict[str, Any]:
        """Send a question as JSON and return the answer. Raises TpustackError."""
        return cast("dict[str, Any]", self._ask("POST", url, None, body).json())

    def post(self, url: str, parameters: Mapping[str, str | int], body: object) -> None:
        """Send JSON to `url`. Raises TpustackError with the API's message."""
        self._ask("POST", url, parameters, body)

    def delete(self, url: str, parameters: Mapping[str, str | int] | None = None) -> None:
        """Start to delete the resource at `url`. Raises TpustackError with the API's message."""
        self._ask("DELETE", url, parameters)

    def exchange(
        self, verb: str, url: str, headers: Mapping[str, str], body: bytes | IO[bytes] | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request as it is; return status, headers and content, also of a refusal.

        Raises:
            TpustackError: without an answer.
        """
        try:
            response = self._session.request(verb, url, headers=headers, data=body, timeout=60)
        except (GoogleAuthError, requests.RequestException) as error:
            raise TpustackError(f"{url} can't be reached: {error}") from None
        return response.status_code, response.headers, response.content

    def _ask(
        self,
        verb: str,
        url: str,
        parameters: Mapping[str, str | int] | None,
        body: object | None = None,
    ) -> Any:
        try:
            response = self._session.request(verb, url, params=parameters, json=body, timeout=60)
        except (GoogleAuthError, requests.RequestException) as error:
            raise TpustackError(f"{url} can't be reached: {error}") from None
        if response.status_code >= 400:
            kind = _KINDS.get(response.status_code, TpustackError)
            raise kind(f"{url} answers {response.status_code}: {message(response.content)}")
        return response


def _session() -> requests.Session:
    try:
        return credentials.session(credentials.given({}))
    except GoogleAuthError as error:
        raise TpustackError(f"no Google credentials: {error}") from None


_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}"


def require_project(project: str) -> None:
    """Raise UsageError if the caller can't see a project, before the engine fails at each resource.

    Where that can't be told, return.
    """
    try:
        Google().get(_PROJECT.format(project))
    except (Forbidden, NotFound) as error:
        if isinstance(error, Forbidden) and says_disabled(error):
            return
        raise UsageError(
            f"gcp:project: {project} can't be reached: either there is no such project, or the "
            f"account that runs this may not see it (resourcemanager.projects.get). {error}. "
            "Nothing was created or changed."
        ) from None
    except TpustackError:
        return


# A stack's TPUs, in the zones that they may be in: the agent may have moved them.

_NODES = "https://tpu.googleapis.com/v2/projects/{}/locations/{}/nodes"


class Nodes:
    """The TPUs of a project; each zone is listed once, when it is first asked for."""

    def __init__(self, google: Google, project: str) -> None:
        self._of = functools.cache(functools.partial(_listed, google, project))

    def find(self, zones: Iterable[str], name: str) -> tuple[str, dict[str, Any]] | None:
        """Return the zone of a TPU, and the TPU, from the first of these zones that has it.

        Raises:
            TpustackError: when the caller may not look, with the API's own message.
        """
        nodes = ((zone, self._of(zone).get(name)) for zone in zones)
        return next(((zone, node) for zone, node in nodes if node), None)


def _listed(google: Google, project: str, zone: str) -> dict[str, dict[str, Any]]:
    with suppress(NotFound):
        nodes = google.pages(_NODES.format(project, zone), "nodes")
        return {node["name"].rpartition("/")[2]: node for node in nodes}
    return {}


def look_up(google: Google, outputs: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Return the zone of a TPU, and the TPU.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/program.py names them.
        name: the TPU's.

    Raises:
        NotFound: when it is in none of the zones.
        TpustackError: when the caller may not look, with the API's own message.
    """
    *first, last = zones_of(outputs)
    for zone in first:
        with suppress(NotFound):
            return zone, google.get(f"{_NODES.format(outputs['project'], zone)}/{name}")
    return last, google.get(f"{_NODES.format(outputs['project'], last)}/{name}")


def zones_of(outputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the zones that a stack's TPUs may be in, by its outputs."""
    return tuple(dict.fromkeys((outputs["tpu_zone"], *outputs.get("tpu_zones", ()))))


# Python 3.10 reads no fractions of nanoseconds, and no Z.
_FRACTION = re.compile(r"\.\d+")


def parse_time(text: str) -> datetime:
    """Parse a time with its zone, to the second. Raises ValueError."""
    return datetime.fromisoformat(_FRACTION.sub("", text).replace("Z", "+00:00"))
