from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.compute import instances
from localcloud.services.iam_policy import grant
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.localcloud.groups.conftest import KEY, MANAGERS, PROJECT, ZONE, Groups

SPOT = {"provisioningModel": "SPOT", "preemptible": True, "automaticRestart": False}


def test_a_group_creates_its_target_size_from_its_template(groups: Groups) -> None:
    groups.insert(targetSize=2)
    first, second = groups.managed()
    assert first.startswith("g-")
    assert first != second
    assert groups.instance(first)["machineType"].endswith("/n1-standard-2")
    assert groups.get()["status"]["isStable"]
    groups.post("resize", size=1)
    assert len(groups.managed()) == groups.get()["targetSize"] == 1
    groups.instance(second, status=404)


def test_an_instance_with_a_name_of_its_own_knows_its_group_and_what_is_kept_for_it(
    groups: Groups,
) -> None:
    groups.insert()
    groups.create("vm", preservedState={"metadata": {"role": "trainer"}})
    items = {i["key"]: i["value"] for i in groups.instance("vm")["metadata"]["items"]}
    assert items["role"] == "trainer"
    assert items["created-by"].endswith("/instanceGroupManagers/g")
    assert items["instance-template"].endswith("/instanceTemplates/t")
    (config,) = groups.post("listPerInstanceConfigs")["items"]
    assert (config["name"], config["status"]) == ("vm", "EFFECTIVE")
    assert groups.get()["targetSize"] == 1
    groups.create("vm", status=409)


@pytest.mark.parametrize("action", ["STOP", "DELETE"])
def test_a_preempted_instance_comes_back_under_its_name(
    action: str, groups: Groups, clock: VirtualClock, local_cloud: LocalCloud
) -> None:
    groups.template("spot", scheduling=SPOT | {"instanceTerminationAction": action})
    groups.insert(instanceTemplate="global/instanceTemplates/spot")
    groups.create("vm")
    before = groups.instance("vm")["id"]
    instances.preempt(local_cloud.cloud, f"{KEY}vm")
    assert groups.managed()["vm"]["currentAction"] == "RECREATING"
    clock.advance(2)
    after = groups.instance("vm")
    assert after["status"] == "RUNNING"
    assert after["id"] != before
    assert groups.managed()["vm"]["currentAction"] == "NONE"


def test_a_group_recreates_an_instance_that_was_deleted_or_stopped(
    groups: Groups, clock: VirtualClock
) -> None:
    groups.insert()
    groups.create("vm")
    for method in ("delete", "stop"):
        before = groups.instance("vm")["id"]
        if method == "delete":
            groups.api.delete(f"{ZONE}/instances/vm")
        else:
            groups.api.post(f"{ZONE}/instances/vm/stop")
        clock.advance(2)
        assert groups.instance("vm")["id"] != before


