"""The TPU VMs that a request in the queue becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi import dynamic

from infra.resources.request import (
    ApiResourceProvider,
    TpuApi,
    entry_name,
    id_of,
    locate,
    loss,
    lost,
    may_move,
    standing,
)
from infra.rest import Json, say


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
        there, _ = locate(api, props)
        ready = await_ready(api, there)
        return dynamic.CreateResult(ready[0]["name"], {**there, "endpoints": _endpoints(ready)})

    def read(self, id_: str, props: dict[str, Any]) -> dynamic.ReadResult:
        """Read the TPU VMs; there are none if Google has taken one away.

        The agent may have queued again (agent/): then they come from that request, and are no
        reason for others.
        """
        api = TpuApi()
        there, entry = locate(api, props)
        found = standing(api, there)
        if entry is None or lost(there, found):
            return dynamic.ReadResult("", {})
        return dynamic.ReadResult(id_, {**there, "endpoints": _endpoints(found)})

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

    def __init__(
        self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(QueuedNodeProvider(), name, {**props, "endpoints": None}, opts)


def await_ready(api: TpuApi, props: Mapping[str, Any]) -> list[Json]:
    """Return the TPU VMs of a request, all READY, in the order of the slices.

    Raises RuntimeError if the request fails or the time is up, with the cure.
    """
    name, minutes = props["name"], props["waitMinutes"]
    said = ""
    ready: list[Json] = []

    def over() -> bool:
        nonlocal said, ready
        entry = api.get(entry_name(props))
        if entry is None:
            raise RuntimeError(f"{name} is not in the queue any more. Run `pulumi up`.")
        if lost := loss(api, props, entry):
            raise RuntimeError(
                f"{name} gets no TPU from the queue: {lost}. "
                "Run `pulumi up` to queue again; if it fails once more, take another "
                "zone, capacity or type."
            )
        state = str(entry.get("state", {}).get("state"))
        if state == "ACTIVE":
            ready = [node or {} for node in standing(api, props)]
            waited_for = [node.get("state") for node in ready if node.get("state") != "READY"]
            if not waited_for:
                return True
            many = f" and {len(waited_for) - 1} more" if len(waited_for) > 1 else ""
            state = f"ACTIVE, its TPU VM {waited_for[0]}{many}"
        if state != said:
            say(f"{name}: {state}; waiting for READY, at most {minutes:g} minutes")
            said = state
        return False

    try:
        api.wait(over, minutes, name)
    except TimeoutError:
        raise RuntimeError(
            f"{name} is still {said} after {minutes:g} minutes (tpu.queued.waitMinutes). It keeps "
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
