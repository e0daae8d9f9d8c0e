"""Queued resources: requests for TPU VMs that wait until there is room.

Source of the states: cloud.google.com/tpu/docs/queued-resources. A request waits while the zone
has no room, until its time is up; once it is ACTIVE it never returns to the queue.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial

from localcloud.core import ApiError, Call, Cloud, Collection, Json, invalid, page, rfc3339
from localcloud.core.cloud import cloud_started
from localcloud.core.errors import failed_precondition
from localcloud.core.store import Record, Work, effect
from localcloud.services.tpu import api, catalog, checks, hosts, nodes
from localcloud.services.tpu.api import API, NODE, QUEUED, V2, load, place, queued_view, zone_of

_TIERS = ("spot", "guaranteed", "bestEffort")
_KEPT = ("tpu", *_TIERS, "queueingPolicy", "reservationName", "provisioningModel", "runDuration")
# Requests have no permissions of their own: those of nodes count. Sources: "IAM permissions" of the
# methods below docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources,
# docs.cloud.google.com/iam/docs/roles-permissions/tpu; 2026-11-24.
_QUEUED = Collection(API, "projects.locations.queuedResources", "tpu.nodes")
_RESERVATION = re.compile(
    r"projects/[^/]+/locations/[^/]+/reservations/[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")
WAITING = ("ACCEPTED", "WAITING_FOR_RESOURCES")
DELETABLE = (*WAITING, "FAILED", "SUSPENDED")
"""States in which a queued resource can be deleted although its nodes may stand."""
# Seconds between two checks for capacity.
_RETRY = {"none": 1.0, "real": 10.0}
# The field with a state's data, by state. Waiting ones stay ACCEPTED here, so that
# WAITING_FOR_RESOURCES has none.
_DATA = {
    state: f"{state.lower()}Data"
    for state in ("ACCEPTED", "PROVISIONING", "ACTIVE", "FAILED", "SUSPENDED", "DELETING")
}
_LONGEST = 7 * 24 * 3600.0


@_QUEUED.method("create", versions=V2)
def create_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Queue a request for one or more TPU VMs.

    What is wrong with a node is refused here, at once; only capacity is waited for. Quota counts
    from now on: a request in the queue holds its share.
    """
    short = call.arg("queuedResourceId")
    checks.require_name(short, "queuedResourceId")
    name = f"{place(call, cloud)}/queuedResources/{short}"
    if cloud.store.get(QUEUED, name) is not None:
        raise ApiError(409, f"Resource '{name}' already exists")
    wanted = _requested_nodes(cloud, call, name)
    now = cloud.clock.now()
    record: Record = {
        **call.sent(_KEPT),
        "name": name,
        "createTime": rfc3339(now),
        "state": {"state": "ACCEPTED", "acceptedData": {}, "stateInitiator": "SERVICE"},
        "_nodes": wanted,
        "_until": _deadline(call.body.get("queueingPolicy", {}), now),
        "_seconds": _run_seconds(call.body),
    }
    with cloud.store.locked():
        for node in wanted:
            nodes.require_new(cloud, node["name"])
        checks.require_quota(cloud, call.project, zone_of(name), wanted)
        cloud.store.put(QUEUED, name, record)
    return _begin(cloud, call, "create", name, 0.0)


@effect("tpu.queued.create")
def _create_queued(cloud: Cloud, name: str) -> Record | None:
    step(cloud, name)
    return cloud.store.get(QUEUED, name)


@_QUEUED.method("get", versions=V2)
def get_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Describe a queued resource."""
    return queued_view(load(cloud, QUEUED, _name(call, cloud)), call.method.version)


@_QUEUED.method("list", versions=V2)
def list_queued_resources(cloud: Cloud, call: Call) -> Json:
    """List the queued resources of a zone, or of all zones for the location `-`."""
    found = [queued_view(one, call.method.version) for one in api.listed(cloud, call, QUEUED)]
    return page(call, "queuedResources", found)


@_QUEUED.method("delete", versions=V2)
def delete_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Delete a queued resource; one that is in use only with `force`, along with its nodes.

    Google refuses while nodes exist, lest a slip take a TPU that trains.
    """
    name = _name(call, cloud)
    with cloud.store.locked():
        record = load(cloud, QUEUED, name)
        state, used = state_of(record), standing(cloud, record)
        if state == "DELETING":
            raise failed_precondition(f"'{name}' is being deleted already")
        if state not in DELETABLE and used and not call.flag("force"):
            raise failed_precondition(
                f"Cannot delete queued resource '{name}' while it is in state {state} and its "
                f"nodes exist ({', '.join(used)}). Delete the nodes first, or set force."
            )
        set_state(cloud, name, "DELETING", by="USER")
    seconds = cloud.seconds("tpu.delete") if used else 0.0
    return _begin(cloud, call, "delete", name, seconds)


