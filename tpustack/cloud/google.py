"""Google's APIs for the command line: tpu_core's client, with the caller's own access tokens.

Whether that is Google or the local cloud is said by the environment alone (HTTPS_PROXY and
SSL_CERT_FILE), as for every other client of Google's.
"""

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from tpu_core import google as core
from tpu_core.compute import COMPUTE, GROUPS, settles
from tpu_core.times import in_utc
from tpu_infra import credentials
from tpu_infra.names import Names, project_of
from tpustack.errors import TpustackError, UsageError

# It takes a while to load.
if TYPE_CHECKING:
    from tpu_infra.grants import On

_OBJECT = "https://storage.googleapis.com/storage/v1/b/{}/o/{}"
MANAGER = "https://cloudresourcemanager.googleapis.com/v1/projects/{}"
# Seconds for which a read is repeated. A write is sent once: it may have been carried out although
# its answer was lost, and a second custom job costs money.
_PATIENCE = 15.0
# Seconds after which a silent connection counts as lost.
_TIMEOUT = 60.0
# Of the 403 with which client-based APIs refuse a person's call without a quota project
# (golang/oauth2#702, 2024-02; docs.cloud.google.com/docs/quotas/quota-project).
_ASKS_FOR_ONE = b"requires a quota project"
_OF_PROJECT = re.compile(r"/projects/([^/]+)/")


class ApiError(TpustackError, core.GoogleError):
    """Google refuses a call or can't be reached; `status` is HTTP's, 0 without an answer."""


class NotFound(ApiError):
    """The API has no such resource."""

    def __init__(self, text: str) -> None:
        super().__init__(404, text)


class Forbidden(ApiError):
    """The caller may not, or the API is disabled."""

    def __init__(self, text: str) -> None:
        super().__init__(403, text)


def says_disabled(error: Forbidden) -> bool:
    """Return whether Google refuses since the API is off (its reason SERVICE_DISABLED)."""
    return "it is disabled" in str(error)


def why_unreadable(error: Forbidden, project: str, api: str, what: str, grant: str) -> str:
    """Return why an API that stacks do not need shows nothing of a project, and what helps.

    Args:
        error: Google's refusal.
        project: whose.
        api: such as `logging.googleapis.com`.
        what: is read, such as `logs`.
        grant: the role that lets people read it there, and its permission.
    """
    if says_disabled(error):
        cure = f"`gcloud services enable {api} --project {project}` enables it"
        return f"{api} is disabled in {project}: {cure}"
    return f"you may not read the {what} of {project}: ask for {grant}. Google's answer: {error}"


class AccountToken(core.Tokens):
    """Access tokens of who runs the command, by google-auth, in the provider's order.

    Args:
        given: what the environment says of credentials.
        session: what asks for tokens, a `requests.Session`.
    """

    def __init__(self, given: credentials.Given, session: Any = None) -> None:
        self._given, self._session = given, session
        self._account: Any = self._found()

    def _found(self) -> Any:
        # google-auth takes a while to load, for which only those who call Google should wait.
        from google.auth.exceptions import GoogleAuthError

        try:
            return credentials.account(self._given)
        except GoogleAuthError as error:
            raise TpustackError(f"no Google credentials: {error}") from None

    def __call__(self) -> str:
        """Return a token that is valid now. Raises TpustackError if Google gives none.

        Raises OSError if it can't be reached, so that a read is repeated.
        """
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request

        try:
            if not self._account.valid:
                self._account.refresh(Request(self._session))
        except TransportError as error:
            raise OSError(f"Google gives no access token: {error}") from None
        except GoogleAuthError as error:
            raise TpustackError(f"no Google credentials: {error}") from None
        return str(self._account.token)

    def expire(self) -> None:
        """Have the next call ask for another token.

        Raises TpustackError if there is no other: one that was handed over has no successor, and
        to repeat the call would only delay the message.
        """
        refused = self._account.token
        self._account = self._found()
        if refused and self._account.token == refused:
            raise TpustackError("Google refuses the access token: it has expired or been revoked")


