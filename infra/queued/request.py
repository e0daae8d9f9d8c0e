"""A request in the queue, with the TPU VMs that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi import dynamic

from infra.queued.api import Json, TpuApi, TpuApiError
from infra.queued.changes import asked, why
from infra.queued.state import loss, names, place, say, standing

_IDENTITY = ("project", "zone", "name", "request")
_CHANGEABLE = ("labels", "queueing", "deleteMinutes")
_DELETE_MINUTES = 30.0
_UPDATE_MINUTES = 10.0


class QueuedRequestProvider(dynamic.ResourceProvider):
    """Makes, changes and deletes requests. Everything goes through the TPU API."""

    serialize_as_secret_always = False

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        """Replace the request for another one, or if Google has given it up."""
        replaces = [key for key in _IDENTITY if asked(_olds, key) != asked(_news, key)]
        if _olds.get("loss"):
            replaces.append("loss")
        changed = any(_olds.get(key) != _news.get(key) for key in _CHANGEABLE)
        if replaces:
            say(f"{_olds['name']}: {why(_olds, _news)}. Its place in the queue is given up")
        return dynamic.DiffResult(
            changes=bool(replaces) or changed, replaces=replaces, delete_before_replace=True
        )

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        """Queue a request, or adopt the one that an interrupted update has queued."""
        api = TpuApi()
        name = f"{place(props)}/queuedResources/{props['name']}"
        try:
            operation = api.post(
                f"{place(props)}/queuedResources", _body(props), {"queuedResourceId": props["name"]}
            )
            api.finish(operation, _UPDATE_MINUTES)
        except TpuApiError as error:
            if error.status != 409:
                raise _explained(error, props) from None
        entry = api.get(name)
        if entry is None or not _same(entry, props):
            raise RuntimeError(
                f"{name} exists already and asks for something else. Delete it (`gcloud compute "
                f"tpus queued-resources delete {props['name']} --zone={props['zone']} --force`) or "
                "set another namePrefix."
            )
        return dynamic.CreateResult(name, _outputs(api, props, entry))

    def read(self, id_: str, props: dict[str, Any]) -> dynamic.ReadResult:
        """Read what became of a request: it is gone, over, or as it should be."""
        api = TpuApi()
        entry = api.get(id_)
        if entry is None:
            return dynamic.ReadResult("", {})
        found = [node.get("labels", {}) for node in standing(api, props) if node]
        # One TPU VM with others is enough to see that somebody has changed them.
        labels = next((seen for seen in found if seen != props["labels"]), props["labels"])
        return dynamic.ReadResult(id_, _outputs(api, props, entry) | {"labels": labels})

    def update(
        self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]
    ) -> dynamic.UpdateResult:
        """Change labels in place. A new deadline counts for the next request."""
        api = TpuApi()
        if _olds.get("labels") != _news["labels"]:
            if not all(standing(api, _news)):
                raise RuntimeError(
                    f"{_news['name']} still waits in the queue, and Google changes no labels there."
                    " Wait until it is READY, or take the change back."
                )
            changes = [
                api.patch(node, {"labels": _news["labels"]}, {"updateMask": "labels"})
                for node in (f"{place(_news)}/nodes/{name}" for name in names(_news))
            ]
            for operation in changes:
                api.finish(operation, _UPDATE_MINUTES)
        kept = {key: _olds[key] for key in ("created", "loss") if key in _olds}
        return dynamic.UpdateResult(dict(_news) | kept)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Delete a request in any state along with its TPU VMs, and wait until all are gone."""
        api = TpuApi()
        say(f"deleting {_props['name']} from the queue, along with the TPU VMs that it became")

        def gone() -> bool:
            entry = api.get(_id)
            if entry is None:
                return True
            if entry.get("state", {}).get("state") != "DELETING":
                try:
                    api.delete(_id, {"force": "true"})
                except TpuApiError as error:
                    # Between two states Google refuses even this; it passes.
                    if error.reason not in ("FAILED_PRECONDITION", "ABORTED"):
                        raise
                return api.get(_id) is None
            return False

        minutes = float(_props.get("deleteMinutes") or _DELETE_MINUTES)
        api.wait(gone, minutes, f"the deletion of {_id}")


class QueuedRequest(dynamic.Resource, module="tpu", name="QueuedResource"):
    """A request for a TPU VM.

    `request` is the API's QueuedResource without labels, and `queueing` its policy.
    """

    created: pulumi.Output[str]
    """When it was put into the queue: another one for another request."""

    def __init__(
        self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        computed: Json = {"created": None, "loss": None}
        super().__init__(QueuedRequestProvider(), name, {**props, **computed}, opts)


def _body(props: Mapping[str, Any]) -> Json:
    body: Json = {**props["request"]}
    (spec,) = body["tpu"]["nodeSpec"]
    spec = {**spec, "node": {**spec["node"], "labels": props["labels"]}}
    if several := spec.get("multiNodeParams"):
        spec["multiNodeParams"] = {**several, "nodeCount": int(several["nodeCount"])}
    body["tpu"] = {"nodeSpec": [spec]}
    if props["queueing"]:
        body["queueingPolicy"] = props["queueing"]
    return body


def _outputs(api: TpuApi, props: Mapping[str, Any], entry: Json) -> Json:
    return {**props, "created": entry.get("createTime", ""), "loss": loss(api, props, entry)}


def _same(entry: Json, props: Mapping[str, Any]) -> bool:
    def asked(request: Mapping[str, Any]) -> list[tuple[object, ...]]:
        return [
            (
                spec.get("nodeId"),
                (spec.get("multiNodeParams") or {}).get("nodeCount"),
                spec["node"]["acceleratorType"],
                spec["node"]["runtimeVersion"],
            )
            for spec in request["tpu"]["nodeSpec"]
        ]

    return asked(entry) == asked(props["request"])


def _explained(error: TpuApiError, props: Mapping[str, Any]) -> Exception:
    return RuntimeError(f"Google does not queue {props['name']}: {error}")