@effect("tpu.queued.delete")
def _delete_queued(cloud: Cloud, name: str) -> Record | None:
    record = cloud.store.get(QUEUED, name)
    if record is not None:
        remove_nodes(cloud, record)
        cloud.store.delete(QUEUED, name)
    return record


def _begin(cloud: Cloud, call: Call, verb: str, name: str, seconds: float) -> Json:
    work = Work(f"tpu.queued.{verb}", {"name": name}, seconds)
    return api.start_operation(cloud, call, work, verb=verb, target=name)


def _name(call: Call, cloud: Cloud) -> str:
    return f"{place(call, cloud)}/queuedResources/{call.params['queuedResourcesId']}"


def _requested_nodes(cloud: Cloud, call: Call, name: str) -> list[Record]:
    specs = call.body.get("tpu", {}).get("nodeSpec", [])
    if not specs:
        raise invalid("tpu.node_spec must have at least one entry.")
    scheduling = _scheduling(call.body)
    for_a_while = _run_seconds(call.body)
    found: list[Record] = []
    for spec in specs:
        parent = spec.get("parent", "")
        if checks.by_id(cloud, parent) != place(call):
            raise invalid(
                f"Invalid node_spec.parent '{parent}': it must be the queued resource's own "
                f"location, '{place(call)}'."
            )
        body = spec.get("node", {})
        if scheduling:
            body = body | {"schedulingConfig": body.get("schedulingConfig", {}) | scheduling}
        names = _names(spec)
        record = nodes.accepted(cloud, call, zone_of(name), body, len(names))
        record["queuedResource"] = name
        if for_a_while:
            kind = record["acceleratorType"]
            # Google's words, in users' notes of 2026-08.
            if not catalog.accelerators()[kind].flex_start:
                raise invalid(
                    "FLEX_START provisioning model is not supported for accelerator type "
                    f'"{kind}" in location "{zone_of(name)}"'
                )
            record["_flexStart"] = True
        if len(names) > 1:
            record |= {"multisliceNode": True, "_slices": len(names)}
        found += [
            record | {"name": f"{place(call)}/nodes/{short}", "_slice": number}
            for number, short in enumerate(names)
        ]
    return found


# "It's an error to specify both node_id and multi_node_params" (the discovery document); v2 has the
# latter as multislice_params. The last name is the longest, so it alone is checked.
def _names(spec: Json) -> list[str]:
    several = spec.get("multiNodeParams") or spec.get("multisliceParams")
    if bool(several) == bool(spec.get("nodeId")):
        raise invalid("Each node_spec needs either node_id or multislice_params.")
    if not several:
        checks.require_name(spec["nodeId"], "node_id")
        return [spec["nodeId"]]
    prefix, count = several.get("nodeIdPrefix", ""), several.get("nodeCount", 0)
    if count < 2:
        raise invalid(f"Invalid node_count {count}: a multislice request is for two or more nodes.")
    checks.require_name(f"{prefix}-{count - 1}", "node_id_prefix")
    return [f"{prefix}-{index}" for index in range(count)]


def _scheduling(body: Json) -> Json:
    # The tiers of v2alpha1, and the provisioning model that replaced them.
    tiers = [tier for tier in _TIERS if tier in body]
    if len(tiers) > 1:
        raise invalid(f"Only one of {' and '.join(tiers)} may be set.")
    model = body.get("provisioningModel")
    if "spot" in body or model == "SPOT":
        return {"spot": True}
    if "bestEffort" in body:
        return {"preemptible": True}
    guaranteed = body.get("guaranteed", {})
    if "minDuration" in guaranteed:
        _seconds(guaranteed["minDuration"])
    reservation = body.get("reservationName", "")
    if reservation and not _RESERVATION.fullmatch(reservation):
        raise invalid(
            f"Invalid reservation_name '{reservation}': "
            "projects/{project}/locations/{zone}/reservations/{reservation}."
        )
    if model == "RESERVATION_BOUND" and not reservation:
        raise invalid("reservation_name is required with provisioning_model RESERVATION_BOUND.")
    return {"reserved": True} if guaranteed.get("reserved") or reservation else {}


