from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.services.compute.instances import preempt
from tests.patience import until
from tests.unit.localcloud.instances.conftest import ZONE, Instances

pytestmark = pytest.mark.server

PATH = f"{ZONE.partition('/beta/')[2]}/instances/vm"
SPOT = {"provisioningModel": "SPOT", "preemptible": True, "automaticRestart": False}
# The script's own output ends with its runner, at the first signal; a unit's does not.
LOOP = """cat >loop.sh <<'END'
trap "echo asked to end; exit 0" TERM
echo up
while :; do sleep 0.1; done
END
systemd-run --unit=loop -p StandardOutput=journal+console bash loop.sh
"""


def script(text: str) -> Json:
    return {"items": [{"key": "startup-script", "value": text}]}


def output(instances: Instances, name: str = "vm") -> str:
    url = f"instances/{name}/serialPort"
    answer = instances.api.get(f"{ZONE}/{url}")
    contents: str = answer["contents"]
    return contents


def ready(instances: Instances, text: str, name: str = "vm") -> None:
    until(lambda: text in output(instances, name))


def test_the_start_up_script_runs_and_its_output_is_the_serial_port(instances: Instances) -> None:
    instances.insert(metadata=script("echo hello from $(hostname); exit 3"))
    ready(instances, "Finished running startup scripts.")
    text = output(instances)
    assert "startup-script: hello from vm\n" in text
    assert 'Script "startup-script" failed with error: exit status 3\n' in text


def test_the_serial_port_is_read_on_from_where_the_last_read_ended(instances: Instances) -> None:
    instances.insert(metadata=script("echo first"))
    ready(instances, "Finished running startup scripts.")
    url = f"{ZONE}/instances/vm/serialPort"
    first = instances.api.get(url)
    second = instances.api.get(url, start=first["next"])
    assert second["contents"] == ""
    assert second["start"] == second["next"] == first["next"]
    instances.api.get(url, status=400, port=9)


def test_a_stopped_instance_has_no_process_and_starts_again(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    instances.insert(metadata=script(LOOP))
    ready(instances, "]: up")
    instances.post("stop")
    found = instances.get()
    assert found["status"] == "TERMINATED"
    assert found["lastStopTimestamp"]
    assert local_cloud.cloud.machines.processes() == []
    assert "asked to end" in output(instances)
    instances.post("stop")
    instances.post("start")
    assert instances.get()["status"] == "RUNNING"
    until(lambda: output(instances).count("]: up") == 2)


def test_a_reset_reboots_without_a_clean_shutdown(instances: Instances) -> None:
    instances.insert(metadata=script(LOOP))
    ready(instances, "]: up")
    instances.post("reset")
    until(lambda: output(instances).count("]: up") == 2)
    assert instances.get()["status"] == "RUNNING"


def test_a_guest_that_shuts_down_leaves_a_terminated_instance(instances: Instances) -> None:
    instances.insert(metadata=script("shutdown -h now"))
    until(lambda: instances.get()["status"] == "TERMINATED")


def test_a_preempted_instance_hears_of_it_and_is_stopped(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    wait = (
        "url=http://metadata.google.internal/computeMetadata/v1/instance/preempted\n"
        "curl -sS -H Metadata-Flavor:Google $url; echo; echo waiting\n"
        "trap 'echo asked to end' TERM\n"
        "echo now $(curl -sS -H Metadata-Flavor:Google $url?wait_for_change=true)\n"
    )
    instances.insert(scheduling=SPOT, metadata=script(wait))
    ready(instances, "startup-script: waiting")
    preempt(local_cloud.cloud, PATH)
    assert instances.get()["status"] == "TERMINATED"
    text = output(instances)
    assert "startup-script: FALSE" in text
    instances.post("start")
    assert instances.get()["status"] == "RUNNING"


def test_a_preempted_instance_is_deleted_if_its_termination_action_says_so(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    instances.insert(scheduling=SPOT | {"instanceTerminationAction": "DELETE"})
    preempt(local_cloud.cloud, PATH)
    instances.get(status=404)


@pytest.mark.parametrize(("scheduling", "status"), [(SPOT, "TERMINATED"), ({}, "RUNNING")])
def test_simulated_maintenance_preempts_a_spot_instance_alone(
    instances: Instances, scheduling: dict[str, str], status: str
) -> None:
    instances.insert(scheduling=scheduling)
    instances.post("simulateMaintenanceEvent")
    until(lambda: instances.get()["status"] == status)


def test_guest_attributes_can_be_read_from_outside(instances: Instances) -> None:
    write = (
        "url=http://metadata.google.internal/computeMetadata/v1/instance/guest-attributes\n"
        "curl -sS -X PUT -H Metadata-Flavor:Google --data 42 $url/training/step; echo done\n"
    )
    items = script(write)["items"] + [{"key": "enable-guest-attributes", "value": "TRUE"}]
    instances.insert(metadata={"items": items})
    ready(instances, "startup-script: done")
    url = f"{ZONE}/instances/vm/getGuestAttributes"
    one = instances.api.get(url, variableKey="training/step")
    assert one["variableValue"] == "42"
    below = instances.api.get(url, queryPath="training/")
    assert below["queryValue"]["items"] == [{"namespace": "training", "key": "step", "value": "42"}]
    instances.api.get(url, status=404, queryPath="other/")


def test_guest_attributes_are_closed_unless_the_metadata_opens_them(instances: Instances) -> None:
    instances.insert()
    instances.api.get(f"{ZONE}/instances/vm/getGuestAttributes", status=403, queryPath="a/")


def test_changed_metadata_reaches_the_running_machine(instances: Instances) -> None:
    wait = (
        "url=http://metadata.google.internal/computeMetadata/v1/instance/attributes/order\n"
        "get() { curl -sS -D headers -H Metadata-Flavor:Google $1; }\n"
        "echo got $(get $url); etag=$(sed -n 's/^etag: //Ip' headers | tr -d '\\r')\n"
        'echo got $(get "$url?wait_for_change=true&last_etag=$etag")\n'
    )
    items = [*script(wait)["items"], {"key": "order", "value": "first"}]
    instances.insert(metadata={"items": items})
    ready(instances, "got first")
    fingerprint = instances.get()["metadata"]["fingerprint"]
    items[1]["value"] = "second"
    instances.post("setMetadata", {"fingerprint": fingerprint, "items": items})
    ready(instances, "got second")


def test_a_boot_disk_that_stays_has_what_was_written_on_it(
    instances: Instances, local_cloud: LocalCloud
) -> None:
    image = "projects/debian-cloud/global/images/family/debian-12"
    disk = {"name": "kept", "sizeGb": "10", "sourceImage": image}
    instances.api.post(f"{ZONE}/disks", disk)
    attached = {"boot": True, "autoDelete": False, "source": "zones/us-central1-b/disks/kept"}
    look = "if [[ -e mark ]]; then echo it is there; else touch mark; echo it is new; fi"
    for said in ("it is new", "it is there"):
        instances.insert(disks=[attached], metadata=script(f"cd; {look}"))
        ready(instances, f"startup-script: {said}")
        instances.delete()
    assert [folder.name for folder in (local_cloud.cloud.home / "machines").iterdir()]
    instances.api.delete(f"{ZONE}/disks/kept")
    assert list((local_cloud.cloud.home / "machines").iterdir()) == []