def test_a_group_that_finds_no_room_says_why_and_asks_again(
    groups: Groups, clock: VirtualClock, local_cloud: LocalCloud
) -> None:
    local_cloud.cloud.store.put("setting", "compute.stockout", {"zones": ["us-central1-b"]})
    groups.insert()
    groups.create("vm")
    managed = groups.managed()["vm"]
    assert managed["currentAction"] == "CREATING"
    (error,) = managed["lastAttempt"]["errors"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    (listed,) = groups.api.get(f"{MANAGERS}/g/listErrors")["items"]
    assert listed["error"] == error
    assert listed["instanceActionDetails"]["action"] == "CREATING"
    assert not groups.get()["status"]["isStable"]
    local_cloud.cloud.store.delete("setting", "compute.stockout")
    clock.advance(31)
    assert groups.instance("vm")["status"] == "RUNNING"
    assert groups.managed()["vm"]["lastAttempt"] == {}
    assert groups.api.get(f"{MANAGERS}/g/listErrors") == {}


def test_a_deleted_group_deletes_its_instances_and_frees_its_template(groups: Groups) -> None:
    groups.insert()
    groups.create("vm")
    url = f"{PROJECT}/global/instanceTemplates/t"
    refusal = groups.api.delete(url, status=400)["error"]["message"]
    assert "The instance_template resource" in refusal
    assert "is already being used by" in refusal
    groups.api.delete(f"{MANAGERS}/g")
    groups.get(status=404)
    groups.instance("vm", status=404)
    groups.api.delete(url)


def test_an_instance_that_the_group_deletes_does_not_come_back(
    groups: Groups, clock: VirtualClock
) -> None:
    groups.insert()
    groups.create("one", "two")
    url = "zones/us-central1-b/instances/"
    groups.post("deleteInstances", {"instances": [f"{url}one"]})
    clock.advance(60)
    assert list(groups.managed()) == ["two"]
    groups.instance("one", status=404)
    groups.post("deleteInstances", {"instances": [f"{url}one"]}, status=400)


def test_an_action_that_was_still_to_come_is_done_after_a_restart(
    groups: Groups, clock: VirtualClock, local_cloud: LocalCloud, machines: FakeMachines
) -> None:
    groups.insert()
    groups.create("vm")
    groups.api.delete(f"{ZONE}/instances/vm")
    # What a restart does: the clock has forgotten everything, the store nothing.
    clock._due.clear()
    local_cloud.cloud.operations.resume()
    clock.advance(2)
    assert KEY + "vm" in machines.specs


def test_unsupported_requests_are_refused(groups: Groups) -> None:
    groups.insert(targetPools=["regions/us-central1/targetPools/p"], status=501)
    groups.insert(instanceLifecyclePolicy={"defaultActionOnFailure": "DO_NOTHING"}, status=501)
    groups.insert()
    disks = {"disks": {"data": {"source": "zones/us-central1-b/disks/d"}}}
    groups.create("vm", preservedState=disks, status=501)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"name": "Group"}, 400),
        ({"baseInstanceName": "a" * 59}, 400),
        ({"instanceTemplate": ""}, 400),
        ({"instanceTemplate": "global/instanceTemplates/missing"}, 404),
        ({"autoHealingPolicies": [{"healthCheck": "global/healthChecks/missing"}]}, 404),
    ],
)
def test_a_wrong_group_is_refused(groups: Groups, fields: dict[str, object], status: int) -> None:
    groups.insert(status=status, **fields)


def test_a_template_is_found_by_its_name_and_its_number_and_is_never_changed(
    groups: Groups,
) -> None:
    url = f"{PROJECT}/global/instanceTemplates"
    template = groups.api.get(f"{url}/t")
    assert groups.api.get(f"{url}/{template['id']}") == template
    assert template["properties"]["scheduling"]["provisioningModel"] == "STANDARD"
    groups.template("t", status=409)
    groups.template("u", machineType="zones/us-central1-b/machineTypes/n1-standard-2", status=400)
    groups.template("u", disks=[], status=400)
    groups.api.post(
        f"{ZONE}/instances",
        {"name": "by-itself"},
        sourceInstanceTemplate="global/instanceTemplates/t",
    )
    assert groups.instance("by-itself")["status"] == "RUNNING"


def test_a_viewer_sees_groups_and_makes_none(groups: Groups, api: Client) -> None:
    groups.insert()
    stranger = Groups(api.as_member("user:stranger@example.com"))
    stranger.insert(status=403, name="h")
    stranger.get(status=403)


def test_a_manager_alone_can_not_delete_its_group(groups: Groups, cloud: Cloud) -> None:
    projects.enable_services(cloud, DEFAULT_PROJECT, ("iam.googleapis.com",))
    groups.insert()
    groups.create("vm")
    member = "user:operator@example.com"
    manages = ["delete", "update"]
    rights = [f"compute.instanceGroupManagers.{verb}" for verb in manages]
    iam = f"iam.googleapis.com/v1/projects/{DEFAULT_PROJECT}/roles"
    role = {"roleId": "manages", "role": {"includedPermissions": rights}}
    grant(cloud, f"projects/{DEFAULT_PROJECT}", groups.api.post(iam, role)["name"], member)
    operator = groups.api.as_member(member)
    denied = operator.delete(f"{MANAGERS}/g", status=403)
    assert "compute.instanceGroups.delete" in denied["error"]["message"]
    both = [*rights, "compute.instanceGroups.delete"]
    groups.api.patch(f"{iam}/manages", {"includedPermissions": both})
    operator.delete(f"{MANAGERS}/g")
