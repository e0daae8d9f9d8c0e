"""A request in the queue, with the TPU VMs that it becomes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi import dynamic

from infra.queued.api import Json, TpuApi, TpuApiError, TpuResourceProvider
from infra.queued.changes import asked, is_the_same, why
from infra.queued.state import loss, names, place, say, standing

_IDENTITY = ("project", "zone", "name", "request")
_CHANGEABLE = ("labels", "queueing", "deleteMinutes")
_DELETE_MINUTES = 30.0
_UPDATE_MINUTES = 10.0
_DELETE_PLAIN = "pulumi destroy --target-dependents --target '**:V2Vm::**'"


class QueuedRequestProvider(TpuResourceProvider):
    """Makes, changes and deletes requests. Everything goes through the TPU API."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        """Replace the request for another one, or if Google has given it up."""
        lost = _olds.get("loss") or _lost_by_now(_id, _olds)
        replaces = [key for key in _IDENTITY if asked(_olds, key) != asked(_news, key)]
        if lost:
            replaces.append("loss")
        changed = any(_olds.get(key) != _news.get(key) for key in _CHANGEABLE)
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
        name = f"{place(props)}/queuedResources/{props['name']}"
        # By this number Google knows a call that is repeated because its answer was lost.
        query = {"queuedResourceId": props["name"], "requestId": str(uuid.uuid4())}
        try:
            operation = api.post(f"{place(props)}/queuedResources", body_of(props), query)
            api.finish(operation, _UPDATE_MINUTES)
        except TpuApiError as error:
            there = api.get(name) if error.status == 409 else None
            if there is None or not is_the_same(props, there) or loss(api, props, there):
                plain = error.status == 409 and there is None
                raise (_plain(props) if plain else _explained(error, props)) from None
            say(f"{props['name']} is in the queue already: the agent has queued it again")
        entry = api.get(name)
        if entry is None:
            raise RuntimeError(f"{name} was queued, and somebody has deleted it since")
        return dynamic.CreateResult(name, _outputs(api, props, entry))

    def read(self, id_: str, props: dict[str, Any]) -> dynamic.ReadResult:
        """Read what became of a request: it is gone, over, or as it should be."""
        api = TpuApi()
        entry = api.get(id_)
        if entry is None:
            return dynamic.ReadResult("", {})
        found = [node.get("labels", {}) for node in standing(api, props) if node]
        found = found or [_asked_labels(entry, props)]
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


def _lost_by_now(name: str, props: Mapping[str, Any]) -> str:
    """Say what has become of a request since the state was written; empty if nobody may look."""
    try:
        api = TpuApi()
        entry = api.get(name)
        return "it is gone" if entry is None else loss(api, props, entry)
    except TpuApiError:
        return ""


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


def _outputs(api: TpuApi, props: Mapping[str, Any], entry: Json) -> Json:
    return {**props, "created": entry.get("createTime", ""), "loss": loss(api, props, entry)}


def _asked_labels(entry: Json, props: Mapping[str, Any]) -> Json:
    """Return the labels that a request asks for, whose TPU VMs do not stand yet."""
    specs = entry.get("tpu", {}).get("nodeSpec", [])
    return dict(specs[0]["node"].get("labels", props["labels"])) if specs else props["labels"]


def _plain(props: Mapping[str, Any]) -> Exception:
    return RuntimeError(
        f"{props['name']} exists already as a TPU VM that does not come from the queue. "
        f"Delete it (`{_DELETE_PLAIN}` if this stack has made it), then run `pulumi up` "
        "again; or keep it with tpu.queued: {enabled: false}."
    )


def _explained(error: TpuApiError, props: Mapping[str, Any]) -> Exception:
    name, zone = props["name"], props["zone"]
    if error.status != 409:
        return RuntimeError(f"Google does not queue {name}: {error}")
    return RuntimeError(
        f"{place(props)}/queuedResources/{name} exists already, and this stack does not know of "
        "it. If a colleague's stack made it, set another `owner` or `namePrefix`. If an update of "
        "this stack was killed, run `tpustack recover`. If nobody needs it, delete it: `gcloud "
        f"compute tpus queued-resources delete {name} --zone={zone} --force`."
    )
