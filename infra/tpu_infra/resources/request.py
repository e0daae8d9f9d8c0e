"""A request in Google's queue for TPU VMs, as a Pulumi resource of this project's own.

The provider's `gcp.tpu.V2QueuedResource` has no field for capacity, deadline, account, metadata or
labels, ends before there is a TPU, and cannot delete a request whose TPU VM stands (it never sends
`force`). Two dynamic resources on the TPU API take its place: `QueuedRequest` is the request, made
and deleted as a whole; `QueuedNode` waits for its TPU VMs and knows their endpoints.

The state holds pickles of the two providers, which name this module (provider.py).
"""

import copy
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulumi
from pulumi import dynamic

from tpu_core import causes, contract, tpu
from tpu_core.google import Client, Json
from tpu_infra import credentials
from tpu_infra.rest import ATTEMPTS, Api, ApiError, say

Props = Mapping[str, Any]


class TpuApi(Api):
    """Calls `v2alpha1` of the TPU API; names are `projects/P/locations/Z/…`."""

    def __init__(
        self,
        client: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connects: int = ATTEMPTS,
    ) -> None:
        super().__init__(f"{tpu.TPU}v2alpha1/", "TPU", client, clock, sleep, connects)


class ApiResourceProvider(dynamic.ResourceProvider):
    """What the providers of this project's own resources have in common."""

    serialize_as_secret_always = False

    def configure(self, req: dynamic.ConfigureRequest) -> None:
        """Take the stack's configuration, with the credentials that Google's provider has."""
        found = {name: req.config.get(name) for name in credentials.SETTINGS}
        Api.configured = {name: str(value) for name, value in found.items() if value}


# --- The state of a request in the queue, and of the TPU VMs that it became


def parent_of(props: Props) -> str:
    """Return the parent of a request and its TPU VMs: where they are, as far as it is known."""
    return f"projects/{props['project']}/locations/{props.get('at') or props['zone']}"


def entry_name(props: Props) -> str:
    """Return the full name of a request where it is."""
    return f"{parent_of(props)}/queuedResources/{props['name']}"


def node_names(props: Props) -> list[str]:
    """Return the names of a request's TPU VMs in the order of the slices.

    `props` are those of the request, or of its TPU VMs (with `nodes`, if there are several).
    """
    if "request" not in props:
        return list(props.get("nodes") or [props["name"]])
    (spec,) = props["request"]["tpu"]["nodeSpec"]
    several = spec.get("multiNodeParams")
    if not several:
        return [props["name"]]
    # The engine knows no whole numbers.
    return [f"{several['nodeIdPrefix']}-{n}" for n in range(int(several["nodeCount"]))]


def standing(api: TpuApi, props: Props) -> list[Json | None]:
    """Return a request's TPU VMs in the order of the slices, in whatever state.

    One that is not there is None. Several cost one call, not one each.
    """
    wanted = node_names(props)
    if len(wanted) == 1:
        return [api.get(f"{parent_of(props)}/nodes/{wanted[0]}")]
    found = {tpu.short_name(node): node for node in api.list_all(parent_of(props), "nodes")}
    return [found.get(name) for name in wanted]


def is_gone(node: Json) -> bool:
    """Return whether Google has taken a TPU VM away; it stays in this state until it is deleted."""
    return tpu.phase_of(tpu.state_of(node)) == "lost"


def _is_over(state: str) -> bool:
    """Return whether Google will not fulfil a request; it holds its quota until it is deleted."""
    return tpu.phase_of_request(state) in ("leaving", "lost", "deleting")


def loss(api: TpuApi, props: Props, entry: Json) -> str:
    """Say why a request can no longer produce TPU VMs; empty if it did or still may."""
    state = entry.get("state", {})
    if _is_over(state.get("state")):
        reason = state.get("failedData", {}).get("error", {}).get("message", "")
        return f"{state['state']}{f': {reason}' if reason else ''}"
    return lost(props, standing(api, props)) if state.get("state") == "ACTIVE" else ""


def lost(props: Props, nodes: list[Json | None]) -> str:
    """Say what became of the first TPU VM of an ACTIVE request that is gone; empty if none is."""
    wanted = node_names(props)
    for name, node in zip(wanted, nodes, strict=True):
        if node is None or is_gone(node):
            which = f" {name}" if len(wanted) > 1 else ""
            return f"its TPU VM{which} is {node['state'] if node else 'gone'}"
    return ""


