"""A request in the queue, with the TPU VM that it becomes."""

from __future__ import annotations

import copy
import sys
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

from infra.queued.api import Json, TpuApi, TpuApiError

OVER = ("FAILED", "SUSPENDED", "SUSPENDING", "DELETING")
"""States of a request that Google never takes up again; it holds its quota until it is deleted."""
GONE = ("PREEMPTED", "TERMINATED")
"""States of a TPU VM that Google has taken away."""
_IDENTITY = ("project", "zone", "name", "request")
_DELETE_MINUTES = 30.0
_UPDATE_MINUTES = 10.0


def say(message: str) -> None:
    """The engine shows what a dynamic provider prints."""
    print(message, file=sys.stdout, flush=True)


def place(props: Mapping[str, Any]) -> str:
    """Where a request and its TPU VM are."""
    return f"projects/{props['project']}/locations/{props['zone']}"


def loss(api: TpuApi, props: Mapping[str, Any], entry: Json) -> str:
    """Why a request does not lead to a TPU VM any more; empty if it does or still may."""
    state = entry.get("state", {})
    if state.get("state") in OVER:
        reason = state.get("failedData", {}).get("error", {}).get("message", "")
        return f"{state['state']}{f': {reason}' if reason else ''}"
    if state.get("state") == "ACTIVE":
        node = api.get(f"{place(props)}/nodes/{props['name']}")
        if node is None or node.get("state") in GONE:
            return f"its TPU VM is {node['state'] if node else 'gone'}"
    return ""


class QueueEntryProvider(ResourceProvider):
    """Makes, changes and deletes requests. Everything goes through the TPU API."""

    serialize_as_secret_always = False

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Another request, or one that is over, means another entry in the queue."""
        replaces = [key for key in _IDENTITY if _asked(_olds, key) != _asked(_news, key)]
        if _olds.get("loss"):
            replaces.append("loss")
        changed = any(_olds.get(key) != _news.get(key) for key in ("labels", "queueing"))
        return DiffResult(
            changes=bool(replaces) or changed, replaces=replaces, delete_before_replace=True
        )

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Puts a request into the queue; one that an interrupted update has put there is taken."""
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
        return CreateResult(name, _outputs(api, props, entry))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """What became of a request: gone, over, or as it should be."""
        api = TpuApi()
        entry = api.get(id_)
        if entry is None:
            return ReadResult("", {})
        node = api.get(f"{place(props)}/nodes/{props['name']}")
        labels = props["labels"] if node is None else node.get("labels", {})
        return ReadResult(id_, _outputs(api, props, entry) | {"labels": labels})

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Labels change in place. A new deadline counts for the next request."""
        api = TpuApi()
        if _olds.get("labels") != _news["labels"]:
            node = f"{place(_news)}/nodes/{_news['name']}"
            if api.get(node) is None:
                raise RuntimeError(
                    f"{_news['name']} still waits in the queue, and Google changes no labels there."
                    " Wait until it is READY, or take the change back."
                )
            operation = api.patch(node, {"labels": _news["labels"]}, {"updateMask": "labels"})
            api.finish(operation, _UPDATE_MINUTES)
        kept = {key: _olds[key] for key in ("created", "loss") if key in _olds}
        return UpdateResult(dict(_news) | kept)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Deletes a request along with its TPU VM, whatever its state, and waits until both are."""
        api = TpuApi()
        say(f"deleting {_props['name']} from the queue, along with its TPU VM if there is one")

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

        api.wait(gone, _DELETE_MINUTES, f"the deletion of {_id}")


class QueueEntry(Resource, module="tpu", name="QueuedResource"):
    """A request for a TPU VM.

    `request` is the API's QueuedResource without labels, and `queueing` its policy.
    """

    created: pulumi.Output[str]
    """When it was put into the queue: another one for another request."""

    def __init__(
        self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        computed: Json = {"created": None, "loss": None}
        super().__init__(QueueEntryProvider(), name, {**props, **computed}, opts)


def _asked(props: Mapping[str, Any], key: str) -> Any:
    """What a request is known by. Another release's start-up script is no other request."""
    value = props.get(key)
    if key != "request" or value is None:
        return value
    specs = copy.deepcopy(value["tpu"]["nodeSpec"])
    for spec in specs:
        spec["node"].get("metadata", {}).pop("startup-script", None)
    return {**value, "tpu": {"nodeSpec": specs}}


def _body(props: Mapping[str, Any]) -> Json:
    body: Json = {**props["request"]}
    (spec,) = body["tpu"]["nodeSpec"]
    body["tpu"] = {"nodeSpec": [{**spec, "node": {**spec["node"], "labels": props["labels"]}}]}
    if props["queueing"]:
        body["queueingPolicy"] = props["queueing"]
    return body


def _outputs(api: TpuApi, props: Mapping[str, Any], entry: Json) -> Json:
    return {**props, "created": entry.get("createTime", ""), "loss": loss(api, props, entry)}


def _same(entry: Json, props: Mapping[str, Any]) -> bool:
    def asked(request: Mapping[str, Any]) -> list[tuple[object, ...]]:
        return [
            (spec.get("nodeId"), spec["node"]["acceleratorType"], spec["node"]["runtimeVersion"])
            for spec in request["tpu"]["nodeSpec"]
        ]

    return asked(entry) == asked(props["request"])


def _explained(error: TpuApiError, props: Mapping[str, Any]) -> Exception:
    return RuntimeError(f"Google does not queue {props['name']}: {error}")
