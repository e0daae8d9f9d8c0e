"""Settings of an existing instance."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.store import Record
from localcloud.services.compute import catalog
from localcloud.services.compute.api import API
from localcloud.services.compute.fingerprints import require_match, stamp_labels
from localcloud.services.compute.instances import accounts, checks
from localcloud.services.compute.instances.records import change, policies, require_stopped
from localcloud.services.compute.links import last, url_of


@API.method("instances.setMetadata", permission="compute.instances.setMetadata", resources=policies)
def set_metadata(cloud: Cloud, call: Call) -> Json:
    """Replace the metadata; running machines see it at once."""

    def edit(record: Record) -> None:
        current = record["metadata"]["fingerprint"]
        require_match(call.body.get("fingerprint"), current, "metadata")
        record["metadata"] = checks.metadata(call.body)

    return change(cloud, call, "setMetadata", edit)


@API.method("instances.setLabels", permission="compute.instances.setLabels", resources=policies)
def set_labels(cloud: Cloud, call: Call) -> Json:
    """Replace the labels."""

    def edit(record: Record) -> None:
        require_match(call.body.get("labelFingerprint"), record["labelFingerprint"], "labels")
        record["labels"] = checks.labels(call.body.get("labels", {}))
        stamp_labels(record)

    return change(cloud, call, "setLabels", edit)


@API.method("instances.setTags", permission="compute.instances.setTags", resources=policies)
def set_tags(cloud: Cloud, call: Call) -> Json:
    """Replace the network tags."""

    def edit(record: Record) -> None:
        require_match(call.body.get("fingerprint"), record["tags"]["fingerprint"], "tags")
        record["tags"] = checks.tags(call.body)

    return change(cloud, call, "setTags", edit)


@API.method(
    "instances.setServiceAccount",
    permission="compute.instances.setServiceAccount",
    resources=policies,
)
def set_service_account(cloud: Cloud, call: Call) -> Json:
    """Give a stopped instance another service account or other scopes."""
    accepted = accounts.accepted(cloud, call, [call.body])

    def edit(record: Record) -> None:
        require_stopped(record, "The service account")
        record["serviceAccounts"] = accepted

    return change(cloud, call, "setServiceAccount", edit)


@API.method(
    "instances.setScheduling", permission="compute.instances.setScheduling", resources=policies
)
def set_scheduling(cloud: Cloud, call: Call) -> Json:
    """Change the scheduling options; whether it is spot only while it is stopped."""

    def edit(record: Record) -> None:
        before = record["scheduling"]
        kept = {key: value for key, value in before.items() if key not in call.body}
        after = checks.scheduling(kept | checks.tidy(call.body))
        if after["preemptible"] != before["preemptible"]:
            require_stopped(record, "The provisioning model")
        record["scheduling"] = after

    return change(cloud, call, "setScheduling", edit)


@API.method(
    "instances.setMachineType", permission="compute.instances.setMachineType", resources=policies
)
def set_machine_type(cloud: Cloud, call: Call) -> Json:
    """Give a stopped instance another machine type."""
    zone = call.params["zone"]
    name = last(call.body.get("machineType", ""))
    if not name:
        raise invalid("Invalid value for field 'machineType': ''. It is required.")
    catalog.machine_type(name, zone)

    def edit(record: Record) -> None:
        require_stopped(record, "The machine type")
        record["machineType"] = url_of(f"projects/{call.project}/zones/{zone}/machineTypes/{name}")

    return change(cloud, call, "setMachineType", edit)


@API.method(
    "instances.setDeletionProtection",
    permission="compute.instances.setDeletionProtection",
    resources=policies,
)
def set_deletion_protection(cloud: Cloud, call: Call) -> Json:
    """Protect an instance against deletion (the default), or no longer."""

    def edit(record: Record) -> None:
        record["deletionProtection"] = call.arg("deletionProtection", "true").lower() == "true"

    return change(cloud, call, "setDeletionProtection", edit)


@API.method(
    "instances.updateShieldedInstanceConfig",
    permission="compute.instances.updateShieldedInstanceConfig",
    resources=policies,
)
def update_shielded(cloud: Cloud, call: Call) -> Json:
    """Change the Shielded VM options of a stopped instance."""

    def edit(record: Record) -> None:
        require_stopped(record, "The Shielded VM configuration")
        record["shieldedInstanceConfig"] = checks.shielded(
            record["shieldedInstanceConfig"] | checks.tidy(call.body)
        )

    return change(cloud, call, "updateShieldedInstanceConfig", edit)
