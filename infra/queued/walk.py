"""Put a request into the queue, in the first of its zones that has capacity.

It is in one zone at a time: it is gone from the one before when it is made in the next.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from infra.queued.api import TpuApi
from infra.queued.changes import is_the_same
from infra.queued.state import OVER, entry_name, loss, place
from infra.queued.zones import Props, locate, may_move, zones_of
from infra.rest import ApiError, Json, say
from tpu_core.causes import SHORTAGES, cause_of
from tpu_core.tpu import in_zone

_OPERATION_MINUTES = 10.0
_DELETE_MINUTES = 30.0
_DELETE_PLAIN = "pulumi destroy --target-dependents --target '**:V2Vm::**'"


def queue(api: TpuApi, props: Props) -> Props:
    """Queue a request; return its properties where it is.

    In the last zone it stays, however long it waits.
    """
    if not may_move(props):
        _post(api, props)
        return props
    there, entry = locate(api, props)
    if entry is not None:
        _take_over(api, there, entry)
        return there
    *first, last = ({**props, "at": zone} for zone in zones_of(props))
    for there in first:
        why = _try(api, there)
        if why is None:
            return there
        say(f"{props['name']}: {why} in {there['at']}; the next zone is tried")
        remove(api, there)
    _post(api, last)
    return last


def remove(api: TpuApi, props: Props) -> None:
    """Delete a request in any state along with its TPU VMs, in whatever zone, until it is gone."""

    def gone() -> bool:
        there, entry = locate(api, props)
        if entry is None:
            return True
        if entry.get("state", {}).get("state") != "DELETING":
            try:
                api.delete(entry_name(there), {"force": "true"})
            except ApiError as error:
                # Between two states Google refuses even this; it passes.
                if error.reason not in ("FAILED_PRECONDITION", "ABORTED"):
                    raise
            return locate(api, props)[1] is None
        return False

    minutes = float(props.get("deleteMinutes") or _DELETE_MINUTES)
    api.wait(gone, minutes, f"the deletion of {entry_name(props)}")


def body_of(props: Mapping[str, Any]) -> Json:
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
        return f"there is none ({error})"
    state, minutes = "", props["zoneMinutes"]

    def decided() -> bool:
        nonlocal state
        state = str((api.get(entry_name(props)) or {}).get("state", {}).get("state"))
        return state in ("ACTIVE", "None", *OVER)

    try:
        api.wait(decided, minutes, props["name"])
    except TimeoutError:
        # What is being made has found its capacity.
        if state != "PROVISIONING":
            return f"it is still {state} after {minutes:g} minutes"
    return f"it is {state}" if state in OVER else None


def _post(api: TpuApi, props: Props) -> None:
    """Queue a request. One of this name that is there already is somebody else's.

    Only the agent may have queued the same again, with this stack's mark, just before.
    """
    body = body_of(props)
    body = in_zone(body, place(props)) if may_move(props) else body
    # By this number Google knows a call that is repeated because its answer was lost.
    query = {"queuedResourceId": props["name"], "requestId": str(uuid.uuid4())}
    try:
        operation = api.post(f"{place(props)}/queuedResources", body, query)
        api.finish(operation, _OPERATION_MINUTES)
    except ApiError as error:
        there = api.get(entry_name(props)) if error.status == 409 else None
        if there is not None:
            _take_over(api, props, there)
        elif error.status == 409:
            raise _plain(props) from None
        else:
            raise _refused(error, props) from None


def _take_over(api: TpuApi, props: Props, there: Json) -> None:
    if not is_the_same(props, there) or loss(api, props, there):
        raise _exists(props) from None
    say(f"{props['name']} is in the queue already: the agent has queued it again")


class _Short(RuntimeError):
    """Google refuses a request for want of capacity or quota."""


def _refused(error: ApiError, props: Props) -> RuntimeError:
    # An operation that failed has a code of its own.
    code = int(error.reason) if error.reason.isdigit() else error.status
    short = cause_of(code, {"error": {"message": str(error)}}).name in SHORTAGES
    kind = _Short if short else RuntimeError
    return kind(f"Google does not queue {props['name']}: {error}")


def _plain(props: Props) -> RuntimeError:
    return RuntimeError(
        f"{props['name']} exists already as a TPU VM that does not come from the queue. "
        f"Delete it (`{_DELETE_PLAIN}` if this stack has made it), then run `pulumi up` "
        "again; or keep it with tpu.queued: {enabled: false}."
    )


def _exists(props: Props) -> RuntimeError:
    name = props["name"]
    return RuntimeError(
        f"{entry_name(props)} exists already, and this stack does not know of "
        "it. If a colleague's stack made it, set another `owner` or `namePrefix`. If an update of "
        "this stack was killed, run `tpustack recover`. If nobody needs it, delete it: `gcloud "
        f"compute tpus queued-resources delete {name} --zone={place(props).rpartition('/')[2]} "
        "--force`."
    )
