"""Health checks, and what one finds when it asks a machine of the local cloud."""

from __future__ import annotations

import contextlib
import http.client
import socket

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.compute.api import API
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.resources import load, replace, serve

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
_OK = 200


def _complete(record: Json) -> None:
    kind = record.get("type", "")
    if kind not in _SETTINGS:
        raise ApiError(501, f"the local cloud has health checks of type HTTP and TCP, not {kind!r}")
    field, port = _SETTINGS[kind]
    settings = {"port": port, "proxyHeader": "NONE"} | record.get(field, {})
    if kind == "HTTP":
        settings = {"requestPath": "/"} | settings
    if not 0 < settings["port"] <= _HIGHEST_PORT:
        raise invalid(f"Invalid value for field 'resource.{field}.port': '{settings['port']}'.")
    record[field] = settings
    for name, value in _DEFAULTS.items():
        record.setdefault(name, value)
        if not 1 <= record[name] <= _HIGHEST.get(name, _MOST_TRIES):
            raise invalid(
                f"Invalid value for field 'resource.{name}': '{record[name]}'. Must be between 1 "
                f"and {_HIGHEST.get(name, _MOST_TRIES)}."
            )
    if record["timeoutSec"] > record["checkIntervalSec"]:
        raise invalid(
            f"Invalid value for field 'resource.timeoutSec': '{record['timeoutSec']}'. Must not "
            f"be greater than checkIntervalSec ({record['checkIntervalSec']})."
        )


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    _complete(record)


def _change(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    if before["type"] != after.get("type"):
        raise invalid("The type of a health check cannot be changed.")
    _complete(after)


KIND = Kind(
    collection="healthChecks",
    parameter="healthCheck",
    scope="global",
    prepare=_prepare,
    change=_change,
    latency="network",
)
serve(KIND)


@API.method("healthChecks.update", permission=KIND.permission("update"))
def update_health_check(cloud: Cloud, call: Call) -> Json:
    """Replace all settings of a health check."""
    path = KIND.path(call)
    with cloud.store.locked():
        before = load(cloud, path)
        kept = ("id", "kind", "selfLink", "creationTimestamp", "name")
        after = call.body | {name: before[name] for name in kept}
        _change(cloud, call, before, after)
        return replace(cloud, call, KIND, "update", path, after)


def healthy(cloud: Cloud, check: Json, machine: str) -> bool:
    """Return whether a machine answers a health check as it wants."""
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
            return connection.getresponse().status == _OK
    return False
