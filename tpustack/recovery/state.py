"""The state of a stack: trusted before it is used, and completed after its engine was killed.

The engine writes an operation into the state before it asks the provider, and takes it out along
with the result (pulumi/pkg/backend/snapshot.go). So the state names whatever was interrupted:

- `creating`: it is there or not; if it is, the state does not know.
- `updating`, `deleting`: it is in the state as it was before.

Where something is replaced, the old one is there with the same URN: marked `delete` if it goes
after the new one has come (or not yet marked), `pendingReplacement` if it has gone before.

No state is used before it is trusted. An account that may write it can put three things into it
that the engine obeys before this project's program runs: a pickle (`__provider`), the name and
address of a plugin to download and run, and the address of an API, which gets the deployer's token.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tpu_core.times import parse_time
from tpu_infra.names import MARK, Names
from tpustack.errors import TpustackError

Resource = Mapping[str, Any]
Deployment = Mapping[str, Any]

# The states of a resource that is still coming or going. Sources: the values of Instance.status in
# Google's discovery document compute v1, and of Node.state in tpu v2.
_PASSING: Mapping[str, tuple[str, frozenset[str]]] = {
    "gcp:compute/instance:Instance": (
        "currentStatus",
        frozenset({"PENDING", "PROVISIONING", "STAGING", "PENDING_STOP", "STOPPING", "SUSPENDING"}),
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
    return bool(made and since) and parse_time(str(made)) < parse_time(str(since))


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


def without_others(before: Deployment, refreshed: Deployment) -> tuple[dict[str, Any], list[str]]:
    """Return a refreshed state without what other stacks made, and the URNs of that.

    The state has the mark that the update was to make a resource with (infra/tpu_infra/names.py).

    Args:
        before: the state as the killed engine left it.
        refreshed: the state in which all that was being created is assumed to be there.
    """
    known = {_key(each) for each in before.get("resources") or []}
    wanted = {
        (each["resource"]["urn"], id_of(each["resource"])): each["resource"]
        for each in before.get("pending_operations") or []
        if each["type"] == "creating"
    }
    others = [
        each
        for each in refreshed.get("resources") or []
        if _key(each) not in known and _key(each) in wanted
        if _mark(wanted[_key(each)].get("inputs")) not in (None, _mark(each.get("outputs")))
    ]
    kept = [each for each in refreshed.get("resources") or [] if each not in others]
    return {**refreshed, "resources": kept}, [each["urn"] for each in others]


def _mark(properties: Mapping[str, Any] | None) -> str | None:
    """Return the mark; None for what needs none."""
    if not properties:
        return None
    label: str | None = (properties.get("labels") or {}).get(MARK)
    return label or properties.get("description")


# The IDs by which Google's provider, or this project's own, finds its resources.
# The fields are inputs, and the address of an account, which follows from them. Left out are
# resources that Google names itself (budgets, alerts and their channels), resources that exist only
# in the state, and APIs, which stay enabled.
_IDS: Mapping[str, str] = {
    "gcp:compute/disk:Disk": "projects/{project}/zones/{zone}/disks/{name}",
    "gcp:compute/firewall:Firewall": "projects/{project}/global/firewalls/{name}",
    "gcp:compute/healthCheck:HealthCheck": "projects/{project}/global/healthChecks/{name}",
    "gcp:compute/instance:Instance": "projects/{project}/zones/{zone}/instances/{name}",
    "gcp:compute/instanceGroupManager:InstanceGroupManager": (
        "projects/{project}/zones/{zone}/instanceGroupManagers/{name}"
    ),
    "gcp:compute/instanceTemplate:InstanceTemplate": (
        "projects/{project}/global/instanceTemplates/{name}"
    ),
    "gcp:compute/network:Network": "projects/{project}/global/networks/{name}",
    "gcp:compute/perInstanceConfig:PerInstanceConfig": (
        "{project}/{zone}/{instanceGroupManager}/{name}"
    ),
    "gcp:compute/resourcePolicy:ResourcePolicy": (
        "projects/{project}/regions/{region}/resourcePolicies/{name}"
    ),
    "gcp:compute/router:Router": "projects/{project}/regions/{region}/routers/{name}",
    "gcp:compute/routerNat:RouterNat": "{project}/{region}/{router}/{name}",
    "gcp:compute/subnetwork:Subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "gcp:iam/workloadIdentityPool:WorkloadIdentityPool": (
        "projects/{project}/locations/global/workloadIdentityPools/{workloadIdentityPoolId}"
    ),
    "gcp:iam/workloadIdentityPoolProvider:WorkloadIdentityPoolProvider": (
        "projects/{project}/locations/global/workloadIdentityPools/{workloadIdentityPoolId}"
        "/providers/{workloadIdentityPoolProviderId}"
    ),
    "gcp:kms/cryptoKey:CryptoKey": "{keyRing}/cryptoKeys/{name}",
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": "{cryptoKeyId}/{role}/{member}",
    "gcp:kms/keyRing:KeyRing": "projects/{project}/locations/{location}/keyRings/{name}",
    "gcp:projects/iAMCustomRole:IAMCustomRole": "projects/{project}/roles/{roleId}",
    "gcp:projects/iAMMember:IAMMember": "{project}/{role}/{member}",
    "gcp:pubsub/topic:Topic": "projects/{project}/topics/{name}",
    "gcp:pubsub/topicIAMMember:TopicIAMMember": "projects/{project}/topics/{topic}/{role}/{member}",
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        "projects/{project}/secrets/{secretId}/{role}/{member}"
    ),
    "gcp:serviceaccount/account:Account": "projects/{project}/serviceAccounts/{email}",
    "gcp:serviceaccount/iAMMember:IAMMember": "{serviceAccountId}/{role}/{member}",
    "gcp:storage/bucket:Bucket": "{name}",
    "gcp:storage/bucketIAMMember:BucketIAMMember": "b/{bucket}/{role}/{member}",
    "gcp:storage/bucketObject:BucketObject": "{bucket}-{name}",
    "gcp:tpu/node:Node": "projects/{project}/locations/{zone}/nodes/{name}",
    "gcp:tpu/v2Vm:V2Vm": "projects/{project}/locations/{zone}/nodes/{name}",
    "pulumi-python:dynamic/tpu:QueuedResource": (
        "projects/{project}/locations/{zone}/queuedResources/{name}"
    ),
}

FOUND = _IDS.keys()
"""The types whose ID follows from their inputs."""


def id_of(resource: Mapping[str, Any]) -> str | None:
    """Return the ID of a resource from its inputs; None if it does not follow from them."""
    template = _IDS.get(resource["type"])
    inputs = resource.get("inputs") or {}
    try:
        if "accountId" in inputs:
            inputs = {**inputs, "email": Names.email_of(inputs["accountId"], inputs["project"])}
        return template and template.format_map(inputs)
    except KeyError:
        return None


# What this project's programs are made with. A plugin runs with the rights of the engine.
_PACKAGES = ("gcp", "pulumi-python")
_DYNAMIC = "pulumi-python"
_PROVIDER_TYPE = "pulumi:providers:"
# Where the engine finds another name, address or parameter of a plugin:
# pulumi/pkg/resource/deploy/providers/registry.go.
_PLUGIN = (
    "__internal",
    "envVarMappings",
    "name",
    "parameterization",
    "pluginChecksums",
    "pluginDownloadURL",
)
_PICKLE = "__provider"


def require_trusted(stack: str, state: Mapping[str, Any]) -> None:
    """Refuse a state that would run something which is not of this checkout.

    Args:
        stack: the stack's name.
        state: the whole state, as the engine exports it.

    Raises:
        TpustackError: with everything that is wrong.
    """
    if problems := list(_problems(state.get("deployment") or {})):
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise TpustackError(
            f"the state of stack {stack} is not trusted, and nothing was done with it:\n{lines}\n"
            "Someone may have changed it. Put an earlier one back "
            "(docs/ci-cd.md#recover-the-pipeline), or use the release that deployed the stack last "
            "(docs/security.md#a-hostile-state-file)"
        )


def _problems(deployment: Any) -> Iterator[str]:
    try:
        begun = [each["resource"] for each in deployment.get("pending_operations") or []]
        for resource in [*(deployment.get("resources") or []), *begun]:
            urn = str(resource["urn"])
            # The engine goes by the type in the URN in some places, and by `type` in others.
            for kind in {str(resource["type"]), urn.split("::")[2].rpartition("$")[2]}:
                # A name may have several lines.
                yield from (f"{urn.rpartition('::')[2]!r}: {each}" for each in _of(kind, resource))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        yield f"it is not as the engine writes it ({error!r})"


def _of(kind: str, resource: Resource) -> Iterator[str]:
    if kind.startswith(_PROVIDER_TYPE):
        return _of_provider(kind.removeprefix(_PROVIDER_TYPE), resource.get("inputs") or {})
    return _of_resource(kind.partition(":")[0], resource)


def _of_provider(package: str, inputs: Mapping[str, Any]) -> Iterator[str]:
    if package not in _PACKAGES:
        yield f"the plugin {package!r} would be run; this project uses {' and '.join(_PACKAGES)}"
    for key in _PLUGIN:
        if inputs.get(key):
            yield f"{key} says which plugin to run, which this project leaves to Pulumi"
    for key, value in inputs.items():
        if key.lower().endswith("customendpoint") and not _is_googles(value):
            yield f"{key} would send Google's token to {value!r}, which is not Google's"
    if inputs.get("universeDomain", "googleapis.com") != "googleapis.com":
        yield f"universeDomain would send Google's token to {inputs['universeDomain']!r}"


def _is_googles(url: object) -> bool:
    address = urlsplit(str(url))
    host = address.hostname or ""
    return address.scheme == "https" and host.endswith(".googleapis.com")


def _of_resource(package: str, resource: Resource) -> Iterator[str]:
    pickles = [
        properties[_PICKLE]
        for properties in (resource.get("inputs") or {}, resource.get("outputs") or {})
        if _PICKLE in properties
    ]
    if not pickles and package != _DYNAMIC:
        return
    known = _known()
    if not pickles or any(str(pickle) not in known for pickle in pickles):
        yield "its dynamic provider is not one of this checkout, byte for byte"


def _known() -> frozenset[str]:
    # Pulumi's SDK takes a second to import.
    from tpu_infra.resources.provider import known

    return frozenset(known())
