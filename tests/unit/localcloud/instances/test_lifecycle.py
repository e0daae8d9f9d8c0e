from __future__ import annotations

import pytest

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.org_policy import ORG_POLICY
from localcloud.testing import Client
from tests.unit.localcloud.instances.conftest import ZONE, Instances
from tpu_training.errors import find_known_error


@pytest.mark.server
def test_an_inserted_instance_runs_and_has_what_the_provider_reads(instances: Instances) -> None:
    operation = instances.insert(labels={"a": "b"}, tags={"items": ["web"]})
    assert operation["status"] == "DONE"
    assert "error" not in operation
    found = instances.get()
    assert found["status"] == "RUNNING"
    assert found["selfLink"].startswith("https://www.googleapis.com/compute/beta/projects/")
    assert found["disks"][0]["source"].endswith("/zones/us-central1-b/disks/vm")
    assert found["disks"][0]["deviceName"] == "persistent-disk-0"
    interface = found["networkInterfaces"][0]
    assert interface["networkIP"].startswith("10.128.")
    assert interface["subnetwork"].endswith("/regions/us-central1/subnetworks/default")
    assert "accessConfigs" not in interface
    assert found["scheduling"] == {
        "onHostMaintenance": "MIGRATE",
        "automaticRestart": True,
        "provisioningModel": "STANDARD",
        "preemptible": False,
    }
    assert found["lastStartTimestamp"]
    assert found == instances.get()


@pytest.mark.server
def test_both_versions_show_the_same_instance_with_their_own_links(
    instances: Instances, api: Client
) -> None:
    instances.insert()
    beta = instances.get()
    stable = api.get(f"{ZONE.replace('/beta/', '/v1/')}/instances/vm")
    assert stable["selfLink"] == beta["selfLink"].replace("/compute/beta/", "/compute/v1/")
    assert stable["id"] == beta["id"]


@pytest.mark.server
def test_the_boot_disk_comes_and_goes_with_the_instance(instances: Instances, api: Client) -> None:
    instances.insert()
    disk = api.get(f"{ZONE}/disks/vm")
    assert disk["sizeGb"] == "50"
    assert disk["users"] == [instances.get()["selfLink"]]
    assert "/images/debian-12-" in disk["sourceImage"]
    api.delete(f"{ZONE}/disks/vm", status=400)
    instances.delete()
    api.get(f"{ZONE}/disks/vm", status=404)


@pytest.mark.server
def test_a_disk_without_auto_delete_stays(instances: Instances, api: Client) -> None:
    body = instances.body()
    body["disks"][0]["autoDelete"] = False
    api.post(f"{ZONE}/instances", body)
    instances.delete()
    assert "users" not in api.get(f"{ZONE}/disks/vm")


@pytest.mark.server
def test_a_deleted_instance_is_gone_with_its_machine(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    instances.insert()
    assert local_cloud.cloud.machines.processes()
    instances.delete()
    instances.get(status=404)
    instances.delete(status=404)
    assert local_cloud.cloud.machines.processes() == []
    assert not list((local_cloud.cloud.home / "machines").iterdir())


@pytest.mark.server
def test_the_address_of_a_deleted_instance_is_free_again(instances: Instances) -> None:
    instances.insert()
    address = instances.get()["networkInterfaces"][0]["networkIP"]
    instances.insert("other", status=200)
    assert instances.get("other")["networkInterfaces"][0]["networkIP"] != address
    instances.delete()
    instances.insert("third")
    assert instances.get("third")["networkInterfaces"][0]["networkIP"] == address


@pytest.mark.server
def test_an_access_config_gives_an_external_address(instances: Instances) -> None:
    network = {"network": "global/networks/default", "accessConfigs": [{}]}
    instances.insert(networkInterfaces=[network])
    (config,) = instances.get()["networkInterfaces"][0]["accessConfigs"]
    assert config["natIP"].startswith("198.18.")
    assert config["type"] == "ONE_TO_ONE_NAT"


@pytest.mark.server
def test_lists_can_be_filtered_and_paged(instances: Instances, api: Client) -> None:
    for name in ("a", "b", "c"):
        instances.insert(name, labels={"team": name})
    listed = api.get(f"{ZONE}/instances", filter="labels.team=b")
    assert [item["name"] for item in listed["items"]] == ["b"]
    first = api.get(f"{ZONE}/instances", maxResults=2)
    rest = api.get(f"{ZONE}/instances", maxResults=2, pageToken=first["nextPageToken"])
    assert [item["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    everywhere = api.get(f"{ZONE.partition('/zones/')[0]}/aggregated/instances")
    assert len(everywhere["items"]["zones/us-central1-b"]["instances"]) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "VM"}, "Must be a match of regex"),
        ({"machineType": "zones/us-central1-b/machineTypes/n9-huge"}, "was not found"),
        ({"machineType": ""}, "machineType"),
        ({"disks": []}, "boot disk"),
        ({"disks": [{"boot": True}]}, "sourceImage"),
        ({"networkInterfaces": []}, "At least one network"),
        ({"networkInterfaces": [{"network": "global/networks/no"}]}, "cannot be found"),
        ({"networkInterfaces": [{"subnetwork": "no"}]}, "was not found"),
        ({"metadata": {"items": [{"key": "a"}, {"key": "a"}]}}, "Duplicate metadata keys: a"),
        ({"labels": {"Team": "x"}}, '"Team": "x"'),
        ({"tags": {"items": ["No_Tag"]}}, "No_Tag"),
        ({"guestAccelerators": [{"acceleratorCount": 1}]}, "no GPUs"),
        ({"scheduling": {"preemptible": True, "automaticRestart": True}}, "AutomaticRestart"),
        (
            {"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "MIGRATE"}},
            "TERMINATE",
        ),
        ({"scheduling": {"instanceTerminationAction": "STOP"}}, "instanceTerminationAction"),
        (
            {"serviceAccounts": [{"email": "no@body.iam.gserviceaccount.com", "scopes": ["x"]}]},
            "does not have access to service account",
        ),
    ],
)
def test_a_wrong_instance_is_refused_and_leaves_nothing_behind(
    instances: Instances, api: Client, fields: dict[str, object], said: str
) -> None:
    status = 404 if said == "was not found" else 400
    answer = api.post(f"{ZONE}/instances", instances.body() | fields, status=status)
    assert said in answer["error"]["message"]
    assert "items" not in api.get(f"{ZONE}/instances")
    assert "items" not in api.get(f"{ZONE}/disks")


