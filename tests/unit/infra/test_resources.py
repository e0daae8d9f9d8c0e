"""What the program declares, with an engine that only records; every output is awaited."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks as pulumi_mocks

from tpu_agent import main as machine
from tpu_agent.bundle import program
from tpu_infra.components.identity import week
from tpu_infra.components.machine import properties_of_job
from tpu_infra.program import OUTPUTS
from tpu_infra.resources.request import body_of
from tpu_infra.settings.base import SettingsError

from .conftest import NEEDS_NODES, REPOSITORY, Engine, Run, config

NODE = {
    "acceleratorType": "v2-8",
    "tensorflowVersion": "2.12.1",
    "cidrBlock": "10.240.1.0/29",
}
POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
ON_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-se"}


def test_a_wrong_stack_declares_nothing(run: Run) -> None:
    with pytest.raises(SettingsError):
        run(config(zone="us-central1-a"))


def test_the_tpu_vm_is_exported_with_the_endpoint_of_worker_0_first(run: Run) -> None:
    slices = {"acceleratorType": "v3-32", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
    engine, outputs = run(config(zone="europe-west4-a", tpu=slices), hosts=4)
    assert outputs["tpu_endpoints"] == [f"grpc://10.10.0.{host}:8470" for host in (2, 3, 4, 5)]
    assert outputs["tpu_endpoint"] == "grpc://10.10.0.2:8470"
    assert outputs["tpu_name"] == engine.one("V2Vm")["name"] == "tpu-stack-test-tpu"


@NEEDS_NODES
def test_the_classic_node_has_the_same_outputs(run: Run) -> None:
    engine, outputs = run(config(architecture="node", tpu=NODE))
    assert outputs["tpu_endpoints"] == ["grpc://10.10.0.2:8470"]
    node = engine.one("Node")
    assert (node["tensorflowVersion"], node["cidrBlock"]) == ("2.12.1", "10.240.1.0/29")


@NEEDS_NODES
@pytest.mark.parametrize("bucket", [{}, {"create": False, "name": "our-data"}])
def test_the_classic_node_may_use_the_bucket_by_itself(run: Run, bucket: dict[str, object]) -> None:
    engine, outputs = run(config(architecture="node", tpu=NODE, bucket=bucket))
    roles = {
        grant.name: grant.inputs["role"]
        for grant in engine.of("BucketIAMMember")
        if grant.inputs["member"] == "serviceAccount:tpu@cloud-tpu.google"
        and grant.inputs["bucket"] == outputs["bucket_name"]
    }
    # Another name would take the grant away from a stack that has it.
    assert roles == {
        "tpu-objectUser": "roles/storage.objectUser",
        "tpu-legacyBucketReader": "roles/storage.legacyBucketReader",
    }


@NEEDS_NODES
def test_with_recovery_no_machine_may_change_what_the_stack_declares(run: Run) -> None:
    preemptible = {**NODE, "capacity": "preemptible"}
    settings = config(architecture="node", tpu=preemptible, recovery={"enabled": True})
    engine, outputs = run(settings)
    grants = [grant.inputs for grant in engine.of("BucketIAMMember")]
    assert len({grant["member"] for grant in grants}) == 2
    path = f"projects/_/buckets/{outputs['bucket_name']}/objects/agent/declaration.json"
    for grant in grants:
        expression = grant.get("condition", {}).get("expression")
        writes = grant["role"] == "roles/storage.objectUser"
        assert expression == (f'!resource.name.startsWith("{path}")' if writes else None)
    reads = [grant for grant in grants if grant["role"] == "roles/storage.objectViewer"]
    assert len(reads) == 2


@pytest.mark.parametrize("queued", [None, {}])
def test_a_tpu_vm_uses_the_bucket_as_the_stacks_own_account_and_as_no_other(
    run: Run, queued: dict[str, object] | None
) -> None:
    engine, outputs = run(config(tpu={**POD, "queued": queued}))
    members = {grant.inputs["member"] for grant in engine.of("BucketIAMMember")}
    assert members == {f"serviceAccount:{outputs['service_account']}"}


@pytest.mark.parametrize(
    ("capacity", "tier"),
    [
        ("on-demand", {}),
        ("spot", {"spot": {}}),
        ("preemptible", {"bestEffort": {}}),
        ("reserved", {"guaranteed": {"reserved": True}}),
    ],
)
def test_a_queued_tpu_is_asked_for_as_the_stack_says(
    run: Run, capacity: str, tier: dict[str, object]
) -> None:
    queued = {"queued": {"validUntil": "2027-01-31T18:00:00+01:00"}, "capacity": capacity}
    engine, outputs = run(config(tpu={**POD, **queued}, labels={"team": "vision"}))
    entry = engine.dynamic("QueuedResource")
    (spec,) = entry["request"].pop("tpu")["nodeSpec"]
    assert entry["request"] == tier
    assert entry["queueing"] == {"validUntilTime": "2027-01-31T17:00:00Z"}
    assert entry["labels"]["team"] == "vision"
    assert spec["nodeId"] == outputs["tpu_name"]
    assert spec["node"]["serviceAccount"]["email"] == outputs["service_account"]


LITE = {"acceleratorType": "v5litepod-4", "runtimeVersion": "tpu-vm-tf-2.16.1-pod-pjrt"}


@pytest.mark.parametrize(
    ("zone", "warned"), [("us-west4-a", False), ("us-central1-a", False), ("us-west1-c", True)]
)
def test_a_tpu_for_a_while_says_for_how_long_and_where_google_does_not_name_it(
    run: Run, zone: str, warned: bool
) -> None:
    tpu = {**LITE, "capacity": "flex-start", "queued": {"runHours": 2.5}}
    engine, _ = run(config(zone=zone, tpu=tpu), preview=True)
    entry = engine.dynamic("QueuedResource")
    del entry["request"]["tpu"]
    assert entry["request"] == {
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "9000s"},
    }
    assert any("Google deletes it 2.5 hours after its creation." in said for said in engine.notes)
    assert any("documents flex-start for v5e" in said for said in engine.warnings) == warned


def test_a_reservation_in_calendar_mode_binds_the_tpu_to_its_end(run: Run) -> None:
    queued = {"reservation": "march", "reservationBound": True}
    engine, _ = run(config(tpu={**POD, "capacity": "reserved", "queued": queued}), preview=True)
    entry = engine.dynamic("QueuedResource")
    del entry["request"]["tpu"]
    place = "projects/some-project/locations/us-central1-b"
    assert entry["request"] == {
        "provisioningModel": "RESERVATION_BOUND",
        "reservationName": f"{place}/reservations/march",
    }
    assert any("when the reservation ends" in said for said in engine.notes)


def test_a_queued_tpu_is_exported_when_it_is_ready(run: Run) -> None:
    _, outputs = run(config(tpu={**POD, "queued": {}}), hosts=2)
    assert outputs["tpu_endpoints"] == ["grpc://10.10.0.2:8470", "grpc://10.10.0.3:8470"]


def test_the_preview_of_a_queued_tpu_says_that_its_tpu_vm_goes_with_it(run: Run) -> None:
    engine, _ = run(config(tpu={**POD, "queued": {"waitMinutes": 90}}), preview=True)
    _, said = engine.notes
    assert "at most 90 minutes" in said
    assert "also deletes its TPU VM, even" in said


def test_the_preview_says_what_the_stack_costs_and_the_update_does_not_repeat_it(run: Run) -> None:
    engine, _ = run(config(), preview=True)
    (said,) = engine.notes
    assert said.startswith("Stack test in us-central1, US dollars\n")
    assert "TPU     v2-8, on-demand" in said
    assert said.endswith(
        "\n\nTPU and VM cost $4.61 an hour until `pulumi destroy --stack test`, even "
        "after training ends or fails. The stack has no limits, so nothing else stops the TPU "
        "(limits.idleMinutes)."
    )
    assert run(config())[0].notes == []


def test_the_preview_names_the_command_that_spares_a_protected_bucket(run: Run) -> None:
    engine, _ = run(config(bucket={"protect": True}), preview=True)
    assert "`pulumi destroy --exclude-protected --stack test`" in engine.notes[-1]


def test_a_queued_tpu_may_run_the_trainer_itself(run: Run) -> None:
    engine, _ = run(config(tpu={**POD, "queued": {}}, training={"runOn": "tpu"}))
    (spec,) = engine.dynamic("QueuedResource")["request"]["tpu"]["nodeSpec"]
    assert spec["node"]["metadata"]["tpu-runs-training"] == "true"


def test_every_documented_output_is_exported_and_no_other(run: Run) -> None:
    _, outputs = run(config())
    assert sorted(outputs) == sorted(OUTPUTS)


def test_the_page_documents_exactly_the_outputs() -> None:
    page = (REPOSITORY / "docs" / "how-it-works.md").read_text("utf-8")
    table = page.partition("### Outputs")[2].partition("\n## ")[0]
    rows = dict(line.strip("| ").split(" | ") for line in table.splitlines() if "| `" in line)
    assert rows == {f"`{name}`": meaning for name, meaning in OUTPUTS.items()}


def test_a_preview_knows_no_endpoint_but_every_name(run: Run) -> None:
    _, outputs = run(config(), preview=True)
    unknown = {name for name, value in outputs.items() if value is None}
    ids = {"service_account", "network", "subnetwork"}
    assert {"tpu_endpoint", "tpu_endpoints", *ids} >= unknown
    assert "tpu_endpoint" in unknown


def test_the_vm_has_the_full_scope_an_account_of_its_own_and_no_public_address(run: Run) -> None:
    engine, outputs = run(config())
    vm = engine.one("Instance")
    assert vm["serviceAccount"] == {
        "email": outputs["service_account"],
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    assert vm["networkInterfaces"][0].get("accessConfigs", []) == []


def test_a_public_address_is_given_where_the_stack_asks_for_it(run: Run) -> None:
    engine, _ = run(config(vm={"publicIp": True}))
    assert engine.one("Instance")["networkInterfaces"][0]["accessConfigs"] == [{}]


def test_the_vm_is_told_everything_that_its_start_up_script_reads(run: Run, root: Path) -> None:
    engine, outputs = run(config(training={"args": ["--epochs=2"], "job": "mnist-1"}))
    vm = engine.one("Instance")
    metadata = vm["metadata"]
    assert metadata["tpu-name"] == outputs["tpu_name"]
    assert (metadata["tpu-zone"], metadata["tpu-project"]) == ("us-central1-b", "some-project")
    assert metadata["bucket-url"] == outputs["bucket_url"]
    assert metadata["training-wheel"].startswith(f"{outputs['bucket_url']}/wheels/")
    assert len(metadata["training-wheel-sha256"]) == 64
    assert json.loads(metadata["training-args"]) == ["--epochs=2"]
    assert metadata["training-tensorflow"] == "2.18.0"
    assert metadata["training-job"].startswith("mnist-1-")
    assert outputs["job_url"] == f"{outputs['bucket_url']}/jobs/{metadata['training-job']}"
    script = vm["metadataStartupScript"]
    googles = {"enable-oslogin", "serial-port-logging-enable"}
    read = [key for key in metadata if key not in googles and f"attribute {key}" in script]
    # At each start of the trainer, not only at a boot.
    by_agent = {"cost-note"}
    assert "Metadata.COST_NOTE" in inspect.getsource(machine)
    assert sorted(read) == sorted(set(metadata) - googles - by_agent)


def test_a_machine_is_replaced_for_another_job_and_for_nothing_else_in_its_metadata(
    run: Run,
) -> None:
    engine, _ = run(config())
    assert properties_of_job(engine.one("Instance")["metadata"]) == [
        'metadata["training-args"]',
        'metadata["training-job"]',
        'metadata["training-jobs"]',
        'metadata["training-tensorflow"]',
        'metadata["training-wheel"]',
        'metadata["training-wheel-sha256"]',
    ]


def test_the_wheel_lies_where_the_metadata_says_and_the_data_below_data(run: Run) -> None:
    engine, outputs = run(config(training={"data": ".demo/data"}))
    names = [item.inputs["name"] for item in engine.of("BucketObject")]
    wheel = engine.one("Instance")["metadata"]["training-wheel"]
    assert wheel.removeprefix(outputs["bucket_url"] + "/") in names
    assert "data/manifest.json" in names
    assert "data/mnist-train-00000-of-00001.tfrecord" in names


class Meanwhile(Engine):
    """While it makes the bucket, somebody else is at work."""

    act: Callable[[], object]

    def new_resource(
        self, args: pulumi_mocks.MockResourceArgs
    ) -> tuple[str | None, dict[str, Any]]:
        if args.typ == "gcp:storage/bucket:Bucket":
            self.act()
        return super().new_resource(args)


@pytest.fixture
def own_loop() -> Iterator[None]:
    """What a program that failed leaves undone must not go on in the next test."""
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    yield
    loop.close()
    asyncio.set_event_loop(asyncio.new_event_loop())


BUILD = "Build it with `tpustack wheel`, then run `pulumi up` again."
CONVERT = "Write .demo/data again with `tpu-training data convert`, then run `pulumi up` again."


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize(
    ("setting", "path", "content", "what", "cure"),
    [
        ("wheel", "dist/tpu_stack_training-0.1.0-py3-none-any.whl", None, "vanished", BUILD),
        ("wheel", "dist/tpu_stack_training-0.1.0-py3-none-any.whl", b"new", "changed", BUILD),
        ("data", ".demo/data/manifest.json", None, "vanished", CONVERT),
    ],
)
def test_a_file_that_is_not_what_was_checked_ends_the_update_with_one_message(
    run: Run, root: Path, setting: str, path: str, content: bytes | None, what: str, cure: str
) -> None:
    file, engine = root / path, Meanwhile()
    engine.act = lambda: file.write_bytes(content) if content else file.unlink()
    with pytest.raises(pulumi.RunError) as refused:
        run(config(training={"data": ".demo/data"}), engine=engine)
    why = f"{what} after the program had checked it"
    assert str(refused.value) == f'training.{setting}: "{file}" {why}. {cure}'


def test_the_bucket_is_private_and_in_the_region_of_the_tpu(run: Run) -> None:
    engine, _ = run(config())
    bucket = engine.one("Bucket")
    assert bucket["location"] == "US-CENTRAL1"
    assert bucket["publicAccessPrevention"] == "enforced"
    assert bucket["uniformBucketLevelAccess"] is True


def test_a_given_bucket_is_used_and_none_is_made(run: Run) -> None:
    engine, outputs = run(config(bucket={"create": False, "name": "our-data"}))
    assert engine.of("Bucket") == []
    assert outputs["bucket_url"] == "gs://our-data"
    assert {item.inputs["bucket"] for item in engine.of("BucketObject")} == {"our-data"}
    assert {grant.inputs["bucket"] for grant in engine.of("BucketIAMMember")} == {"our-data"}


def test_the_services_are_never_disabled(run: Run) -> None:
    engine, _ = run(config())
    assert {service.inputs["disableOnDestroy"] for service in engine.of("Service")} == {False}


@pytest.mark.parametrize(
    ("capacity", "scheduling"),
    [
        ("on-demand", None),
        ("preemptible", {"preemptible": True}),
        ("reserved", {"reserved": True}),
    ],
)
def test_a_tpu_vm_is_bought_as_the_stack_says(
    run: Run, capacity: str, scheduling: dict[str, bool] | None
) -> None:
    engine, _ = run(config(tpu={**ON_TPU, "capacity": capacity}))
    assert engine.one("V2Vm").get("schedulingConfig") == scheduling


def test_a_spot_tpu_comes_from_the_queue_unless_the_stack_wants_it_at_once(run: Run) -> None:
    engine, _ = run(config(tpu={**ON_TPU, "capacity": "spot"}))
    assert engine.dynamic("QueuedResource")["request"]["spot"] == {}
    engine, _ = run(config(tpu={**ON_TPU, "capacity": "spot", "queued": {"enabled": False}}))
    assert engine.one("V2Vm")["schedulingConfig"] == {"spot": True}


def test_a_spot_vm_is_stopped_and_not_restarted_when_google_takes_it(run: Run) -> None:
    engine, _ = run(config(vm={"capacity": "spot"}))
    scheduling = engine.one("Instance")["scheduling"]
    assert scheduling["provisioningModel"] == "SPOT"
    assert scheduling["instanceTerminationAction"] == "STOP"
    assert scheduling["automaticRestart"] is False


def test_a_runtime_that_serves_grpc_only_passes_notices_on_and_waits_for_no_upload(
    run: Run,
) -> None:
    engine, outputs = run(config())
    metadata = engine.one("V2Vm")["metadata"]
    assert metadata["tpu-serves-grpc"] == "true"
    assert metadata["tpu-runs-training"] == "false"
    assert metadata["tpu-name"] == outputs["tpu_name"]
    assert metadata["bucket-url"] == outputs["bucket_url"]
    assert "pass_notices_on" in metadata["startup-script"]
    assert not [key for key in metadata if key.startswith("training-")]


def test_a_runtime_without_grpc_gets_a_start_up_script_that_serves_it(run: Run) -> None:
    engine, _ = run(config(tpu=ON_TPU))
    metadata = engine.one("V2Vm")["metadata"]
    assert metadata["tpu-serves-grpc"] == "false"
    assert metadata["tpu-runs-training"] == "false"
    assert "grpc_tpu_worker" in metadata["startup-script"]


def test_the_trainer_runs_on_the_tpu_vm_alone_where_the_stack_says_so(run: Run) -> None:
    engine, _ = run(config(tpu=ON_TPU, training={"runOn": "tpu"}))
    assert engine.one("V2Vm")["metadata"]["tpu-runs-training"] == "true"
    assert "metadataStartupScript" not in engine.one("Instance")


def test_an_explicit_other_tensorflow_is_used_with_a_warning_that_names_both(run: Run) -> None:
    engine, _ = run(config(training={"tensorflowVersion": "2.19.1"}))
    assert engine.one("Instance")["metadata"]["training-tensorflow"] == "2.19.1"
    (warning,) = engine.warnings
    assert "2.19.1" in warning
    assert "2.18.0" in warning


@pytest.mark.parametrize("version", ["2.18.0", "2.18.1"])
def test_the_tpus_own_tensorflow_or_a_patch_of_it_warns_of_nothing(run: Run, version: str) -> None:
    engine, _ = run(config(training={"tensorflowVersion": version}))
    assert not [text for text in engine.warnings if text.startswith("training.")]


def test_a_given_network_is_used_and_none_is_made(run: Run) -> None:
    engine, _ = run(config(network={"create": False, "name": "shared", "subnetwork": "tpus"}))
    assert engine.of("Network") == engine.of("Firewall") == []
    warning = engine.warnings[0]
    assert "Network shared must allow" in warning
    assert "all ports between VMs and TPUs with the tag tpu-stack-test-net" in warning
    interface = engine.one("Instance")["networkInterfaces"][0]
    assert interface["network"] == "projects/some-project/global/networks/shared"
    assert interface["subnetwork"] == "projects/some-project/regions/us-central1/subnetworks/tpus"


def test_the_own_network_opens_ssh_to_iap_and_everything_to_its_own_machines(run: Run) -> None:
    engine, _ = run(config())
    rules = {rule.name: rule.inputs for rule in engine.of("Firewall")}
    machines, ssh = rules.pop("allow-machines"), rules.pop("allow-iap-ssh")
    assert rules == {}
    assert machines["sourceTags"] == machines["targetTags"] == ["tpu-stack-test-net"]
    assert engine.one("Instance")["tags"] == engine.one("V2Vm")["tags"] == ["tpu-stack-test-net"]
    assert machines["allows"] == [{"protocol": "all"}]
    assert "sourceRanges" not in machines
    assert ssh["sourceRanges"] == ["35.235.240.0/20"]
    assert ssh["allows"] == [{"protocol": "tcp", "ports": ["22"]}]


def test_labels_are_on_everything_that_can_have_them(run: Run) -> None:
    engine, _ = run(config(labels={"team": "vision"}))
    for kind in ("Bucket", "Instance", "V2Vm"):
        assert engine.one(kind)["labels"]["team"] == "vision"


def test_a_stack_without_limits_lets_its_machines_do_nothing_to_the_tpu(run: Run) -> None:
    engine, _ = run(config())
    assert engine.of("IAMCustomRole") == []
    metadata = engine.one("Instance")["metadata"]
    assert "limits" not in metadata
    # The agent runs the trainer.
    assert metadata["agent"] == program()
    assert "desiredStatus" not in engine.one("Instance")


@pytest.mark.parametrize(
    ("day", "week_of_it"),
    [
        (datetime(2026, 11, 22), "2026w47"),
        (datetime(2026, 11, 23), "2026w48"),
        (datetime(2027, 1, 1), "2026w53"),
    ],
)
def test_a_role_made_again_in_a_later_week_has_another_id(day: datetime, week_of_it: str) -> None:
    assert week(day) == week_of_it


def test_cloud_monitoring_may_publish_to_the_topic_of_messages_and_the_machine_may_not(
    run: Run,
) -> None:
    engine, _ = run(config(messages={"pubsubTopic": "tpu-messages"}))
    assert engine.one("Topic")["name"] == "tpu-messages"
    grant = engine.one("TopicIAMMember")
    assert (grant["topic"], grant["role"]) == ("tpu-messages", "roles/pubsub.publisher")
    agent = "service-123456789012@gcp-sa-monitoring-notification.iam.gserviceaccount.com"
    assert grant["member"] == f"serviceAccount:{agent}"
    channel = engine.one("NotificationChannel")
    assert (channel["type"], channel["labels"]) == ("pubsub", {"topic": "topic-id"})


def test_a_channel_that_a_person_made_gets_the_messages_too(run: Run) -> None:
    slack = "projects/some-project/notificationChannels/17"
    engine, _ = run(config(messages={"channels": [slack], "emails": ["a@example.com"]}))
    assert slack in engine.one("AlertPolicy")["notificationChannels"]
    assert len(engine.of("NotificationChannel")) == 1


def test_what_the_machine_writes_to_the_log_of_messages_is_mailed(run: Run) -> None:
    engine, _ = run(config(messages={"emails": ["a@example.com", "b@example.com"]}))
    told = [one.inputs["labels"]["email_address"] for one in engine.of("NotificationChannel")]
    assert told == ["a@example.com", "b@example.com"]
    policy = engine.one("AlertPolicy")
    assert len(policy["notificationChannels"]) == 2
    (condition,) = policy["conditions"]
    said = json.loads(engine.one("Instance")["metadata"]["messages"])
    matched = condition["conditionMatchedLog"]
    assert matched["filter"] == f'logName="{said["log"]}"'
    for part, extractor in matched["labelExtractors"].items():
        assert extractor == f"EXTRACT(jsonPayload.{part})"
        assert f"${{log.extracted_label.{part}}}" in policy["documentation"].values()


MACHINES, JOBS = (
    f"tpu-stack-test-{kind}@some-project.iam.gserviceaccount.com" for kind in ("sa", "job")
)


def grants(of: Any) -> list[Any]:
    kinds = ("IAMMember", "BucketIAMMember", "IAMCustomRole")
    return [resource.inputs for kind in kinds for resource in of.of(kind)]


def test_jobs_have_an_account_that_writes_no_record_and_of_which_machines_make_tokens(
    run: Run,
) -> None:
    plain, _ = run(config())
    engine, _ = run(config(jobs={"enabled": True}))
    metadata = engine.one("Instance")["metadata"]
    assert (metadata["training-jobs"], metadata["agent"]) == (JOBS, program())
    assert "training-jobs" not in plain.one("Instance")["metadata"]
    more = [grant for grant in grants(engine) if grant not in grants(plain)]
    assert {(one["role"], one["member"].removeprefix("serviceAccount:")) for one in more} == {
        ("roles/storage.objectUser", JOBS),
        ("roles/storage.legacyBucketReader", JOBS),
        ("roles/tpu.viewer", JOBS),
        ("roles/logging.logWriter", JOBS),
        ("roles/iam.serviceAccountTokenCreator", MACHINES),
    }
    (condition,) = (one["condition"]["expression"] for one in more if one.get("condition"))
    objects = 'resource.name.startsWith("projects/_/buckets/some-project-tpu-stack-test/objects/'
    assert condition == f'{objects}jobs") || {objects}data") || {objects}notices/")'
    (tokens,) = (one for one in more if one["role"].endswith("TokenCreator"))
    assert JOBS in tokens["serviceAccountId"]


def test_jobs_that_run_as_root_have_the_machines_account_and_no_other(run: Run) -> None:
    plain, _ = run(config())
    engine, _ = run(config(jobs={"enabled": True, "asRoot": True}))
    assert engine.one("Instance")["metadata"]["training-jobs"] == "root"
    assert grants(engine) == grants(plain)


@pytest.mark.parametrize(
    ("more", "account"),
    [
        ({}, JOBS),
        ({"jobs": {"enabled": True, "asRoot": True}}, MACHINES),
        ({"tpu": ON_TPU, "training": {"runOn": "tpu"}}, MACHINES),
    ],
    ids=["gRPC", "as root", "on the TPU VM"],
)
def test_a_tpu_that_jobs_drive_by_grpc_has_their_account(
    run: Run, more: dict[str, Any], account: str
) -> None:
    engine, _ = run(config(**{"tpu": POD, "jobs": {"enabled": True}, **more}))
    assert engine.one("V2Vm")["serviceAccount"]["email"] == account
    assert engine.one("Instance")["serviceAccount"]["email"] == MACHINES


def test_the_agent_recreates_the_tpu_as_the_jobs_account(run: Run) -> None:
    engine, _ = run(config(tpu=POD, jobs={"enabled": True}, recovery={"enabled": True}))
    (acts,) = (g.inputs for g in engine.of("IAMMember") if g.name == "acts-as")
    assert JOBS in acts["serviceAccountId"]
    assert acts["member"] == f"serviceAccount:{MACHINES}"


def test_recovery_reaches_the_vm_with_a_declaration_and_a_role_to_act_by_it(run: Run) -> None:
    tpu = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se",
        "capacity": "spot",
        "queued": {"enabled": False},
        "tags": ["a-tag"],
    }
    engine, outputs = run(config(tpu=tpu, recovery={"enabled": True, "preemptionsPerDay": 9}))
    metadata = engine.one("Instance")["metadata"]
    assert json.loads(metadata["limits"]) == {
        "tpus": ["tpu-stack-test-tpu"],
        "turnOff": True,
        "recovery": {"preemption": 9, "failure": 10},
    }
    assert metadata["agent"] == program()
    permissions = engine.one("IAMCustomRole")["permissions"]
    assert set(permissions) == {
        f"tpu.nodes.{verb}" for verb in ("create", "delete", "start", "stop")
    }
    # It may create TPUs as its own account alone.
    (itself,) = (g.inputs for g in engine.of("IAMMember") if g.name == "acts-as")
    assert itself["member"] == f"serviceAccount:{outputs['service_account']}"
    assert "agent/declaration.json" in {o.inputs["name"] for o in engine.of("BucketObject")}
    (vm,) = engine.of("V2Vm")
    body = declared(engine)["tpu-stack-test-tpu"]
    assert body["schedulingConfig"] == vm.inputs["schedulingConfig"] == {"spot": True}
    assert body["labels"] == vm.inputs["labels"]
    assert body["tags"] == vm.inputs["tags"]
    assert body["serviceAccount"]["email"] == vm.inputs["serviceAccount"]["email"]
    assert body["networkConfig"] == vm.inputs["networkConfig"]
    assert (body["acceleratorType"], body["runtimeVersion"]) == (
        vm.inputs["acceleratorType"],
        vm.inputs["runtimeVersion"],
    )


def declared(engine: Engine) -> dict[str, Any]:
    """What the agent reads in the bucket."""
    (found,) = (o.inputs for o in engine.of("BucketObject") if "content" in o.inputs)
    # Google's provider takes every object's content for a secret.
    return dict(json.loads(found["content"]["value"])["tpus"])


def test_recovery_of_slices_out_of_the_queue_declares_the_request_that_brings_all(run: Run) -> None:
    tpu = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se",
        "capacity": "spot",
        "slices": 2,
    }
    engine, _ = run(config(tpu=tpu, recovery={"enabled": True}))
    limits = json.loads(engine.one("Instance")["metadata"]["limits"])
    assert limits["tpus"] == ["tpu-stack-test-tpu-0", "tpu-stack-test-tpu-1"]
    assert limits["request"] == "tpu-stack-test-tpu"
    verbs = ("create", "delete", "start", "stop")
    role = engine.one("IAMCustomRole")
    assert role["permissions"] == [f"tpu.nodes.{verb}" for verb in verbs]
    request = engine.dynamic("QueuedResource")
    body = declared(engine)["tpu-stack-test-tpu"]
    assert body == json.loads(json.dumps(body_of(request)))
    (spec,) = body["tpu"]["nodeSpec"]
    assert spec["multiNodeParams"] == {"nodeCount": 2, "nodeIdPrefix": "tpu-stack-test-tpu"}
    assert spec["node"]["labels"] == request["labels"]


@NEEDS_NODES
def test_recovery_of_a_classic_node_declares_its_version_and_addresses(run: Run) -> None:
    tpu = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1", "capacity": "preemptible"}
    settings = config(
        architecture="node", tpu={**tpu, "cidrBlock": "10.240.1.0/29"}, recovery={"enabled": True}
    )
    engine, _ = run(settings)
    node = engine.one("Node")
    assert declared(engine)[node["name"]] == {
        "acceleratorType": node["acceleratorType"],
        "tensorflowVersion": node["tensorflowVersion"],
        "network": node["network"],
        "cidrBlock": node["cidrBlock"],
        "schedulingConfig": node["schedulingConfig"],
        "labels": node["labels"],
    }
    # It runs as an account of Google's own.
    assert "acts-as" not in {grant.name for grant in engine.of("IAMMember")}


def test_limits_reach_the_machine_that_trains_with_the_role_to_keep_them(run: Run) -> None:
    limits = {"timeToLiveHours": 8, "idleMinutes": 30}
    engine, outputs = run(config(limits=limits))
    metadata = engine.one("Instance")["metadata"]
    names = {"tpus": ["tpu-stack-test-tpu"], "turnOff": True}
    assert json.loads(metadata["limits"]) == {**limits, **names}
    assert metadata["agent"] == program()
    assert engine.one("Instance")["desiredStatus"] == "RUNNING"
    role = engine.one("IAMCustomRole")
    assert re.fullmatch(r"tpu_stack_test_limits_20\d\dw\d\d", role["roleId"])
    assert role["permissions"] == ["tpu.nodes.delete", "tpu.nodes.start", "tpu.nodes.stop"]
    members = [grant.inputs["member"] for grant in engine.of("IAMMember")]
    assert f"serviceAccount:{outputs['service_account']}" in members


@pytest.mark.parametrize(
    ("vm", "status"),
    [({"capacity": "spot"}, "RUNNING"), ({"capacity": "preemptible"}, "RUNNING"), ({}, None)],
)
def test_a_vm_that_google_may_take_away_is_started_again_by_an_update(
    run: Run, vm: dict[str, str], status: str | None
) -> None:
    engine, _ = run(config(vm=vm))
    assert engine.one("Instance").get("desiredStatus") == status


def test_a_vm_that_only_watches_for_idleness_is_not_started_again_by_an_update(run: Run) -> None:
    engine, _ = run(config(limits={"idleMinutes": 30}))
    assert "desiredStatus" not in engine.one("Instance")


def test_a_tpu_vm_that_trains_watches_over_itself(run: Run) -> None:
    engine, _ = run(config(tpu=ON_TPU, training={"runOn": "tpu"}, limits={"idleMinutes": 30}))
    assert json.loads(engine.one("V2Vm")["metadata"]["limits"])["turnOff"] is False
