"""What an instance's guest says: its serial port and its guest attributes."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid, not_found
from localcloud.services.compute.instances.records import INSTANCES, KIND
from localcloud.services.compute.links import shown, url_of
from localcloud.services.compute.resources import load

_PORTS = ("1", "2", "3", "4")


@INSTANCES.method("getSerialPortOutput")
def get_serial_port_output(cloud: Cloud, call: Call) -> Json:
    """Return the output of a serial port from byte `start` on; only port 1 is written to."""
    path = KIND.path(call)
    load(cloud, path)
    start = call.number("start") or 0
    port = call.arg("port", "1")
    if port not in _PORTS:
        raise invalid(f"Invalid value for field 'port': '{port}'. Must be one of 1 to 4.")
    if start < 0:
        raise invalid(f"Invalid value for field 'start': '{start}'. The local cloud keeps all.")
    text, end = cloud.machines.serial(path, start) if port == "1" else ("", start)
    return shown(
        call,
        {
            "kind": "compute#serialPortOutput",
            "selfLink": url_of(f"{path}/serialPort"),
            "contents": text,
            "start": str(start),
            "next": str(end),
        },
    )


def attributes(found: dict[str, str]) -> Json:
    """Return guest attributes, by `NAMESPACE/KEY`, as the APIs show them."""
    parts = [(*name.split("/"), value) for name, value in found.items()]
    named = [dict(zip(("namespace", "key", "value"), part, strict=True)) for part in parts]
    return {"items": named}


@INSTANCES.method("getGuestAttributes")
def get_guest_attributes(cloud: Cloud, call: Call) -> Json:
    """Return guest attributes: one by `variableKey`, or a namespace's by `queryPath`."""
    path = KIND.path(call)
    record = load(cloud, path)
    items = {i["key"]: i.get("value", "") for i in record["metadata"].get("items", [])}
    if items.get("enable-guest-attributes", "").upper() != "TRUE":
        raise ApiError(
            403,
            "Permission denied: the instance's metadata does not set enable-guest-attributes.",
        )
    found = cloud.machines.guest_attributes(path)
    answer: Json = {"kind": "compute#guestAttributes"}
    variable, query = call.arg("variableKey"), call.arg("queryPath")
    if variable:
        if variable not in found:
            raise not_found(f"{path}/guestAttributes/{variable}")
        answer |= {"variableKey": variable, "variableValue": found[variable]}
    else:
        chosen = {name: value for name, value in found.items() if name.startswith(query)}
        if not chosen:
            raise not_found(f"{path}/guestAttributes/{query}")
        answer |= {"queryPath": query, "queryValue": attributes(chosen)}
    answer["selfLink"] = url_of(f"{path}/guestAttributes/{variable or query}")
    return shown(call, answer)