@pytest.mark.server
def test_a_name_can_be_taken_once(instances: Instances) -> None:
    instances.insert()
    answer = instances.insert(status=409)
    assert "already exists" in answer["error"]["message"]


def test_a_stock_out_fails_the_operation_and_leaves_nothing(
    instances: Instances, local_cloud: LocalCloud, api: Client
) -> None:
    faults.change_setting(local_cloud.cloud, "compute.stockout", {"zones": ["us-central1-b"]})
    operation = instances.insert()
    (error,) = operation["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    instances.get(status=404)
    api.get(f"{ZONE}/disks/vm", status=404)


def known(message: str) -> str:
    """What the catalogue of errors takes Google's answer for."""
    found = find_known_error(message)
    assert found is not None, message
    return found.id


def enforce(local_cloud: LocalCloud, constraint: str, **rule: object) -> None:
    """Set an organization policy on the project."""
    key = f"projects/{DEFAULT_PROJECT}/policies/{constraint}"
    local_cloud.cloud.store.put(ORG_POLICY, key, {"spec": {"rules": [rule]}})


def test_a_policy_on_public_addresses_refuses_them_and_nothing_else(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    enforce(local_cloud, "compute.vmExternalIpAccess", denyAll=True)
    public = {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
    error = instances.insert(networkInterfaces=[public], status=412)["error"]
    assert error["errors"][0]["reason"] == "conditionNotMet"
    assert known(error["message"]) == "policy-external-ip"
    assert "error" not in instances.insert()


def test_a_policy_on_os_login_refuses_to_switch_it_off(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    enforce(local_cloud, "compute.requireOsLogin", enforce=True)
    off, on = ({"items": [{"key": "enable-oslogin", "value": v}]} for v in ("FALSE", "TRUE"))
    message = instances.insert(metadata=off, status=412)["error"]["message"]
    assert known(message) == "policy-os-login"
    assert "error" not in instances.insert(metadata=on)


def test_a_policy_on_serial_port_logging_refuses_to_switch_it_on(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    enforce(local_cloud, "compute.disableSerialPortLogging", enforce=True)
    key = "serial-port-logging-enable"
    off, on = ({"items": [{"key": key, "value": value}]} for value in ("false", "true"))
    message = instances.insert(metadata=on, status=412)["error"]["message"]
    assert known(message) == "policy"
    assert "error" not in instances.insert(metadata=off)


def test_a_machine_in_a_network_that_is_missing_is_refused_in_googles_words(
    instances: Instances,
) -> None:
    nowhere = [{"network": "global/networks/nowhere"}]
    message = instances.insert(networkInterfaces=nowhere, status=400)["error"]["message"]
    assert known(message) == "network-missing"


@pytest.mark.server
def test_a_cpu_quota_counts_the_instances_that_run(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    quota = {"CPUS": {"us-central1": 3}}
    faults.change_setting(local_cloud.cloud, "compute.quota", quota)
    assert "error" not in instances.insert()
    operation = instances.insert("other")
    (error,) = operation["error"]["errors"]
    assert error["code"] == "QUOTA_EXCEEDED"
    assert "Limit: 3.0 in region us-central1" in error["message"]
    instances.post("stop")
    assert "error" not in instances.insert("other")


@pytest.mark.server
def test_empty_fields_count_as_not_sent(instances: Instances) -> None:
    # As Google's Terraform provider sends the options that its user left out.
    sent = {
        "automaticRestart": True,
        "preemptible": False,
        "instanceTerminationAction": "",
        "maxRunDuration": None,
        "nodeAffinities": [None],
    }
    instances.insert(scheduling=sent, description="", labels={"empty": ""})
    found = instances.get()
    assert set(found["scheduling"]) == {
        "automaticRestart",
        "onHostMaintenance",
        "preemptible",
        "provisioningModel",
    }
    assert "description" not in found
    assert found["labels"] == {"empty": ""}