# --- The zones of a request: the stack's own first, then its fallback zones
#
# Its ID always names the first one: so the state stays the same when the agent moves it
# (agent/), and an older state still knows what to delete.


def zones_of(props: Props) -> list[str]:
    """Return all zones in the order in which they are tried."""
    return [props["zone"], *props.get("fallbackZones", ())]


def may_move(props: Props) -> bool:
    """Return whether the request may be in another zone than the first."""
    return len(zones_of(props)) > 1


def id_of(props: Props) -> str:
    """Return the ID, which names the first zone."""
    return f"projects/{props['project']}/locations/{props['zone']}/queuedResources/{props['name']}"


def locate(api: TpuApi, props: Props) -> tuple[Props, Json | None]:
    """Return the properties where the request is, and the request; None if it is nowhere.

    The zone where it was last is asked first. In a zone to which it may have moved, one of the same
    name counts only with this stack's mark; QueuedNode's properties have none.
    """
    if not may_move(props):
        return props, api.get(entry_name(props))
    mark = props.get("labels", {}).get(contract.MARK)
    for zone in dict.fromkeys((props.get("at") or props["zone"], *zones_of(props))):
        moved = {**props, "at": zone}
        entry = api.get(entry_name(moved))
        if entry and (mark is None or tpu.labels_of(entry).get(contract.MARK) == mark):
            return moved, entry
    return props, None


# --- The differences between the request in the queue and the one that the program declares


def identity_of(props: Props, key: str) -> Any:
    """Return what identifies a request, without what its TPU VM reads only at boot."""
    value = props.get(key)
    if key != "request" or value is None:
        return value
    specs = copy.deepcopy(value["tpu"]["nodeSpec"])
    for spec in specs:
        spec["node"].pop("tags", None)  # They change in place.
        metadata = spec["node"].get("metadata", {})
        for key in contract.NO_REASON_TO_RECREATE:
            metadata.pop(key, None)
    return {**value, "tpu": {"nodeSpec": specs}}


def is_the_same(props: Props, entry: Mapping[str, Any]) -> bool:
    """Return whether a request that is there is one that this stack would make.

    It has the stack's mark and all that is asked for; Google may add more.
    """
    mark, wanted = props["labels"].get(contract.MARK), identity_of(props, "request")
    if props.get("at"):
        wanted = tpu.in_zone(wanted, parent_of(props))
    marked = bool(mark) and tpu.labels_of(dict(entry)).get(contract.MARK) == mark
    return marked and _covers(entry, wanted)


