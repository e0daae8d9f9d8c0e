"""Health checks, which really ask the machines, and the auto-healing of instance groups."""

import contextlib
import http.client
import socket
from functools import partial

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud, cloud_started
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute import group_actions
from localcloud.services.compute.api import API, STORE, path_from, wrong_value
from localcloud.services.compute.group_actions import COLLECTION, instance_path, note, save_group
from localcloud.services.compute.resources import Kind, load, replace, serve

# Defaults and limits are those of the discovery document.
_DEFAULTS: Json = {
    "checkIntervalSec": 5,
    "timeoutSec": 5,
    "unhealthyThreshold": 2,
    "healthyThreshold": 2,
}
# By type: the field of its settings, and its default port.
_SETTINGS = {"HTTP": ("httpHealthCheck", 80), "TCP": ("tcpHealthCheck", 80)}
_HIGHEST_PORT = 65535
_HIGHEST = {"checkIntervalSec": 300, "timeoutSec": 300}
_MOST_TRIES = 10


def _complete(record: Json) -> None:
    kind = record.get("type", "")
    if kind not in _SETTINGS:
        raise ApiError(501, f"the local cloud has health checks of type HTTP and TCP, not {kind!r}")
    field, port = _SETTINGS[kind]
    settings = {"port": port, "proxyHeader": "NONE"} | record.get(field, {})
    if kind == "HTTP":
        settings = {"requestPath": "/"} | settings
    if not 0 < settings["port"] <= _HIGHEST_PORT:
        raise wrong_value(f"resource.{field}.port", settings["port"])
    record[field] = settings
    for name, value in _DEFAULTS.items():
        record.setdefault(name, value)
        if not 1 <= record[name] <= _HIGHEST.get(name, _MOST_TRIES):
            why = f"Must be between 1 and {_HIGHEST.get(name, _MOST_TRIES)}."
            raise wrong_value(f"resource.{name}", record[name], why)
    # "It is invalid for timeoutSec to have greater value than checkIntervalSec."
    if record["timeoutSec"] > record["checkIntervalSec"]:
        why = f"Must not be greater than checkIntervalSec ({record['checkIntervalSec']})."
        raise wrong_value("resource.timeoutSec", record["timeoutSec"], why)


def _change(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    if before["type"] != after.get("type"):
        raise invalid("The type of a health check cannot be changed.")
    _complete(after)


HEALTH_CHECK = Kind(
    collection="healthChecks",
    parameter="healthCheck",
    scope="global",
    prepare=lambda cloud, call, path, record: _complete(record),
    change=_change,
    latency="network",
)
serve(HEALTH_CHECK)


@API.method("healthChecks.update", permission=HEALTH_CHECK.permission("update"))
def update_health_check(cloud: Cloud, call: Call) -> Json:
    """Replace all settings of a health check.

    The provider changes checks by PUT. The record keeps what identifies it.
    """
    path = HEALTH_CHECK.path(call)
    with cloud.store.locked():
        before = load(cloud, path)
        kept = ("id", "kind", "selfLink", "creationTimestamp", "name")
        after = call.body | {name: before[name] for name in kept}
        _change(cloud, call, before, after)
        return replace(cloud, call, HEALTH_CHECK, "update", path, after)


def healthy(cloud: Cloud, check: Json, machine: str) -> bool:
    """Return whether a machine answers a health check as it wants.

    The machine is asked where its port really is on this host, so no firewall rule stands in
    between: on Google the ranges of health checks must be let in.
    """
    settings = check[_SETTINGS[check["type"]][0]]
    address = cloud.machines.address(machine, settings["port"])
    if address is None:
        return False
    with contextlib.suppress(OSError, http.client.HTTPException):
        if check["type"] == "TCP":
            with socket.create_connection(address, check["timeoutSec"]):
                return True
        connection = http.client.HTTPConnection(*address, timeout=check["timeoutSec"])
        with contextlib.closing(connection):
            host = {"Host": settings["host"]} if settings.get("host") else {}
            connection.request("GET", settings["requestPath"], headers=host)
            return connection.getresponse().status == http.HTTPStatus.OK
    return False


# Auto-healing: a group recreates the instances that fail its health check.


def watch_group(cloud: Cloud, group: str) -> None:
    """Begin to check a group by its current policy; an earlier chain of checks ends.

    The number of the chain tells a round that was planned for an earlier policy that it is late.
    """
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is None:
            return
        record["_watch"] = record.get("_watch", 0) + 1
        save_group(cloud, group, record)
    _next(cloud, group, record)


@cloud_started
def _resume(cloud: Cloud) -> None:
    for path, _ in cloud.store.items(STORE, "projects/"):
        if f"/{COLLECTION}/" in path:
            watch_group(cloud, path)


def _next(cloud: Cloud, group: str, record: Record) -> None:
    check = _check(cloud, record)
    if check is not None:
        when = cloud.clock.now() + check["checkIntervalSec"]
        cloud.clock.at(when, partial(_round, cloud, group, record["_watch"]))


def _check(cloud: Cloud, record: Record) -> Record | None:
    policies = record.get("autoHealingPolicies", [])
    return cloud.store.get(STORE, path_from(policies[0]["healthCheck"])) if policies else None


def _round(cloud: Cloud, group: str, number: int) -> None:
    """Ask every instance of the group once.

    An instance that the group acts on is left out: it cannot answer yet.
    """
    record = cloud.store.get(STORE, group)
    if record is None or record.get("_deleting") or record["_watch"] != number:
        return
    check = _check(cloud, record)
    if check is None:
        return
    for name, known in record["_members"].items():
        if known["action"] == "NONE":
            _ask(cloud, group, record, check, name)
    _next(cloud, group, record)


def _ask(cloud: Cloud, group: str, record: Record, check: Record, name: str) -> None:
    known = record["_members"][name]
    answer = healthy(cloud, check, instance_path(group, name))
    found = "HEALTHY" if answer else "UNHEALTHY"
    streak = known["streak"] + 1 if found != known["health"] else 0
    # Only so many answers in a row change what is known: one lost packet makes nothing unhealthy.
    enough = check["healthyThreshold" if answer else "unhealthyThreshold"]
    if found != known["health"] and streak >= enough:
        known |= {"health": found, "streak": 0}
    else:
        known["streak"] = streak
    note(cloud, group, name, health=known["health"], streak=known["streak"])
    policy = record["autoHealingPolicies"][0]
    # "During a VM's initial delay period, the MIG ignores unsuccessful health checks because the VM
    # might be in the startup process."
    young = cloud.clock.now() < known["since"] + policy.get("initialDelaySec", 0)
    failing = known["health"] == "UNHEALTHY" and not young
    if failing and record["instanceLifecyclePolicy"]["onFailedHealthCheck"] != "DO_NOTHING":
        group_actions.act(cloud, group, name, "RECREATING")
