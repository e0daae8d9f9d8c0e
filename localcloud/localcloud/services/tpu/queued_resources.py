"""Queued resources: requests for TPU VMs that wait until there is room."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339, seconds_of
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.operations import Work, effect
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services.paging import page
from localcloud.services.tpu import capacity, checks, flex_start, nodes, operations, queue, vms
from localcloud.services.tpu.api import API, QUEUED, V2, load, place, zone_of
from localcloud.services.tpu.views import queued_view

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


@_QUEUED.method("create", versions=V2)
def create_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Queue a request for one or more TPU VMs."""
    short = call.arg("queuedResourceId")
    checks.require_name(short, "queuedResourceId")
    name = f"{place(call, cloud)}/queuedResources/{short}"
    if cloud.store.get(QUEUED, name) is not None:
        raise ApiError(409, f"Resource '{name}' already exists")
    wanted = _nodes(cloud, call, name)
    now = cloud.clock.now()
    after, until = _interval(call.body.get("queueingPolicy", {}), now)
    record: Record = {
        **call.sent(_KEPT),
        "name": name,
        "createTime": rfc3339(now),
        "state": {"state": "ACCEPTED", "acceptedData": {}, "stateInitiator": "SERVICE"},
        "_nodes": wanted,
        "_after": after,
        "_until": until,
        "_seconds": flex_start.seconds_of(call.body),
    }
    with cloud.store.locked():
        for node in wanted:
            nodes.require_new(cloud, node["name"])
        capacity.require_quota(cloud, call.project, zone_of(name), wanted)
        cloud.store.put(QUEUED, name, record)
    return _begin(cloud, call, "create", name, 0.0)


@effect("tpu.queued.create")
def _create(cloud: Cloud, name: str) -> Record | None:
    queue.step(cloud, name)
    return cloud.store.get(QUEUED, name)


@_QUEUED.method("get", versions=V2)
def get_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Describe a queued resource."""
    return queued_view(load(cloud, QUEUED, _name(call, cloud)), call.method.version)


@_QUEUED.method("list", versions=V2)
def list_queued_resources(cloud: Cloud, call: Call) -> Json:
    """List the queued resources of a zone, or of all zones for the location `-`."""
    everywhere = call.params["locationsId"] == "-"
    prefix = f"projects/{call.project}/locations/" if everywhere else f"{place(call)}/"
    records = [record for _, record in cloud.store.items(QUEUED, prefix)]
    shown = [queued_view(record, call.method.version) for record in records]
    return page(call, "queuedResources", shown)


@_QUEUED.method("delete", versions=V2)
def delete_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Delete a queued resource; one that is in use only with `force`, along with its nodes."""
    name = _name(call, cloud)
    with cloud.store.locked():
        record = load(cloud, QUEUED, name)
        state = queue.state_of(record)
        if state == "DELETING":
            raise failed_precondition(f"'{name}' is being deleted already")
        in_use = state not in queue.DELETABLE and queue.standing(cloud, record)
        if in_use and not call.flag("force"):
            raise failed_precondition(
                f"Cannot delete queued resource '{name}' while it is in state {state} and its "
                f"nodes exist ({', '.join(queue.standing(cloud, record))}). Delete the nodes "
                "first, or set force."
            )
        queue.set_state(cloud, name, "DELETING", initiator="USER")
    seconds = cloud.seconds("tpu.delete") if queue.standing(cloud, record) else 0.0
    return _begin(cloud, call, "delete", name, seconds)


@effect("tpu.queued.delete")
def _delete(cloud: Cloud, name: str) -> Record | None:
    record = cloud.store.get(QUEUED, name)
    if record is not None:
        queue.remove_nodes(cloud, record)
        cloud.store.delete(QUEUED, name)
    return record


@_QUEUED.method("reset", versions=V2)
def reset_queued_resource(cloud: Cloud, call: Call) -> Json:
    """Take a queued resource's nodes away and put it back into the queue."""
    name = _name(call, cloud)
    record = load(cloud, QUEUED, name)
    if queue.state_of(record) not in ("ACTIVE", "SUSPENDED", "FAILED"):
        state = queue.state_of(record)
        raise failed_precondition(f"Cannot reset queued resource '{name}' in state {state}")
    return _begin(cloud, call, "reset", name, cloud.seconds("tpu.delete"))


@effect("tpu.queued.reset")
def _reset(cloud: Cloud, name: str) -> Record | None:
    queue.set_state(cloud, name, "ACCEPTED", initiator="USER")
    queue.remove_nodes(cloud, load(cloud, QUEUED, name))
    queue.step(cloud, name)
    return cloud.store.get(QUEUED, name)


def _begin(cloud: Cloud, call: Call, verb: str, name: str, seconds: float) -> Json:
    work = Work(f"tpu.queued.{verb}", {"name": name}, seconds)
    return operations.start(cloud, call, work, verb=verb, target=name)


def _name(call: Call, cloud: Cloud) -> str:
    return f"{place(call, cloud)}/queuedResources/{call.params['queuedResourcesId']}"


def _nodes(cloud: Cloud, call: Call, name: str) -> list[Record]:
    specs = call.body.get("tpu", {}).get("nodeSpec", [])
    if not specs:
        raise invalid("tpu.node_spec must have at least one entry.")
    scheduling = _scheduling(call.body)
    for_a_while = flex_start.seconds_of(call.body)
    found: list[Record] = []
    for spec in specs:
        _require_parent(cloud, call, spec.get("parent", ""))
        body = spec.get("node", {})
        if scheduling:
            body = body | {"schedulingConfig": body.get("schedulingConfig", {}) | scheduling}
        names = _names(spec)
        record = vms.accepted(cloud, call, zone_of(name), body, len(names))
        record["queuedResource"] = name
        if for_a_while:
            flex_start.require_generation(record)
            record["_flexStart"] = True
        if len(names) > 1:
            record |= {"multisliceNode": True, "_slices": len(names)}
        found += [
            record | {"name": f"{place(call)}/nodes/{short}", "_slice": number}
            for number, short in enumerate(names)
        ]
    return found


def _require_parent(cloud: Cloud, call: Call, parent: str) -> None:
    if checks.by_id(cloud, parent) != place(call):
        raise invalid(
            f"Invalid node_spec.parent '{parent}': it must be the queued resource's own location, "
            f"'{place(call)}'."
        )


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


def _interval(policy: Json, now: float) -> tuple[float, float | None]:
    interval = policy.get("validInterval", {})
    after = _moment(policy.get("validAfterTime") or interval.get("startTime"))
    until = _moment(policy.get("validUntilTime") or interval.get("endTime"))
    if "validAfterDuration" in policy:
        after = now + _seconds(policy["validAfterDuration"])
    if "validUntilDuration" in policy:
        until = now + _seconds(policy["validUntilDuration"])
    if until is not None and until <= max(now, after or now):
        raise invalid("The queueing policy's interval ends before it begins, or is over already.")
    return after or now, until


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise invalid(f"Invalid duration '{text}': seconds with the suffix s, such as '3600s'.")
    return float(match.group(1))


def _moment(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return seconds_of(text)
    except ValueError:
        raise invalid(f"Invalid time '{text}': RFC 3339, such as 2026-01-31T12:00:00Z.") from None