def _covers(found: Any, wanted: Any) -> bool:
    if found is None and not wanted:
        return True  # Google leaves out what is false or empty.
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _covers(found.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        alike = isinstance(found, list) and len(found) == len(wanted)
        return alike and all(map(_covers, found, wanted))
    return bool(found == wanted)


# --- Put a request into the queue, in the first of its zones that has capacity
#
# It is in one zone at a time: it is gone from the one before when it is made in the next.

_OPERATION_MINUTES = 10.0
_DELETE_MINUTES = 30.0
_DELETE_PLAIN = "pulumi destroy --target-dependents --target '**:V2Vm::**'"


def submit(api: TpuApi, props: Props) -> Props:
    """Queue a request; return its properties where it is.

    In the last zone it stays, however long it waits.
    """
    if not may_move(props):
        _post(api, props)
        return props
    placed, entry = locate(api, props)
    if entry is not None:
        _take_over(api, placed, entry)
        return placed
    *first, last = ({**props, "at": zone} for zone in zones_of(props))
    for placed in first:
        why = _try(api, placed)
        if why is None:
            return placed
        say(f"{props['name']}: {why} in {placed['at']}; trying the next zone")
        remove_request(api, placed)
    _post(api, last)
    return last


def remove_request(api: TpuApi, props: Props) -> None:
    """Delete a request in any state along with its TPU VMs, in any zone, until it is gone."""

    def gone() -> bool:
        placed, entry = locate(api, props)
        if entry is None:
            return True
        if entry.get("state", {}).get("state") != "DELETING":
            try:
                api.call("DELETE", entry_name(placed), None, {"force": "true"})
            except ApiError as error:
                # Between two states Google refuses even this; it passes.
                passes = error.reason in ("FAILED_PRECONDITION", "ABORTED")
                if not passes and error.status != 404:
                    raise
            return locate(api, props)[1] is None
        return False

    minutes = float(props.get("deleteMinutes") or _DELETE_MINUTES)
    api.wait(gone, minutes, f"the deletion of {entry_name(props)}")


def body_of(props: Props) -> Json:
    """Return a request as the API takes it."""
    body: Json = {**props["request"]}
    (spec,) = body["tpu"]["nodeSpec"]
    spec = {**spec, "node": {**spec["node"], "labels": props["labels"]}}
    if several := spec.get("multiNodeParams"):
        spec["multiNodeParams"] = {**several, "nodeCount": int(several["nodeCount"])}
    body["tpu"] = {"nodeSpec": [spec]}
    if props["queueing"]:
        body["queueingPolicy"] = props["queueing"]
    return body


def _try(api: TpuApi, props: Props) -> str | None:
    """Queue a request in a zone; say why it gets nothing there, or None if it does."""
    try:
        _post(api, props)
    except _Short as error:
        return f"there is no capacity ({error})"
    state, minutes = "", props["zoneMinutes"]

    def decided() -> bool:
        nonlocal state
        state = str((api.get(entry_name(props)) or {}).get("state", {}).get("state"))
        return state in ("ACTIVE", "None") or _is_over(state)

    try:
        api.wait(decided, minutes, props["name"])
    except TimeoutError:
        # What is being made has found its capacity.
        if state != "PROVISIONING":
            return f"it is still {state} after {minutes:g} minutes"
    return f"it is {state}" if _is_over(state) else None


def _post(api: TpuApi, props: Props) -> None:
    """Queue a request. An existing one of this name belongs to another stack.

    Only the agent may have queued the same again, with this stack's mark, just before.
    """
    body = body_of(props)
    if may_move(props):
        body = tpu.in_zone(body, parent_of(props))
    # By this number Google knows a call that is repeated because its answer was lost.
    query = {"queuedResourceId": props["name"], "requestId": str(uuid.uuid4())}
    try:
        operation = api.call("POST", f"{parent_of(props)}/queuedResources", body, query)
        api.finish(operation, _OPERATION_MINUTES)
    except ApiError as error:
        if error.status != 409:
            raise _refused(error, props) from None
        if (entry := api.get(entry_name(props))) is None:
            raise RuntimeError(
                f"{props['name']} already exists as a TPU VM that isn't a queued resource. Delete "
                f"it (`{_DELETE_PLAIN}` if this stack created it) and run `pulumi up` again, or "
                "keep it with tpu.queued: {enabled: false}."
            ) from None
        _take_over(api, props, entry)


def _take_over(api: TpuApi, props: Props, entry: Json) -> None:
    """Take a request that is in the queue for this one. Raises RuntimeError unless it is."""
    if not is_the_same(props, entry) or loss(api, props, entry):
        raise RuntimeError(
            f"{entry_name(props)} already exists, but not in this stack's state. If a colleague's "
            "stack created it, set another `owner` or `namePrefix`. If an update of this stack "
            "was interrupted, run `tpustack recover`. If you don't need it, delete it: `gcloud "
            f"compute tpus queued-resources delete {props['name']} "
            f"--zone={parent_of(props).rpartition('/')[2]} --force`."
        ) from None
    say(f"{props['name']} is already queued: the agent queued it again")


class _Short(RuntimeError):
    """Google refuses a request because of capacity or quota."""


def _refused(error: ApiError, props: Props) -> RuntimeError:
    # An operation that failed has a code of its own.
    code = int(error.reason) if error.reason.isdigit() else error.status
    short = causes.cause_of(code, {"error": {"message": str(error)}}).name in causes.SHORTAGES
    kind = _Short if short else RuntimeError
    return kind(f"Google does not queue {props['name']}: {error}")


# --- A request in the queue, with the TPU VMs that it becomes

_IDENTITY = ("project", "zone", "name", "request")
_CHANGEABLE = ("queueing", "deleteMinutes", "fallbackZones", "zoneMinutes")
_UPDATE_MINUTES = 10.0


class QueuedRequestProvider(ApiResourceProvider):
    """Makes, changes and deletes requests. Everything goes through the TPU API."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        """Replace the request for another one, or if Google has given it up."""
        lost = _olds.get("loss") or _lost_by_now(_olds)
        replaces = [key for key in _IDENTITY if identity_of(_olds, key) != identity_of(_news, key)]
        if _olds.get("at", _olds["zone"]) not in zones_of(_news):
            replaces.append("fallbackZones")
        if lost:
            replaces.append("loss")
        changed = any(_olds.get(key) != _news.get(key) for key in _CHANGEABLE)
        changed |= _marks(_olds) != _marks(_news)
        if replaces:
            why = "another queued resource has replaced it"
            if lost:
                why = f"Google will not fulfill it ({lost})"
            say(f"{_olds['name']}: {why}. It loses its place in the queue")
        return dynamic.DiffResult(
            changes=bool(replaces) or changed, replaces=replaces, delete_before_replace=True
        )

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        """Queue a request, and return it where it is."""
        api = TpuApi()
        placed = submit(api, props)
        entry = api.get(entry_name(placed))
        if entry is None:
            raise RuntimeError(f"{entry_name(placed)} was queued and has since been deleted")
        outs = {**placed, "loss": loss(api, placed, entry)}
        return dynamic.CreateResult(id_of(props), outs)

    def read(self, id_: str, props: dict[str, Any]) -> dynamic.ReadResult:
        """Read what became of a request: it is gone, over, or as it should be."""
        api = TpuApi()
        placed, entry = locate(api, props)
        if entry is None:
            return dynamic.ReadResult("", {})
        # Those that the request asks for count until its TPU VMs stand.
        found = [tpu.labels_of(node) for node in standing(api, placed) if node]
        found = found or [tpu.labels_of(entry) or props["labels"]]
        # One TPU VM with other labels is enough to see that they were changed by hand.
        labels = next((seen for seen in found if seen != props["labels"]), props["labels"])
        outs = {**placed, "loss": loss(api, placed, entry), "labels": labels}
        return dynamic.ReadResult(id_, outs)

    def update(
        self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]
    ) -> dynamic.UpdateResult:
        """Change labels and tags in place. A new deadline counts for the next request."""
        api, marks = TpuApi(), _marks(_news)
        if _marks(_olds) != marks:
            placed, _ = locate(api, _olds)
            if not all(standing(api, placed)):
                raise RuntimeError(
                    f"{_news['name']} still waits for capacity, and Google can't change it until "
                    "then. Wait until it is READY, or revert the change."
                )
            nodes = [f"{parent_of(placed)}/nodes/{name}" for name in node_names(_news)]
            mask = {"updateMask": ",".join(marks)}
            for operation in [api.call("PATCH", node, marks, mask) for node in nodes]:
                api.finish(operation, _UPDATE_MINUTES)
        at = {"at": _olds.get("at", _olds["zone"])} if may_move(_news) else {}
        return dynamic.UpdateResult({**_news, "loss": _olds.get("loss", ""), **at})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Delete a request in any state along with its TPU VMs, and wait until all are gone."""
        api = TpuApi()
        say(f"deleting the queued resource {_props['name']} and its TPU VMs")
        remove_request(api, _props)


class QueuedRequest(dynamic.Resource, module="tpu", name="QueuedResource"):
    """A request for a TPU VM.

    `request` is the API's QueuedResource without labels, and `queueing` its policy.
    """

    at: pulumi.Output[str]
    """The zone that it is in, if it may be in several."""

    def __init__(self, name: str, props: Props, opts: pulumi.ResourceOptions | None = None) -> None:
        computed: Json = {"loss": None}
        if may_move(props):
            computed["at"] = None
        super().__init__(QueuedRequestProvider(), name, {**props, **computed}, opts)


def _lost_by_now(props: Props) -> str:
    """Say what has become of a request since the state was written; empty if looking fails."""
    try:
        api = TpuApi()
        placed, entry = locate(api, props)
        return "it was deleted" if entry is None else loss(api, placed, entry)
    except ApiError:
        return ""


def _marks(props: Props) -> Json:
    """Return the labels and the tags of a request's TPU VMs."""
    node = props["request"]["tpu"]["nodeSpec"][0]["node"]
    return {"labels": props.get("labels"), "tags": node.get("tags", [])}


# --- The TPU VMs that a request in the queue becomes.


class QueuedNodeProvider(ApiResourceProvider):
    """Waits for TPU VMs. The request creates and deletes them.

    `requested` is the ID of the request. It says no more than project, zone and name do, but only
    a preview that replaces the request does not know it.
    """

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        """Replace the TPU VMs for another request; the time to wait counts only once."""
        identity = ("project", "zone", "name", "nodes")
        replaces = [key for key in identity if _olds.get(key) != _news.get(key)]
        # In the update the engine has deleted the TPU VMs before the request, and asks nothing.
        if _news["requested"] != id_of(_news):
            replaces.append("requested")
        changed = any(_olds.get(key) != _news.get(key) for key in ("waitMinutes", "fallbackZones"))
        return dynamic.DiffResult(
            changes=bool(replaces) or changed, replaces=replaces, delete_before_replace=True
        )

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        """Wait until all TPU VMs are READY."""
        api = TpuApi()
        placed, _ = locate(api, props)
        ready = await_ready(api, placed)
        return dynamic.CreateResult(ready[0]["name"], {**placed, "endpoints": _endpoints(ready)})

    def read(self, id_: str, props: dict[str, Any]) -> dynamic.ReadResult:
        """Read the TPU VMs; there are none if Google has taken one away.

        The agent may have queued again (agent/): then they come from that request, and are no
        reason for others.
        """
        api = TpuApi()
        placed, entry = locate(api, props)
        found = standing(api, placed)
        if entry is None or lost(placed, found):
            return dynamic.ReadResult("", {})
        return dynamic.ReadResult(id_, {**placed, "endpoints": _endpoints(found)})

    def update(
        self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]
    ) -> dynamic.UpdateResult:
        """Note the new time to wait, and the zones."""
        at = {"at": _olds.get("at", _olds["zone"])} if may_move(_news) else {}
        return dynamic.UpdateResult({**_news, **at, "endpoints": _olds["endpoints"]})


