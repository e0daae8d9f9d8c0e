"""The TPU VM that a request in the queue becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import (
    CreateResult,
    DiffResult,
    ReadResult,
    Resource,
    ResourceProvider,
    UpdateResult,
)

from infra.queued.api import Json, TpuApi
from infra.queued.entry import GONE, loss, place, say


class QueuedNodeProvider(ResourceProvider):
    """Waits for a TPU VM. Deliberately makes and deletes nothing: that is the request's."""

    serialize_as_secret_always = False

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Another request has another TPU VM; how long to wait for it counts only once."""
        replaces = [
            key
            for key in ("project", "zone", "name", "requested")
            if _olds.get(key) != _news.get(key)
        ]
        changed = _olds.get("waitMinutes") != _news.get("waitMinutes")
        return DiffResult(
            changes=bool(replaces) or changed, replaces=replaces, delete_before_replace=True
        )

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Waits until the TPU VM is READY."""
        node = await_ready(TpuApi(), props)
        return CreateResult(node["name"], {**props, "endpoints": _endpoints(node)})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """The TPU VM as it is; one that Google has taken away is none."""
        node = TpuApi().get(id_)
        if node is None or node.get("state") in GONE:
            return ReadResult("", {})
        return ReadResult(id_, {**props, "endpoints": _endpoints(node)})

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Another patience is only noted."""
        return UpdateResult({**_news, "endpoints": _olds["endpoints"]})


class QueuedNode(Resource, module="tpu", name="QueuedNode"):
    """A TPU VM out of the queue, READY."""

    endpoints: pulumi.Output[list[Json]]
    """`{ipAddress, port}` of every worker, worker 0 first; ports are texts, empty if unknown."""

    def __init__(
        self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(QueuedNodeProvider(), name, {**props, "endpoints": None}, opts)


def await_ready(api: TpuApi, props: Mapping[str, Any]) -> Json:
    """The TPU VM of a request, READY.

    Raises RuntimeError if the request fails or the time is up, with the cure.
    """
    name, minutes = props["name"], props["waitMinutes"]
    entry_name = f"{place(props)}/queuedResources/{name}"
    node_name = f"{place(props)}/nodes/{name}"
    said = ""
    ready: Json = {}

    def over() -> bool:
        nonlocal said, ready
        entry = api.get(entry_name)
        if entry is None:
            raise RuntimeError(f"{name} is not in the queue any more. Run `pulumi up --refresh`.")
        if lost := loss(api, props, entry):
            raise RuntimeError(
                f"{name} gets no TPU from the queue: {lost}. "
                "Run `pulumi up --refresh` to queue again; if it fails once more, take another "
                "zone, capacity or type."
            )
        state = str(entry.get("state", {}).get("state"))
        if state == "ACTIVE":
            ready = api.get(node_name) or {}
            if ready.get("state") == "READY":
                return True
            state = f"ACTIVE, its TPU VM {ready.get('state')}"
        if state != said:
            say(f"{name}: {state}; waiting for READY, at most {minutes:g} minutes")
            said = state
        return False

    try:
        api.wait(over, minutes, name)
    except TimeoutError:
        raise RuntimeError(
            f"{name} is still {said} after {minutes:g} minutes (tpu.queued.waitMinutes). It keeps "
            "its place in the queue: run `pulumi up` again to go on waiting, or `pulumi destroy`."
        ) from None
    return ready


def _endpoints(node: Json) -> list[Json]:
    return [
        # The engine knows no whole numbers: 8470 would come back as 8470.0.
        {"ipAddress": worker["ipAddress"], "port": str(worker.get("port") or "")}
        for worker in node.get("networkEndpoints", [])
    ]
