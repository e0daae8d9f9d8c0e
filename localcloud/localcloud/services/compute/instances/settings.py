"""Settings of an existing instance."""

from __future__ import annotations

from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.store import Record
from localcloud.services.compute import catalog
from localcloud.services.compute.fingerprints import require_match, stamp_labels
from localcloud.services.compute.instances import accounts, checks
from localcloud.services.compute.instances.records import changes, require_stopped
from localcloud.services.compute.kinds import tidy
from localcloud.services.compute.links import last, url_of


@changes("setMetadata")
def set_metadata(cloud: Cloud, call: Call, record: Record) -> None:
    """Replace the metadata; running machines see it at once."""
    current = record["metadata"]["fingerprint"]
    require_match(call.body.get("fingerprint"), current, "metadata")
    record["metadata"] = checks.metadata(call.body)


@changes("setLabels")
def set_labels(cloud: Cloud, call: Call, record: Record) -> None:
    """Replace the labels."""
    require_match(call.body.get("labelFingerprint"), record["labelFingerprint"], "labels")
    record["labels"] = checks.labels(call.body.get("labels", {}))
    stamp_labels(record)


@changes("setTags")
def set_tags(cloud: Cloud, call: Call, record: Record) -> None:
    """Replace the network tags."""
    require_match(call.body.get("fingerprint"), record["tags"]["fingerprint"], "tags")
    record["tags"] = checks.tags(call.body)


@changes("setServiceAccount")
def set_service_account(cloud: Cloud, call: Call, record: Record) -> None:
    """Give a stopped instance another service account or other scopes."""
    accepted = accounts.accepted(cloud, call, [call.body])
    require_stopped(record, "The service account")
    record["serviceAccounts"] = accepted


@changes("setScheduling")
def set_scheduling(cloud: Cloud, call: Call, record: Record) -> None:
    """Change the scheduling options; whether it is spot only while it is stopped."""
    before = record["scheduling"]
    kept = {key: value for key, value in before.items() if key not in call.body}
    after = checks.scheduling(kept | tidy(call.body))
    if after["preemptible"] != before["preemptible"]:
        require_stopped(record, "The provisioning model")
    record["scheduling"] = after


@changes("setMachineType")
def set_machine_type(cloud: Cloud, call: Call, record: Record) -> None:
    """Give a stopped instance another machine type."""
    zone = call.params["zone"]
    name = last(call.body.get("machineType", ""))
    if not name:
        raise invalid("Invalid value for field 'machineType': ''. It is required.")
    catalog.machine_type(name, zone)
    require_stopped(record, "The machine type")
    record["machineType"] = url_of(f"projects/{call.project}/zones/{zone}/machineTypes/{name}")


@changes("setDeletionProtection")
def set_deletion_protection(cloud: Cloud, call: Call, record: Record) -> None:
    """Protect an instance against deletion (the default), or no longer."""
    record["deletionProtection"] = call.arg("deletionProtection", "true").lower() == "true"


@changes("updateShieldedInstanceConfig")
def update_shielded(cloud: Cloud, call: Call, record: Record) -> None:
    """Change the Shielded VM options of a stopped instance."""
    require_stopped(record, "The Shielded VM configuration")
    record["shieldedInstanceConfig"] = checks.shielded(
        record["shieldedInstanceConfig"] | tidy(call.body)
    )