def _transport() -> core.Send:
    """Return what sends requests with the caller's credentials, to Google's APIs alone."""
    import requests

    given = credentials.given({})
    # It keeps connections: a loop over a thousand objects makes a call for each.
    session = credentials.prepared(requests.Session())
    token = AccountToken(given, session)

    def wire(method: str, url: str, headers: dict[str, str], body: core.Body) -> core.Answer:
        answer = session.request(
            method, url, headers=headers, data=body, timeout=_TIMEOUT, allow_redirects=False
        )
        return answer.status_code, answer.headers, answer.content

    patient = core.Transport(token, _PATIENCE, wire=wire)
    once = core.Transport(token, wire=wire)

    def send(method: str, url: str, headers: dict[str, str], body: core.Body) -> core.Answer:
        def again() -> core.Answer:
            if body is not None and not isinstance(body, bytes):
                body.seek(0)
            return transport(method, url, headers, body)

        transport = patient if method == "GET" else once
        if given.quota_project:
            headers = {**headers, credentials.QUOTA_PROJECT: given.quota_project}
        answer = transport(method, url, headers, body)
        if answer[0] == 401 and transport is once:
            # It was not carried out, and the token is another by now.
            answer = again()
        project = _OF_PROJECT.search(url)
        if answer[0] == 403 and project and _ASKS_FOR_ONE in answer[2]:
            # To name it in each call would take `serviceusage.services.use` of everyone.
            headers = {**headers, credentials.QUOTA_PROJECT: project[1]}
            answer = again()
        return answer

    return send


