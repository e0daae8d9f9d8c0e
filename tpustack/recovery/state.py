"""Completes the state of a stack whose engine was killed.

The engine writes an operation into the state before it asks the provider, and takes it out along
with the result (pulumi/pkg/backend/snapshot.go). So the state names whatever was interrupted:

- `creating`: it is there or not; if it is, the state does not know.
- `updating`, `deleting`: it is in the state as it was before.

Where something is replaced, the old one is there with the same URN: marked `delete` if it goes
after the new one has come (or not yet marked), `pendingReplacement` if it has gone before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpustack.cloud import google
from tpustack.recovery.ids import id_of

Resource = Mapping[str, Any]
Deployment = Mapping[str, Any]

# The states of a resource that is still coming or going. Sources: the values of Instance.status in
# Google's discovery document compute v1, and of Node.state in tpu v2.
_PASSING: Mapping[str, tuple[str, frozenset[str]]] = {
    "gcp:compute/instance:Instance": (
        "currentStatus",
        frozenset({"PROVISIONING", "STAGING", "PENDING_STOP", "STOPPING", "SUSPENDING"}),
    ),
    "gcp:tpu/v2Vm:V2Vm": (
        "state",
        frozenset({"CREATING", "STARTING", "STOPPING", "RESTARTING", "REIMAGING", "DELETING"}),
    ),
}
# The provider's names for the time of creation: of buckets, Compute, TPU VMs, the queue.
_MADE_AT = ("timeCreated", "creationTimestamp", "createTime", "created")


def is_interrupted(deployment: Deployment) -> bool:
    """Return whether an engine was killed in the middle of something, or is at work."""
    return bool(deployment.get("pending_operations"))


def being_created(deployment: Deployment) -> list[str]:
    """Return the URNs of the resources that the killed engine was creating."""
    return [each["urn"] for each in _creates(deployment)]


def with_what_may_be_there(deployment: Deployment) -> dict[str, Any]:
    """Return the state as if everything that was being created existed; a refresh drops the rest.

    It is a state as the engine writes it, without operations. Refresh it before it is kept: nothing
    in it says which resources are only assumed.
    """
    resources = list(deployment.get("resources") or [])
    seen: set[str] = set()
    for new in _candidates(deployment):
        if _knows(resources, new):
            continue
        # The engine names its latest operations first. What earlier ones made is left over.
        resources = _with(resources, {**new, "delete": True} if new["urn"] in seen else new)
        seen.add(new["urn"])
    return {**deployment, "resources": resources, "pending_operations": []}


def settled(before: Deployment, refreshed: Deployment) -> dict[str, Any]:
    """Return the state to keep: the refreshed one, with old resources that were not replaced.

    A new resource that Google made before the old one replaced nothing: it is left over from an
    earlier update, and is marked for deletion.
    """
    goes = {_key(each) for each in before.get("resources") or [] if each.get("delete")}
    resources = list(refreshed.get("resources") or [])
    for index, old in enumerate(resources):
        if not old.get("delete") or _key(old) in goes:
            continue
        new = next((each for each in resources if _is_alive(each, old["urn"])), None)
        if new is None or _is_older(new, old):
            resources[index] = {name: value for name, value in old.items() if name != "delete"}
            if new is not None:
                resources[resources.index(new)] = {**new, "delete": True}
    return {**refreshed, "resources": resources, "pending_operations": []}


def _is_alive(resource: Resource, urn: str) -> bool:
    return resource["urn"] == urn and not resource.get("delete")


def _is_older(new: Resource, old: Resource) -> bool:
    """Return whether Google made `new` before the engine made `old`; False if unknown."""
    outputs = new.get("outputs") or {}
    made = next((outputs[name] for name in _MADE_AT if outputs.get(name)), None)
    since = old.get("created")
    return bool(made and since) and google.parse_time(str(made)) < google.parse_time(str(since))


def passing(before: Deployment, refreshed: Deployment) -> list[str]:
    """Return the URNs of interrupted resources that are still coming or going at Google."""
    begun = {each["resource"]["urn"] for each in before.get("pending_operations") or []}
    return [
        each["urn"]
        for each in refreshed.get("resources") or []
        if each["urn"] in begun and _is_passing(each)
    ]


def _is_passing(resource: Resource) -> bool:
    output, states = _PASSING.get(resource["type"], ("", frozenset()))
    return (resource.get("outputs") or {}).get(output) in states


def _creates(deployment: Deployment) -> list[Resource]:
    operations = deployment.get("pending_operations") or []
    return [each["resource"] for each in operations if each["type"] == "creating"]


def _candidates(deployment: Deployment) -> Iterator[Resource]:
    for each in _creates(deployment):
        if found := id_of(each):
            # The provider reads by some of the outputs, not by the ID alone.
            yield {**each, "id": found, "outputs": each["inputs"]}


def _key(resource: Resource) -> tuple[str, str | None]:
    return resource["urn"], resource.get("id")


def _knows(resources: Sequence[Resource], new: Resource) -> bool:
    return any(
        each["urn"] == new["urn"]
        and not each.get("pendingReplacement")
        and new["id"] in (each.get("id"), id_of(each))
        for each in resources
    )


def _with(resources: Sequence[Resource], new: Resource) -> list[Resource]:
    """Return the resources with a new one, in the place of the one that it replaces."""
    place = len(resources)
    rest: list[Resource] = []
    for index, each in enumerate(resources):
        if each["urn"] != new["urn"] or each.get("delete") or new.get("delete"):
            rest.append(each)
            continue
        # Others may depend on it and come after it, so the new one comes before them.
        place = index
        if not each.get("pendingReplacement"):
            rest.append({**each, "delete": True})
    fitting = _fitting(new, rest[:place])
    return [*rest[:place], fitting, *rest[place:]] if fitting else rest


def _fitting(new: Resource, before: Sequence[Resource]) -> Resource | None:
    """Return the resource with references only to those before it, as the engine insists.

    Later updates may have deleted its dependencies. None if no provider is left for it.
    """
    urns = {each["urn"] for each in before}
    fitting = dict(new)
    if provider := new.get("provider"):
        urn, _, found = provider.rpartition("::")
        ids = [each.get("id") for each in before if each["urn"] == urn]
        if not ids:
            return None
        fitting["provider"] = provider if found in ids else f"{urn}::{ids[-1]}"
    for one in ("parent", "deletedWith"):
        if new.get(one) not in urns:
            fitting.pop(one, None)
    for several in ("dependencies", "replaceWith"):
        if new.get(several):
            fitting[several] = [each for each in new[several] if each in urns]
    if properties := new.get("propertyDependencies"):
        fitting["propertyDependencies"] = {
            name: [each for each in needed or [] if each in urns]
            for name, needed in properties.items()
        }
    return fitting
