"""The forms of a TPU: how each is looked up, deleted and created, and what its state means.

A plain TPU VM and a classic node are lost one by one. A request in the queue is lost as a whole,
with all its TPU VMs: Google gives all of them or none.
"""

import hashlib
import json
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_core import causes, compute, paths, records, times, tpu
from tpu_core.bucket import Bucket
from tpu_core.contract import MARK, Port
from tpu_core.google import Call, Json, is_missing, message

# The provider of the queue's resources asks by the same version
# (infra/tpu_infra/resources/request.py).
_QUEUE = "v2alpha1"
# By pulumi-gcp itself, unless addPulumiAttributionLabel is off; its value is always true.
_ADDED_LABELS = ("goog-pulumi-provisioned",)
_WORST_FIRST = {"lost": 0, "unknown": 1, "ready": 3}
# What the ledger calls a machine's phase, in the words of the TPU API.
_STATES = {"ready": "READY", "coming": "CREATING", "lost": "PREEMPTED"}
_ILL = ("UNHEALTHY_TENSORFLOW", "TIMEOUT")


def find_node(place: tpu.Place, call: Call, name: str) -> tpu.Seen | None:
    """Return a TPU that is no request in the queue; None if there is none. Raises OSError."""
    if place.form:
        return _find_on_compute(place, call, name)
    found = _get(call, f"v2/{place.node(name)}", name)
    if found is None:
        return None
    state = tpu.state_of(found)
    return tpu.Seen(
        phase=tpu.phase_of(state),
        state=state,
        kind="preemption",
        created=found.get("createTime"),
        labels=found.get("labels", {}),
        nodes=(found,),
        address=f"{tpu.TPU}{tpu.version(found)}/{place.node(name)}",
        zone=place.zone,
    )


def _find_on_compute(place: tpu.Place, call: Call, name: str) -> tpu.Seen | None:
    address = _address(place, name)
    found = _ask(call, address, None, name)
    if found is None:
        return None

    def ask(url: str, body: Json | None) -> Json:
        return _ask(call, url, body, name) or {}

    seen, about = found, str(found.get("status"))
    phase = compute.phase_of(about)
    if place.form == "slice":
        about = compute.lacking(ask, place.project, address, found)
        phase = "lost" if about else "ready" if compute.settles(found) else "coming"
        about = about or phase.upper()
        # A group has no labels; its template has those of its machines.
        seen = compute.template(ask, place.project, found)
    created = times.in_utc(found["creationTimestamp"])
    node = {"name": name, "state": _STATES.get(phase, phase.upper()), "createTime": created}
    return tpu.Seen(
        phase=phase,
        state=about,
        kind="preemption",
        created=created,
        labels=seen.get("labels", {}),
        nodes=(node,),
        address=address,
        zone=place.zone,
    )


def _address(place: tpu.Place, name: str) -> str:
    form = compute.GROUPS if place.form == "slice" else compute.INSTANCE
    return form.format(place.project, place.zone, name)


def find_request(place: tpu.Place, call: Call, name: str, tpus: Sequence[str]) -> tpu.Seen | None:
    """Return a queued resource; None if there is none. Raises OSError."""
    path = f"{_QUEUE}/{place.parent}/queuedResources/{name}"
    found = _get(call, path, name)
    if found is None:
        return None
    state, phase, kind = _state_of(found)
    nodes: tuple[Json, ...] = ()
    if phase == "ready":
        each = {one: _get(call, f"v2/{place.node(one)}", one) for one in tpus}
        nodes = tuple(node for node in each.values() if node)
        state, phase = _worst(state, each)
    return tpu.Seen(
        phase=phase,
        state=state,
        kind=kind,
        created=found.get("createTime"),
        labels=tpu.labels_of(found),
        nodes=nodes,
        address=f"{tpu.TPU}{path}?force=true",
        zone=place.zone,
    )


def creation(place: tpu.Place, name: str, body: Json, labels: Json) -> tuple[str, Json]:
    """Return the address and the body of the call that creates what is declared.

    Args:
        place: where.
        name: what it is called.
        body: as it is declared.
        labels: those of the one before. Google's provider adds its own, which only that one knew;
            no other counts.
    """
    if "tpu" in body:
        url = f"{tpu.TPU}{_QUEUE}/{place.parent}/queuedResources?queuedResourceId={name}"
        return url, tpu.in_zone(body, place.parent)
    added = {label: "true" for label in _ADDED_LABELS if label in labels}
    labelled = {**body, "labels": {**tpu.labels_of(body), **added}}
    if place.form:
        if place.form == "slice":
            # They are its template's: here they only tell whose it is.
            del labelled["labels"]
        return _address(place, name).rpartition("/")[0], labelled
    api = "v1" if "tensorflowVersion" in body else "v2"
    return f"{tpu.TPU}{api}/{place.parent}/nodes?nodeId={name}", labelled