def _deadline(policy: Json, now: float) -> float | None:
    """Return when a request stops waiting, by its policy's time or duration; None for never."""
    text = policy.get("validUntilTime")
    try:
        # Python 3.10 reads no `Z`.
        until = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None
    except ValueError:
        raise invalid(f"Invalid time '{text}': RFC 3339, such as 2026-01-31T12:00:00Z.") from None
    # The program sends a time; gcloud has a flag for a duration, too.
    if "validUntilDuration" in policy:
        until = now + _seconds(policy["validUntilDuration"])
    if until is not None and until <= now:
        raise invalid("The queueing policy's interval is over already.")
    return until


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise invalid(f"Invalid duration '{text}': seconds with the suffix s, such as '3600s'.")
    return float(match.group(1))


def set_state(
    cloud: Cloud, name: str, state: str, *, by: str = "SERVICE", error: ApiError | None = None
) -> None:
    """Store the state of a queued resource, unless it is gone; `by` is who has changed it."""
    with cloud.store.locked():
        record = cloud.store.get(QUEUED, name)
        if record is not None:
            data = {"error": error.rpc_status()} if error else {}
            record["state"] = {"state": state, _DATA[state]: data, "stateInitiator": by}
            cloud.store.put(QUEUED, name, record)


def state_of(record: Record) -> str:
    """Return the state's name."""
    return str(record["state"]["state"])


def step(cloud: Cloud, name: str) -> None:
    """Move a queued resource on: look for room, then provision.

    It looks every few seconds; the last look is at `validUntil`, when it fails.
    """
    record = cloud.store.get(QUEUED, name)
    if record is None or state_of(record) not in (*WAITING, "PROVISIONING"):
        return
    if state_of(record) in WAITING:
        now, until = cloud.clock.now(), record["_until"]
        if until is not None and now >= until:
            late = "The queued resource was not provisioned within its queueing policy's interval."
            set_state(cloud, name, "FAILED", error=ApiError(400, late, status="DEADLINE_EXCEEDED"))
            return
        if not _room(cloud, record):
            look = now + _RETRY[cloud.latency_profile]
            cloud.clock.at(min(look, until or look), partial(step, cloud, name))
            return
        set_state(cloud, name, "PROVISIONING")
    _later(cloud, "queue.provision", partial(_create_nodes, cloud, name))


@cloud_started
def resume(cloud: Cloud) -> None:
    """Resume requests that waited or were being provisioned when the emulator stopped.

    Their next step was an action of the clock, which a restart forgets; the state tells what it
    was.
    """
    for name, record in cloud.store.items(QUEUED):
        if state_of(record) in (*WAITING, "PROVISIONING"):
            cloud.clock.at(cloud.clock.now(), partial(step, cloud, name))


def remove_nodes(cloud: Cloud, record: Record) -> None:
    """Delete the nodes of a queued resource that still stand."""
    for node in record["_nodes"]:
        nodes.delete(cloud, node["name"])


def standing(cloud: Cloud, record: Record) -> list[str]:
    """Return the nodes of a queued resource that exist, whatever their state."""
    names = [node["name"] for node in record["_nodes"]]
    return [name for name in names if cloud.store.get(NODE, name) is not None]


# Nodes are stored first, all at once, and booted later: no other request may take their names or
# their share of the quota.
def _create_nodes(cloud: Cloud, name: str) -> None:
    with cloud.store.locked():
        record = cloud.store.get(QUEUED, name)
        if record is None or state_of(record) != "PROVISIONING":
            return
        for node in record["_nodes"]:
            if cloud.store.get(NODE, node["name"]) is None:
                cloud.store.put(NODE, node["name"], nodes.new(cloud, node["name"], node))
    _later(cloud, "tpu.create", partial(_activate, cloud, name))


