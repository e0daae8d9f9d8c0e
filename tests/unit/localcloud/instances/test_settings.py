from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.access import ACCOUNT
from localcloud.testing import Client
from tests.unit.localcloud.instances.conftest import ZONE, Instances

pytestmark = pytest.mark.server

STALE = "AAAAAAAAAAA="
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"


def test_new_metadata_replaces_the_old_and_changes_the_fingerprint(instances: Instances) -> None:
    instances.insert(metadata={"items": [{"key": "a", "value": "1"}]})
    before = instances.get()["metadata"]["fingerprint"]
    items = [{"key": "b", "value": "2"}]
    instances.post("setMetadata", {"fingerprint": before, "items": items})
    after = instances.get()["metadata"]
    assert after["items"] == items
    assert after["fingerprint"] != before


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        (
            "setMetadata",
            {"fingerprint": STALE},
            "Supplied fingerprint does not match current metadata fingerprint.",
        ),
        (
            "setTags",
            {"fingerprint": STALE},
            "Supplied fingerprint does not match current tags fingerprint.",
        ),
        ("setLabels", {"labelFingerprint": STALE}, "Labels fingerprint either invalid"),
    ],
)
def test_a_stale_fingerprint_is_answered_412(
    instances: Instances, method: str, body: dict[str, str], said: str
) -> None:
    instances.insert()
    answer = instances.post(method, body, status=412)
    assert said in answer["error"]["message"]


def test_gcloud_may_send_a_fingerprint_in_the_other_alphabet(instances: Instances) -> None:
    instances.insert()
    for number in range(20):
        found = instances.get()["labelFingerprint"]
        sent = found.replace("-", "+").replace("_", "/")
        labels = {"n": str(number)}
        instances.post("setLabels", {"labelFingerprint": sent, "labels": labels})
        if sent != found:
            break
    else:
        pytest.fail("no fingerprint had a letter in which the alphabets differ")


def test_labels_and_tags_are_replaced(instances: Instances) -> None:
    instances.insert()
    found = instances.get()
    instances.post(
        "setLabels", {"labelFingerprint": found["labelFingerprint"], "labels": {"a": "b"}}
    )
    instances.post("setTags", {"fingerprint": found["tags"]["fingerprint"], "items": ["web"]})
    changed = instances.get()
    assert changed["labels"] == {"a": "b"}
    assert changed["tags"]["items"] == ["web"]
    assert changed["labelFingerprint"] != found["labelFingerprint"]


def test_the_machine_type_changes_only_while_stopped(instances: Instances) -> None:
    instances.insert()
    wanted = {"machineType": "zones/us-central1-b/machineTypes/n2-highmem-8"}
    instances.post("setMachineType", wanted, status=400)
    instances.post("stop")
    instances.post("setMachineType", wanted)
    assert instances.get()["machineType"].endswith("/machineTypes/n2-highmem-8")


def test_the_service_account_changes_only_while_stopped(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    email = f"trainer@{projects.DEFAULT_PROJECT}.iam.gserviceaccount.com"
    key = f"projects/{projects.DEFAULT_PROJECT}/serviceAccounts/{email}"
    local_cloud.cloud.store.put(ACCOUNT, key, {"email": email})
    instances.insert()
    wanted = {"email": email, "scopes": [CLOUD_PLATFORM]}
    instances.post("setServiceAccount", wanted, status=400)
    instances.post("stop")
    instances.post("setServiceAccount", wanted)
    assert instances.get()["serviceAccounts"] == [wanted]


def test_a_caller_who_may_not_act_as_the_account_gets_no_instance(
    instances: Instances, local_cloud: LocalCloud, api: Client
) -> None:
    project = f"projects/{projects.DEFAULT_PROJECT}"
    email = f"trainer@{projects.DEFAULT_PROJECT}.iam.gserviceaccount.com"
    local_cloud.cloud.store.put(ACCOUNT, f"{project}/serviceAccounts/{email}", {"email": email})
    policy = local_cloud.cloud.store.get("policy", project) or {}
    policy["bindings"].append({"role": "roles/compute.admin", "members": ["user:b@x.org"]})
    local_cloud.cloud.store.put("policy", project, policy)
    builder = Instances(api.as_member("user:b@x.org"))
    accounts = [{"email": email, "scopes": [CLOUD_PLATFORM]}]
    answer = builder.insert(status=400, serviceAccounts=accounts)
    assert "iam.serviceAccountUser" in answer["error"]["message"]
    builder.insert()
    instances.insert("other", serviceAccounts=accounts)


def test_shielded_options_and_scheduling_are_kept(instances: Instances) -> None:
    instances.insert(shieldedInstanceConfig={"enableSecureBoot": True})
    assert instances.get()["shieldedInstanceConfig"] == {
        "enableSecureBoot": True,
        "enableVtpm": True,
        "enableIntegrityMonitoring": True,
    }
    instances.post("setScheduling", {"automaticRestart": False})
    assert instances.get()["scheduling"]["automaticRestart"] is False


def test_an_external_address_is_added_and_taken_away(instances: Instances) -> None:
    instances.insert()
    instances.post("addAccessConfig", {}, networkInterface="nic0")
    (config,) = instances.get()["networkInterfaces"][0]["accessConfigs"]
    assert config["natIP"]
    instances.post("addAccessConfig", {}, status=400, networkInterface="nic0")
    instances.post("deleteAccessConfig", networkInterface="nic0", accessConfig="External NAT")
    instances.post("setSecurityPolicy", {"networkInterfaces": ["nic0"], "securityPolicy": ""})
    some = {"networkInterfaces": ["nic0"], "securityPolicy": "securityPolicies/p"}
    instances.post("setSecurityPolicy", some, status=501)
    assert "accessConfigs" not in instances.get()["networkInterfaces"][0]


def test_a_reserved_address_is_in_use_as_long_as_the_instance(
    instances: Instances, api: Client
) -> None:
    address = f"{ZONE.partition('/zones/')[0]}/regions/us-central1/addresses"
    api.post(address, {"name": "nat"})
    reserved = api.get(f"{address}/nat")["address"]
    network = {"network": "global/networks/default", "accessConfigs": [{"natIP": reserved}]}
    instances.insert(networkInterfaces=[network])
    found = api.get(f"{address}/nat")
    assert found["status"] == "IN_USE"
    assert found["users"] == [instances.get()["selfLink"]]
    api.delete(f"{address}/nat", status=400)
    refused = instances.insert("other", status=400, networkInterfaces=[network])
    assert "already being used" in refused["error"]["message"]
    api.get(f"{ZONE}/disks/other", status=404)
    instances.post("deleteAccessConfig", networkInterface="nic0", accessConfig="External NAT")
    assert api.get(f"{address}/nat")["status"] == "RESERVED"
    instances.post("addAccessConfig", {"natIP": reserved}, networkInterface="nic0")
    instances.delete()
    assert api.get(f"{address}/nat")["status"] == "RESERVED"
    api.post(address, {"name": "inside", "addressType": "INTERNAL"}, status=501)
    api.delete(f"{address}/nat")
