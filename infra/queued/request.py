"""A request in the queue, with the TPU VMs that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi import dynamic

from infra.queued.api import TpuApi
from infra.queued.changes import asked, why
from infra.queued.state import entry_name, loss, names, place, standing
from infra.queued.walk import queue, remove
from infra.queued.zones import id_of, locate, may_move, zones_of
from infra.rest import ApiError, ApiResourceProvider, Json, say

_IDENTITY = ("project", "zone", "name", "request")
_CHANGEABLE = ("queueing", "deleteMinutes", "fallbackZones", "zoneMinutes")
_UPDATE_MINUTES = 10.0


class QueuedRequestProvider(ApiResourceProvider):
    """Makes, changes and deletes requests. Everything goes through the TPU API."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        """Replace the request for another one, or if Google has given it up."""
        lost = _olds.get("loss") or _lost_by_now(_olds)
        replaces = [key for key in _IDENTITY if asked(_olds, key) != asked(_news, key)]
        if _olds.get("at", _olds["zone"]) not in zones_of(_news):
            replaces.append("fallbackZones")
        if lost:
            replaces.append("loss")
        changed = any(_olds.get(key) != _news.get(key) for key in _CHANGEABLE)
        changed |= _marks(_olds) != _marks(_news)
        if replaces:
            reason = why({**_olds, "loss": lost}, _news)
            say(f"{_olds['name']}: {reason}. Its place in the queue is given up")
        return dynamic.DiffResult(
            changes=bool(replaces) or changed, replaces=replaces, delete_before_replace=True
        )

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        """Queue a request. One of this name that is there already is somebody else's.

        Only the agent may have queued the same again, with this stack's mark, just before.
        """
        api = TpuApi()
        there = queue(api, props)
        entry = api.get(entry_name(there))
        if entry is None:
            raise RuntimeError(f"{entry_name(there)} was queued, and somebody has deleted it since")
        return dynamic.CreateResult(id_of(props), _outputs(api, there, entry))

    def read(self, id_: str, props: dict[str, Any]) -> dynamic.ReadResult:
        """Read what became of a request: it is gone, over, or as it should be."""
        api = TpuApi()
        there, entry = locate(api, props)
        if entry is None:
            return dynamic.ReadResult("", {})
        found = [node.get("labels", {}) for node in standing(api, there) if node]
        found = found or [_asked_labels(entry, props)]
        # One TPU VM with others is enough to see that somebody has changed them.
        labels = next((seen for seen in found if seen != props["labels"]), props["labels"])
        return dynamic.ReadResult(id_, _outputs(api, there, entry) | {"labels": labels})

    def update(
        self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]
    ) -> dynamic.UpdateResult:
        """Change labels and tags in place. A new deadline counts for the next request."""
        api, marks = TpuApi(), _marks(_news)
        if _marks(_olds) != marks:
            there, _ = locate(api, _olds)
            if not all(standing(api, there)):
                raise RuntimeError(
                    f"{_news['name']} still waits in the queue, and Google changes nothing there."
                    " Wait until it is READY, or take the change back."
                )
            changes = [
                api.patch(node, marks, {"updateMask": ",".join(marks)})
                for node in (f"{place(there)}/nodes/{name}" for name in names(_news))
            ]
            for operation in changes:
                api.finish(operation, _UPDATE_MINUTES)
        at = {"at": _olds.get("at", _olds["zone"])} if may_move(_news) else {}
        return dynamic.UpdateResult({**_news, "loss": _olds.get("loss", ""), **at})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Delete a request in any state along with its TPU VMs, and wait until all are gone."""
        api = TpuApi()
        say(f"deleting {_props['name']} from the queue, along with the TPU VMs that it became")
        remove(api, _props)


class QueuedRequest(dynamic.Resource, module="tpu", name="QueuedResource"):
    """A request for a TPU VM.

    `request` is the API's QueuedResource without labels, and `queueing` its policy.
    """

    at: pulumi.Output[str]
    """The zone that it is in, if it may be in several."""

    def __init__(
        self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        computed: Json = {"loss": None}
        if may_move(props):
            computed["at"] = None
        super().__init__(QueuedRequestProvider(), name, {**props, **computed}, opts)


def _lost_by_now(props: Mapping[str, Any]) -> str:
    """Say what has become of a request since the state was written; empty if nobody may look."""
    try:
        api = TpuApi()
        there, entry = locate(api, props)
        return "it is gone" if entry is None else loss(api, there, entry)
    except ApiError:
        return ""


def _outputs(api: TpuApi, props: Mapping[str, Any], entry: Json) -> Json:
    return {**props, "loss": loss(api, props, entry)}


def _marks(props: Mapping[str, Any]) -> Json:
    """Return the labels and the tags of a request's TPU VMs."""
    node = props["request"]["tpu"]["nodeSpec"][0]["node"]
    return {"labels": props.get("labels"), "tags": node.get("tags", [])}


def _asked_labels(entry: Json, props: Mapping[str, Any]) -> Json:
    """Return the labels that a request asks for, whose TPU VMs do not stand yet."""
    specs = entry.get("tpu", {}).get("nodeSpec", [])
    return dict(specs[0]["node"].get("labels", props["labels"])) if specs else props["labels"]