def _activate(cloud: Cloud, name: str) -> None:
    record = cloud.store.get(QUEUED, name)
    if record is None or state_of(record) != "PROVISIONING":
        return
    names = [node["name"] for node in record["_nodes"]]
    with ThreadPoolExecutor(max_workers=min(len(names), 8)) as pool:
        failed = [error for error in pool.map(partial(_create_node, cloud), names) if error]
    with cloud.store.locked():
        current = cloud.store.get(QUEUED, name)
        if current is None or state_of(current) != "PROVISIONING":
            return
        if not failed:
            # First the end, then the state: a request that is ACTIVE must not lack its end if the
            # local cloud is stopped in between.
            if current["_seconds"] is not None:
                run = cloud.operations.number()
                cloud.store.put(QUEUED, name, current | {"_run": run})
                work = Work("tpu.queued.end", {"name": name, "run": run}, current["_seconds"])
                cloud.operations.start(f"tpu-internal/end/{name}/{run}", work)
            set_state(cloud, name, "ACTIVE")
            return
    # All slices or none: those that came up would cost money and train nothing.
    for node in standing(cloud, record):
        if (cloud.store.get(NODE, node) or {}).get("state") not in nodes.GONE:
            nodes.delete(cloud, node)
    set_state(cloud, name, "FAILED", error=failed[0])


@effect("tpu.queued.end")
def _end(cloud: Cloud, name: str, run: int) -> None:
    record = cloud.store.get(QUEUED, name)
    # Since then it may have been reset, or another request may have got the name.
    if record and record.get("_run") == run and state_of(record) == "ACTIVE":
        set_state(cloud, name, "SUSPENDED")
        remove_nodes(cloud, record)


def _create_node(cloud: Cloud, name: str) -> ApiError | None:
    # After a restart of the local cloud some may be READY already.
    if (cloud.store.get(NODE, name) or {}).get("state") == "READY":
        return None
    try:
        nodes.create(cloud, name)
    except ApiError as error:
        return error
    return None


# One slice is of no use without the others: Google ends them, too, and the request is SUSPENDED.
@nodes.preempted
def _preempted(cloud: Cloud, node: Record) -> None:
    record = cloud.store.get(QUEUED, node.get("queuedResource", ""))
    if record is None or state_of(record) not in ("ACTIVE", "PROVISIONING"):
        return
    set_state(cloud, record["name"], "SUSPENDED")
    for name in standing(cloud, record):
        other = cloud.store.get(NODE, name) or {}
        if name != node["name"] and other.get("state") == "READY":
            hosts.halt(cloud, other)
            nodes.set_state(cloud, name, "TERMINATED")


# A request without nodes asks for nothing any longer, but is there until it is deleted.
@nodes.deleted
def _node_deleted(cloud: Cloud, node: Record) -> None:
    record = cloud.store.get(QUEUED, node.get("queuedResource", ""))
    if record is not None and state_of(record) == "ACTIVE" and not standing(cloud, record):
        set_state(cloud, record["name"], "SUSPENDED", by="USER")


def _room(cloud: Cloud, record: Record) -> bool:
    zone = zone_of(record["name"])
    if not all(checks.in_stock(cloud, zone, node["acceleratorType"]) for node in record["_nodes"]):
        return False
    needed = sum(catalog.accelerators()[n["acceleratorType"]].hosts for n in record["_nodes"])
    return checks.free_hosts(cloud) >= needed


def _later(cloud: Cloud, what: str, action: partial[None]) -> None:
    seconds = cloud.seconds(what)
    if seconds:
        cloud.clock.at(cloud.clock.now() + seconds, action)
    else:
        action()


# Flex-start. Source: docs.cloud.google.com/tpu/docs/request-using-flex-start: at most 7 days, v5e
# and v6e, preemptible quota; when the time is over, Google deletes the TPU VMs and the queued
# resource becomes SUSPENDED.


def _run_seconds(request: Json) -> float | None:
    """Return how long a request's TPUs run at most; None for ever.

    Raises ApiError: 400 when it is no request for flex-start, or one without a right duration.
    """
    asked = request.get("runDuration", {}).get("maxRunDuration", "")
    if request.get("provisioningModel") != "FLEX_START":
        if asked:
            raise invalid("run_duration is only for provisioning_model FLEX_START.")
        return None
    if tiers := [tier for tier in _TIERS if tier in request]:
        raise invalid(f"provisioning_model FLEX_START and {tiers[0]} may not both be set.")
    match = _DURATION.fullmatch(asked)
    seconds = float(match[1]) if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise invalid(
            f"Invalid run_duration.max_run_duration '{asked}': FLEX_START takes more than 0s and "
            f"at most {_LONGEST:.0f}s."
        )
    return seconds