def operation_address(place: tpu.Place, name: str) -> str:
    """Return the address of an operation, of whose name jobs can write all: only its end counts."""
    number = re.sub(r"[^\w-]", "", name.rpartition("/")[2])
    if place.form:
        where = f"projects/{place.project}/zones/{place.zone}"
        return f"{compute.COMPUTE}/{where}/operations/{number}"
    return f"{tpu.TPU}v2/{place.parent}/operations/{number}"


def as_of_tpus(operation: Json) -> Json:
    """Return an operation of Compute Engine as one of the TPU API; that API's own as it is."""
    if operation.get("status") != "DONE":
        return operation
    errors = operation.get("error", {}).get("errors", [])
    said = " ".join(f"{one.get('message')} ({one.get('code')})" for one in errors)
    error = {"code": operation.get("httpErrorStatusCode", 0), "message": said}
    return {"done": True, **({"error": error} if errors else {})}


def why_ill(seen: tpu.Seen, silent: Callable[[str, int], str | None]) -> str | None:
    """Return why a READY TPU does not work; its health may be missing (tensorflow/tpu#590).

    Args:
        seen: what is there.
        silent: why no gRPC server answers at (host, port); None if one does.
    """
    for node in seen.nodes:
        if node.get("health") in _ILL:
            return f"its health is {node['health']}"
        for worker in node.get("networkEndpoints", ()):
            host, port = worker.get("ipAddress"), int(worker.get("port") or Port.GRPC)
            if host and (why := silent(host, port)):
                return f"{host}:{port} does not answer ({why})"
    return None


def _state_of(found: Json) -> tuple[str, tpu.Phase, str]:
    """Return the state of a request, its phase, and what its loss counts as."""
    about = found.get("state") or {}
    state = tpu.state_of(about)
    failed = about.get("failedData", {}).get("error")
    shown = f"{state} ({message({'error': failed})})" if failed else state
    kind = "failure" if state == "FAILED" else "preemption"
    cause = causes.cause_of(failed.get("code", 0), {"error": failed}) if failed else None
    if cause and cause.name in causes.SHORTAGES:
        kind = "shortage"
    return shown, tpu.phase_of_request(state), kind


def _worst(state: str, tpus: dict[str, Json | None]) -> tuple[str, tpu.Phase]:
    """Return the state and the phase of an ACTIVE request by those of its TPU VMs."""
    # One that is gone while its request is ACTIVE: someone deleted it, or it is coming.
    phases = {
        name: tpu.phase_of(tpu.state_of(one)) if one else "coming" for name, one in tpus.items()
    }
    order = sorted(phases, key=lambda name: _WORST_FIRST.get(phases[name], 2))
    if not order or phases[order[0]] == "ready":
        return state, "ready"
    found = tpus[order[0]]
    shown = tpu.state_of(found) if found else "gone"
    return f"{state}, its TPU VM {order[0]} {shown}", phases[order[0]]


def _get(call: Call, path: str, name: str) -> dict[str, Any] | None:
    return _ask(call, tpu.TPU + path, None, name)


def _ask(call: Call, url: str, body: Json | None, name: str) -> dict[str, Any] | None:
    method, text = ("GET", None) if body is None else ("POST", json.dumps(body))
    status, found = call(method, url, text)
    if is_missing(status, found):
        return None
    if status != 200:
        raise OSError(f"HTTP status {status} for {name}: {causes.cause_of(status, found)}")
    return found


@dataclass(frozen=True)
class Declaration:
    """The body of the API's call that creates each TPU, or the request for all of them, by name."""

    tpus: dict[str, Json]

    def digest(self, name: str) -> str:
        """Return what changes with what is declared of a TPU."""
        text = json.dumps(self.tpus[name], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def owns(self, name: str, labels: Json) -> bool:
        """Return whether something with these labels is this stack's, by its mark."""
        mark = tpu.labels_of(self.tpus[name]).get(MARK)
        return bool(mark) and labels.get(MARK) == mark


def read_declaration(bucket: Bucket) -> Declaration | None:
    """Return what the stack declares; None if it is missing or damaged. Raises OSError."""
    content, _ = bucket.read_json(paths.DECLARATION)
    sound = content and content.get("format", records.FORMAT) == records.FORMAT
    tpus = content.get("tpus") if content and sound else None
    if not isinstance(tpus, dict) or not all(map(_is_sound, tpus.values())):
        return None
    return Declaration(tpus)


def _is_sound(body: object) -> bool:
    try:
        if not isinstance(body, dict):
            return False
        if "tpu" in body:
            tpu.in_zone(body, "")
        return isinstance(tpu.labels_of(body), dict)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


# RFC 9113, section 3.4: a client starts with this and a SETTINGS frame, and a server answers with
# its own SETTINGS.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_TIMEOUT_SECONDS = 3.0


def why_silent(host: str, port: int) -> str | None:
    """Return None if a gRPC server answers, else the reason: the API calls dead TPUs READY."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(_HELLO)
            return None if connection.recv(_FRAME_HEADER_BYTES) else "closes the connection"
    except TimeoutError:
        return f"no answer in {_TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
