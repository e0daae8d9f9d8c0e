"""Data disks of TPU VMs, and the snapshots that they are made from."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core.call import Json
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = "projects/tpu-stack-local"
COMPUTE = f"compute.googleapis.com/compute/v1/{PROJECT}"
ZONE = "us-central1-b"
VM: Json = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
V6E: Json = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}


def nodes(zone: str = ZONE) -> str:
    return f"tpu.googleapis.com/v2alpha1/{PROJECT}/locations/{zone}/nodes"


@pytest.fixture
def disk(tpu: Client) -> Any:
    """Makes a disk and answers its path."""

    def make(name: str = "d", kind: str = "pd-balanced", zone: str = ZONE, **more: Any) -> str:
        type_ = f"projects/tpu-stack-local/zones/{zone}/diskTypes/{kind}"
        body = {"name": name, "type": type_, "sizeGb": "10", **more}
        tpu.post(f"{COMPUTE}/zones/{zone}/disks", body)
        return f"{PROJECT}/zones/{zone}/disks/{name}"

    return make


def test_a_tpu_vm_has_its_disks_and_writes_to_them_unless_told_otherwise(
    tpu: Client, disk: Any
) -> None:
    sent = [{"sourceDisk": disk("a")}, {"sourceDisk": disk("b"), "mode": "READ_ONLY"}]
    tpu.post(nodes(), VM | {"dataDisks": sent}, nodeId="t")
    modes = [one["mode"] for one in tpu.get(f"{nodes()}/t")["dataDisks"]]
    assert modes == ["READ_WRITE", "READ_ONLY"]


def test_a_disk_cannot_be_deleted_while_a_tpu_vm_has_it(tpu: Client, disk: Any) -> None:
    path = disk()
    tpu.post(nodes(), VM | {"dataDisks": [{"sourceDisk": path}]}, nodeId="t")
    answer = tpu.delete(f"compute.googleapis.com/compute/v1/{path}", status=400)
    assert answer["error"]["errors"][0]["reason"] == "resourceInUseByAnotherResource"
    tpu.patch(f"{nodes()}/t", {"dataDisks": []}, updateMask="dataDisks")
    tpu.delete(f"compute.googleapis.com/compute/v1/{path}")


def test_a_disk_that_is_attached_later_is_held_too(tpu: Client, disk: Any) -> None:
    path = disk()
    tpu.post(nodes(), VM, nodeId="t")
    tpu.patch(f"{nodes()}/t", {"dataDisks": [{"sourceDisk": path}]}, updateMask="data_disks")
    tpu.delete(f"compute.googleapis.com/compute/v1/{path}", status=400)
    # The same disk again is no second user of it.
    tpu.patch(f"{nodes()}/t", {"dataDisks": [{"sourceDisk": path}]}, updateMask="dataDisks")
    tpu.delete(f"{nodes()}/t")
    tpu.delete(f"compute.googleapis.com/compute/v1/{path}")


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ("READ_ONLY", "READ_ONLY", True),
        ("READ_ONLY", "READ_WRITE", False),
        ("READ_WRITE", "READ_ONLY", False),
        ("READ_WRITE", "READ_WRITE", False),
    ],
)
def test_a_disk_has_one_writer_or_any_number_of_readers(
    tpu: Client, disk: Any, first: str, second: str, allowed: bool
) -> None:
    path = disk()
    tpu.post(nodes(), VM | {"dataDisks": [{"sourceDisk": path, "mode": first}]}, nodeId="a")
    body = VM | {"dataDisks": [{"sourceDisk": path, "mode": second}]}
    tpu.post(nodes(), body, nodeId="b", status=200 if allowed else 400)


def test_an_instance_cannot_write_to_a_disk_that_a_tpu_vm_has(tpu: Client, disk: Any) -> None:
    path = disk()
    tpu.post(nodes(), VM | {"dataDisks": [{"sourceDisk": path}]}, nodeId="t")
    body = machine(ZONE, name="vm")
    body["disks"].append({"source": path})
    answer = tpu.post(f"{COMPUTE}/zones/{ZONE}/instances", body, status=400)
    assert f"{nodes().partition('v2alpha1/')[2]}/t" in answer["error"]["message"]


def test_more_than_one_host_may_only_read(tpu: Client, disk: Any) -> None:
    path = disk(zone="europe-west4-a")
    slice_ = VM | {"acceleratorType": "v2-32"}
    wrong = slice_ | {"dataDisks": [{"sourceDisk": path}]}
    answer = tpu.post(nodes("europe-west4-a"), wrong, nodeId="t", status=400)
    assert "there are 4 TPU workers" in answer["error"]["message"]
    right = slice_ | {"dataDisks": [{"sourceDisk": path, "mode": "READ_ONLY"}]}
    tpu.post(nodes("europe-west4-a"), right, nodeId="t")


def test_slices_of_one_request_may_only_read(tpu: Client, disk: Any) -> None:
    queue = f"tpu.googleapis.com/v2alpha1/{PROJECT}/locations/{ZONE}/queuedResources"
    body = VM | {"dataDisks": [{"sourceDisk": disk()}]}
    several = {"nodeIdPrefix": "t", "nodeCount": 2}
    parent = f"{PROJECT}/locations/{ZONE}"
    spec = {"parent": parent, "multiNodeParams": several, "node": body}
    answer = tpu.post(queue, {"tpu": {"nodeSpec": [spec]}}, queuedResourceId="q", status=400)
    assert "there are 2 TPU workers" in answer["error"]["message"]


def test_a_tpu_takes_disks_of_its_own_kinds_alone(tpu: Client, disk: Any) -> None:
    for vm, kind in ((VM, "hyperdisk-balanced"), (V6E, "pd-balanced")):
        path = disk(f"d-{kind}", kind)
        body = vm | {"dataDisks": [{"sourceDisk": path}]}
        answer = tpu.post(nodes(), body, nodeId="t", status=400)
        assert f"is a {kind}" in answer["error"]["message"]


def test_a_hyperdisk_ml_is_shared_only_if_it_says_so(tpu: Client, disk: Any) -> None:
    alone = {"sourceDisk": disk("alone", "hyperdisk-ml"), "mode": "READ_ONLY"}
    shared = {
        "sourceDisk": disk("shared", "hyperdisk-ml", accessMode="READ_ONLY_MANY"),
        "mode": "READ_ONLY",
    }
    tpu.post(nodes(), V6E | {"dataDisks": [alone, shared]}, nodeId="a")
    tpu.post(nodes(), V6E | {"dataDisks": [shared]}, nodeId="b")
    answer = tpu.post(nodes(), V6E | {"dataDisks": [alone]}, nodeId="c", status=400)
    assert "not READ_ONLY_MANY" in answer["error"]["message"]
    tpu.post(
        f"{COMPUTE}/zones/{ZONE}/disks",
        {"name": "x", "accessMode": "READ_ONLY_MANY", "sizeGb": "10"},
        status=400,
    )


def test_a_disk_is_given_once_and_in_the_zone_and_not_too_often(tpu: Client, disk: Any) -> None:
    path, elsewhere = disk(), disk("e", zone="us-central1-c")
    for disks, said in (
        ([{"sourceDisk": path}] * 2, "more than once"),
        ([{"sourceDisk": elsewhere}], f"is not in zone {ZONE}"),
        ([{"sourceDisk": path}] * 128, "at most 127 data disks"),
    ):
        answer = tpu.post(nodes(), VM | {"dataDisks": disks}, nodeId="t", status=400)
        assert said in answer["error"]["message"]


def test_a_disk_can_be_made_from_a_snapshot_and_outlives_it(tpu: Client, disk: Any) -> None:
    source = disk("source", sizeGb="20")
    made = tpu.post(f"compute.googleapis.com/compute/v1/{source}/createSnapshot", {"name": "s"})
    assert (made["operationType"], made["status"]) == ("createSnapshot", "DONE")
    snapshot = tpu.get(f"{COMPUTE}/global/snapshots/s")
    assert (snapshot["diskSizeGb"], snapshot["status"]) == ("20", "READY")
    tpu.delete(f"compute.googleapis.com/compute/v1/{source}")
    copy = {"name": "copy", "sourceSnapshot": f"{PROJECT}/global/snapshots/s"}
    tpu.post(f"{COMPUTE}/zones/{ZONE}/disks", copy)
    assert tpu.get(f"{COMPUTE}/zones/{ZONE}/disks/copy")["sizeGb"] == "20"
    small = copy | {"name": "small", "sizeGb": "10"}
    answer = tpu.post(f"{COMPUTE}/zones/{ZONE}/disks", small, status=400)
    assert "smaller than the snapshot size (20 GB)" in answer["error"]["message"]
    tpu.delete(f"{COMPUTE}/global/snapshots/s")
    assert tpu.get(f"{COMPUTE}/zones/{ZONE}/disks/copy")["status"] == "READY"


def test_slices_of_one_request_are_told_of_each_other(tpu: Client, machines: FakeMachines) -> None:
    queue = f"tpu.googleapis.com/v2alpha1/{PROJECT}/locations/{ZONE}/queuedResources"
    several = {"nodeIdPrefix": "t", "nodeCount": 2}
    parent = f"{PROJECT}/locations/{ZONE}"
    spec = {"parent": parent, "multiNodeParams": several, "node": VM}
    tpu.post(queue, {"tpu": {"nodeSpec": [spec]}}, queuedResourceId="q")
    told = [machines.specs[key].attributes["tpu-env"] for key in sorted(machines.specs)]
    for number, env in enumerate(told):
        assert "MEGASCALE_NUM_SLICES: '2'" in env
        assert f"MEGASCALE_SLICE_ID: '{number}'" in env
        assert f"NODE_ID: 't-{number}'" in env


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bootDiskConfig": {"diskSizeGb": "50"}}, "disk_size_gb 50"),
        ({"serviceAccount": {"scope": ["cloud-platform"]}}, 'scope, "cloud-platform"'),
    ],
)
def test_an_impossible_machine_is_refused(tpu: Client, change: Json, said: str) -> None:
    answer = tpu.post(nodes(), VM | change, nodeId="t", status=400)
    assert said in answer["error"]["message"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"guaranteed": {"minDuration": "an hour"}}, "an hour"),
        ({"reservationName": "ours"}, "reservation_name 'ours'"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(tpu: Client, change: Json, said: str) -> None:
    queue = f"tpu.googleapis.com/v2alpha1/{PROJECT}/locations/{ZONE}/queuedResources"
    spec = {"parent": f"{PROJECT}/locations/{ZONE}", "nodeId": "t", "node": VM}
    body = {"tpu": {"nodeSpec": [spec]}, **change}
    assert said in tpu.post(queue, body, queuedResourceId="q", status=400)["error"]["message"]