class Google:
    """Calls to Google's REST APIs, whose refusals are TpustackErrors with Google's own message.

    Args:
        send: sends requests; by default with the caller's credentials.
    """

    def __init__(self, send: core.Send | None = None) -> None:
        self._send = send or _transport()

    def get(self, url: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Return the JSON at `url`."""
        return _json(url, self._ask("GET", url, parameters))

    def content(self, url: str) -> str:
        """Return the text of an object by its gs:// address."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        url = _OBJECT.format(quote(bucket), quote(name, safe=""))
        return self._ask("GET", url, {"alt": "media"}).decode(errors="replace")

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
            partial: whether a list is good enough that lacks the places Google can't reach.
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

    def post(
        self, url: str, body: object, parameters: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send JSON to `url` and return the answer."""
        return _json(url, self._ask("POST", url, parameters, body))

    def delete(self, url: str, parameters: Mapping[str, str] | None = None) -> None:
        """Start to delete the resource at `url`."""
        self._ask("DELETE", url, parameters)

    def exchange(
        self, method: str, url: str, headers: dict[str, str], body: core.Body
    ) -> core.Answer:
        """Send a request as it is and return the answer, also a refusal: a `Send` of tpu_core."""
        try:
            return self._send(method, url, headers, body)
        except core.GoogleError as error:
            raise ApiError(error.status, str(error)) from None
        except OSError as error:
            raise ApiError(0, f"{url} can't be reached: {error}") from None

    def _ask(
        self,
        method: str,
        url: str,
        parameters: Mapping[str, str | int] | None,
        body: object | None = None,
    ) -> bytes:
        query = f"?{urlencode(parameters)}" if parameters else ""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        status, _, content = self.exchange(method, url + query, headers, data)
        if status < 300:
            return content
        text = f"{url} answers {status}: {core.message(content)}"
        if status in (403, 404):
            raise (Forbidden if status == 403 else NotFound)(text)
        raise ApiError(status, text)


def _json(url: str, content: bytes) -> core.Json:
    answer = core.parse(content)
    if answer.get("garbage"):  # Such as the page of some proxy.
        raise ApiError(502, f"{url} answers something else than a JSON object")
    return answer


def require_project(project: str) -> None:
    """Raise UsageError if the caller can't see a project, before the engine fails at each resource.

    Where that can't be told, return.
    """
    try:
        Google().get(MANAGER.format(project))
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
_INSTANCES = f"{COMPUTE}/projects/{{}}/zones/{{}}/instances"
# What an instance with a TPU is, in the words of the TPU API; any other status is its end.
_STATES = {"RUNNING": "READY"} | dict.fromkeys(("PENDING", "PROVISIONING", "STAGING"), "CREATING")


def _as_node(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a machine of Compute Engine as the TPU API would say a TPU."""
    return {
        "name": instance["name"],
        "state": _STATES.get(instance["status"], "TERMINATED"),
        "acceleratorType": instance["machineType"].rpartition("/")[2],
        "createTime": in_utc(instance["creationTimestamp"]),
    }


class Nodes:
    """The TPUs of a project; each zone is listed once, when it is first asked for.

    With `compute` they are machines of Compute Engine.
    """

    def __init__(self, google: Google, project: str, *, compute: bool = False) -> None:
        listed = _listed_instances if compute else _listed
        self._of = functools.cache(functools.partial(listed, google, project))
        self._whole = functools.partial(_whole, google, project)
        self._waiting, self._compute = functools.partial(_waiting, google, project), compute

    def names(self, zone: str) -> Iterator[tuple[str, str]]:
        """Yield the name and type of each TPU in a zone, and of other machines with `compute`."""
        return ((name, node.get("acceleratorType", "")) for name, node in self._of(zone).items())

    def find(self, zones: Iterable[str], name: str) -> tuple[str, dict[str, Any]] | None:
        """Return the zone of a TPU, and the TPU, from the first of these zones that has it."""
        for zone in zones:
            if node := self._of(zone).get(name) or (self._compute and self._waiting(zone, name)):
                return zone, self._whole(zone, node)
        return None


def _listed(google: Google, project: str, zone: str) -> dict[str, dict[str, Any]]:
    with suppress(NotFound):
        nodes = google.pages(_NODES.format(project, zone), "nodes")
        return {node["name"].rpartition("/")[2]: node for node in nodes}
    return {}


def _listed_instances(google: Google, project: str, zone: str) -> dict[str, dict[str, Any]]:
    found = dict[str, dict[str, Any]]()
    for instance in google.pages(_INSTANCES.format(project, zone), "items"):
        node = _as_node(instance)
        found[instance["name"]] = node
        # A slice has the name of the group that made its machines, and the worst of their states.
        told = instance.get("metadata", {}).get("items", ())
        for group in (item["value"] for item in told if item["key"] == "created-by"):
            name = group.rpartition("/")[2]
            known = found.get(name, {**node, "machines": 0})
            worst = known if known["state"] != "READY" else node
            found[name] = {**worst, "name": name, "machines": known["machines"] + 1}
    return found


def _whole(google: Google, project: str, zone: str, node: dict[str, Any]) -> dict[str, Any]:
    """Return a TPU; a slice not as READY if Google lists fewer machines than it has to have."""
    if "machines" not in node or node["state"] != "READY":
        return node
    try:
        group = google.get(GROUPS.format(project, zone, node["name"]))
    except NotFound:
        return {**node, "state": "TERMINATED"}
    missing = int(group["targetSize"]) > node["machines"]
    return {**node, "state": "TERMINATED" if settles(group) else "CREATING"} if missing else node


def _waiting(google: Google, project: str, zone: str, name: str) -> dict[str, Any] | None:
    """Return a slice without machines, as its group waits for capacity for all, with the reason."""
    try:
        group = google.get(GROUPS.format(project, zone, name))
    except (NotFound, Forbidden):  # Who deploys single machines may not look at groups.
        return None
    if settles(group):
        return None
    check = group["status"].get("bulkInstanceOperation", {}).get("lastProgressCheck", {})
    errors = check.get("error", {}).get("errors", ())
    why = {"health": errors[0]["code"], "healthDescription": errors[0]["message"]} if errors else {}
    made = in_utc(group["creationTimestamp"])
    return {"name": name, "state": "CREATING", "createTime": made, **why}


_METRICS = (
    "https://serviceusage.googleapis.com/v1beta1/projects/{}/services/{}/consumerQuotaMetrics"
)


def quota_metrics(
    google: Google, project: str, api: str, name: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the metrics of an API's quotas; with a name only the one of this name."""
    for one in google.pages(_METRICS.format(project, api), "metrics", {"pageSize": 200}):
        if not name or one["metric"] == f"{api}/{name}":
            yield one


_UNLIMITED = -1


Place = Mapping[str, str]


def place_of(zone: str, **more: str) -> Place:
    """Return the dimensions of a quota in a zone."""
    return {"zone": zone, "region": zone.rpartition("-")[0], **more}


class Limit(NamedTuple):
    """How much of a metric a project may use, and where: the zone or its region."""

    height: float
    place: str

    def __str__(self) -> str:
        height = "unlimited" if self.height == math.inf else f"{self.height:g}"
        return f"{height} in {self.place}"


def limits_in(metrics: Iterable[dict[str, Any]], place: Place) -> dict[str, Limit]:
    """Return the lowest limit in a place of each metric."""
    found: dict[str, Limit] = {}
    for metric in metrics:
        name = metric["metric"].partition("/")[2]
        for entry in metric.get("consumerQuotaLimits", ()):
            if limit := _limit(entry.get("quotaBuckets", ()), place):
                found[name] = min(found.get(name, limit), limit)
    return found


def _limit(buckets: Iterable[dict[str, Any]], place: Place) -> Limit | None:
    fitting = [one for one in buckets if one.get("dimensions", {}).items() <= place.items()]
    if not fitting:
        return None
    # The most specific one comes last.
    height = int(fitting[-1].get("effectiveLimit", "0"))
    where = "region" if "region" in fitting[-1].get("dimensions", {}) else "zone"
    return Limit(math.inf if height == _UNLIMITED else height, place[where])


def others_in(
    google: Google, project: str, region: str, names: Names
) -> Iterator[tuple[str, bool]]:
    """Yield machine type, and whether it takes the quota of spot, of others' machines in a region.

    One that was stopped holds no quota.
    """
    for one in google.pages(f"{COMPUTE}/projects/{project}/aggregated/instances", "instances"):
        here = one["zone"].rpartition("/")[2].startswith(f"{region}-")
        if here and not names.is_of_tpu(one["name"]) and one["status"] != "TERMINATED":
            model = one.get("scheduling", {}).get("provisioningModel")
            yield one["machineType"].rpartition("/")[2], model in ("SPOT", "FLEX_START")


def look_up(google: Google, outputs: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Return the zone of a TPU, and the TPU, by the stack's outputs (infra/tpu_infra/program.py).

    Raises NotFound if it is in none of the zones.
    """
    if outputs.get("architecture") == "compute":
        zone = outputs["tpu_zone"]
        try:
            one = google.get(f"{_INSTANCES.format(outputs['project'], zone)}/{name}")
        except NotFound:
            found = Nodes(google, outputs["project"], compute=True).find([zone], name)
            if found is None:
                raise
            return found
        return zone, _as_node(one)
    # The last zone's NotFound goes to the caller, so that its message names an address.
    *first, last = zones_of(outputs)
    for zone in first:
        with suppress(NotFound):
            return zone, google.get(f"{_NODES.format(outputs['project'], zone)}/{name}")
    return last, google.get(f"{_NODES.format(outputs['project'], last)}/{name}")


def zones_of(outputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the zones that a stack's TPUs may be in, by its outputs."""
    return tuple(dict.fromkeys((outputs["tpu_zone"], *outputs.get("tpu_zones", ()))))


# --- What is granted, and what Vertex AI reaches

# How many permissions one call may name.
_MOST = 100


def granted(google: Google, url: str, names: Sequence[str]) -> set[str]:
    """Return which of the permissions the caller has on the resource at `url`."""
    found: set[str] = set()
    for first in range(0, len(names), _MOST):
        body = {"permissions": names[first : first + _MOST]}
        found.update(google.post(f"{url}:testIamPermissions", body).get("permissions", ()))
    return found


def roles_on(google: Google, on: "On", name: str) -> set[tuple[str, str, str]]:
    """Return each role on a resource with a member and the condition's expression."""
    from tpu_infra.grants import On

    if on is On.BUCKET:
        url = f"https://storage.googleapis.com/storage/v1/b/{quote(name)}/iam"
        policy = google.get(url, {"optionsRequestedPolicyVersion": 3})
    elif on is On.ACCOUNT:
        url = f"https://iam.googleapis.com/v1/projects/{project_of(name)}/serviceAccounts/{name}"
        policy = google.post(f"{url}:getIamPolicy", {}, {"options.requestedPolicyVersion": "3"})
    else:
        url = f"{MANAGER.format(name)}:getIamPolicy"
        policy = google.post(url, {"options": {"requestedPolicyVersion": 3}})
    return {
        (one["role"], member, one.get("condition", {}).get("expression", ""))
        for one in policy.get("bindings", ())
        for member in one.get("members", ())
    }


PEER = (
    "Reserve a range and connect it to servicenetworking.googleapis.com (docs/jobs.md#vertex-ai), "
    "or leave jobs.vertex.network out: jobs need it for private addresses alone"
)
_PEERING = "servicenetworking-googleapis-com"


def why_not_peered(google: Google, network: str) -> str:
    """Return why Vertex AI can't use `projects/NUMBER/global/networks/NAME`; empty if it can.

    It needs a peering with Google's services. A stack does not create it: Vertex AI has one network
    a region and project, other services have addresses of the same range, and Google refuses to
    delete it while any of them has. Source: "Set up VPC Network Peering",
    docs.cloud.google.com/vertex-ai/docs/general/vpc-peering.
    """
    try:
        found = google.get(f"{COMPUTE}/{network}", {"fields": "peerings(name,state)"})
    except NotFound:
        return f"there is no {network}"
    states = {one["name"]: one.get("state") for one in found.get("peerings", ())}
    if _PEERING not in states:
        return f"{network} has no peering {_PEERING}"
    if states[_PEERING] != "ACTIVE":
        return f"the peering {_PEERING} of {network} is {states[_PEERING]}, not ACTIVE"
    return ""