class QueuedNode(dynamic.Resource, module="tpu", name="QueuedNode"):
    """The TPU VMs of one request, READY."""

    endpoints: pulumi.Output[list[Json]]
    """`{ipAddress, port}` of every worker, worker 0 of the first slice first, slice by slice; ports
    are texts, empty if unknown."""

    def __init__(self, name: str, props: Props, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(QueuedNodeProvider(), name, {**props, "endpoints": None}, opts)


def await_ready(api: TpuApi, props: Props) -> list[Json]:
    """Return the TPU VMs of a request, all READY, in the order of the slices.

    Raises RuntimeError if the request fails or the time is up, with the cure.
    """
    name, minutes = props["name"], props["waitMinutes"]
    last = ""
    ready: list[Json] = []

    def over() -> bool:
        nonlocal last, ready
        entry = api.get(entry_name(props))
        if entry is None:
            raise RuntimeError(f"the queued resource {name} no longer exists. Run `pulumi up`.")
        if lost := loss(api, props, entry):
            raise RuntimeError(
                f"the queued resource {name} gets no TPU: {lost}. Run `pulumi up` to queue again. "
                "If it fails again, use another zone, capacity or type."
            )
        state = str(entry.get("state", {}).get("state"))
        if state == "ACTIVE":
            ready = [node or {} for node in standing(api, props)]
            waited_for = [node.get("state") for node in ready if node.get("state") != "READY"]
            if not waited_for:
                return True
            many = f" and {len(waited_for) - 1} more" if len(waited_for) > 1 else ""
            state = f"ACTIVE, its TPU VM {waited_for[0]}{many}"
        if state != last:
            say(f"{name}: {state}; waiting for READY, at most {minutes:g} minutes")
            last = state
        return False

    try:
        api.wait(over, minutes, name)
    except TimeoutError:
        raise RuntimeError(
            f"{name} is still {last} after {minutes:g} minutes (tpu.queued.waitMinutes). It keeps "
            "its place in the queue: run `pulumi up` again to keep waiting, or `pulumi destroy`."
        ) from None
    return ready


def _endpoints(ready: Sequence[Json | None]) -> list[Json]:
    return [
        # The engine knows no whole numbers: 8470 would come back as 8470.0.
        {"ipAddress": worker["ipAddress"], "port": str(worker.get("port") or "")}
        for node in ready
        if node
        for worker in node.get("networkEndpoints", [])
    ]
