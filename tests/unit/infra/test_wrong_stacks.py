"""Wrong stacks: each is refused with the whole message, before anything is declared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tpu_infra.checks import CHECKS, find_problems
from tpu_infra.checks.software import data_files
from tpu_infra.settings.base import SettingsError
from tpu_infra.settings.parse import parse

from .conftest import config, context_of

VM = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
LITE = {"acceleratorType": "v5litepod-4", "runtimeVersion": "tpu-vm-tf-2.16.1-pod-pjrt"}
FLEX = {"capacity": "flex-start", "queued": {"runHours": 2}}
NODE = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"}

HOST = {"acceleratorType": "ct6e-standard-4t"}
TPU7X = {"acceleratorType": "tpu7x-standard-4t"}
ON_TENSORFLOW = {"runOn": "tpu", "backend": "tensorflow"}
HOSTS = "ct5p-hightpu-4t, ct6e-standard-1t, ct6e-standard-4t, ct6e-standard-8t or tpu7x-standard-4t"

ACCOUNT = "tpu@hub-project.iam.gserviceaccount.com"
DISK = "projects/some-project/zones/us-central1-b/disks/corpus"


def node(**tpu: object) -> dict[str, object]:
    return config(architecture="node", tpu={**NODE, **tpu})


def compute(tpu: Mapping[str, object], **settings: object) -> dict[str, object]:
    """A stack whose TPU is a machine of Compute Engine."""
    training = {"runOn": "tpu", "tensorflowVersion": "2.19.1"}
    whole = {"zone": "us-east5-a", "training": training, **settings}
    return config(architecture="compute", tpu=tpu, **whole)


def disks(*disks: dict[str, object], **tpu: object) -> dict[str, object]:
    return config(tpu={**VM, "dataDisks": list(disks), **tpu})


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (
        "no VM, but a training on it",
        config(vm={"create": False}, training={"runOn": "vm"}),
        "vm.create: false leaves nothing that trains, because training.runOn is vm. "
        "Set training.runOn: tpu, or remove it.",
    ),
    (
        "no VM, but settings of one",
        config(vm={"create": False, "publicIp": True}, training={"runOn": "tpu"}),
        "vm.publicIp: true is for a VM, but vm.create is false. Remove one of the two.",
    ),
    (
        "no VM, but a TPU Node",
        node() | {"tpu-stack:vm": {"create": False}},
        "vm.create: false leaves nothing that drives the TPU Node. "
        "Remove it, or use architecture vm with training.runOn: tpu.",
    ),
    (
        "a user instead of a service account",
        config(serviceAccount="me@example.com"),
        'serviceAccount: "me@example.com" is not a service account\'s address '
        "(NAME@PROJECT.iam.gserviceaccount.com). Correct it.",
    ),
    (
        "an account of jobs that have none of their own",
        config(jobs={"enabled": True, "asRoot": True, "serviceAccount": ACCOUNT}),
        f'jobs.serviceAccount: "{ACCOUNT}" is for jobs with an account of their own, which needs '
        "jobs.enabled without jobs.asRoot. Remove it.",
    ),
    (
        "jobs with the machines' account",
        config(serviceAccount=ACCOUNT, jobs={"enabled": True, "serviceAccount": ACCOUNT}),
        f'jobs.serviceAccount: "{ACCOUNT}" is the account of the machines, so jobs could do all '
        "that they can. Use another account, or leave it out.",
    ),
    (
        "Vertex AI with the queue's account",
        config(
            jobs={"enabled": True, "serviceAccount": ACCOUNT, "vertex": {"serviceAccount": ACCOUNT}}
        ),
        f'jobs.vertex.serviceAccount: "{ACCOUNT}" is the account of the queue\'s jobs, which may '
        "not write the queue. Use another account, or leave it out.",
    ),
    (
        "grants elsewhere, but a role of the stack's own",
        config(grantRoles=False, limits={"idleMinutes": 60}),
        "limits.role is required with grantRoles: false, because the stack creates no role either. "
        "Set the ID of a custom role with tpu.nodes.delete, tpu.nodes.start and tpu.nodes.stop.",
    ),
    (
        "grants elsewhere, but a key of the stack's own",
        config(grantRoles=False, bucket={"encryption": {}}),
        "bucket.encryption.key is required with grantRoles: false, because Cloud Storage must be "
        "able to use the key before the bucket is created. Set the name of an existing key.",
    ),
    (
        "grants elsewhere, but a topic of the stack's own",
        config(grantRoles=False, messages={"pubsubTopic": "tpu-messages"}),
        'messages.pubsubTopic: "tpu-messages" takes a role on the topic, but grantRoles is false. '
        "Use e-mail addresses or messages.channels.",
    ),
    (
        "grants elsewhere to an account that Google chooses",
        node() | {"tpu-stack:grantRoles": False},
        "grantRoles: false is for architecture vm and compute: Google chooses a TPU Node's account "
        "when it creates the node. Use another architecture, or remove it.",
    ),
    (
        "a tag of the network that is none",
        config(network={"tags": ["Egress"]}),
        'network.tags[0]: "Egress" is not a network tag (at most 63 lower-case letters, digits and '
        "hyphens, a letter first, no hyphen last). Use one like tpu-workers.",
    ),
    (
        "no project",
        {**config(), "gcp:project": ""},
        "gcp:project is required: everything is created in a project. "
        "Run `pulumi config set gcp:project YOUR-PROJECT --stack test`.",
    ),
    (
        "a project's name instead of its id",
        {**config(), "gcp:project": "My Project"},
        'gcp:project: "My Project" is not a project ID (6 to 30 lower-case letters, digits and '
        "hyphens, a letter first). Use the project ID, not its name or number: `gcloud projects "
        "list` shows it.",
    ),
    (
        "the project in the wrong namespace",
        config(project="some-project"),
        "tpu-stack:project: \"some-project\" is the provider's setting, not this program's. "
        "Set it as gcp:project.",
    ),
    (
        "a setting twice",
        {**config(), "zone": "us-west4-a"},
        'zone: "us-west4-a" is set twice, with and without tpu-stack:, which is the same to '
        "Pulumi. Remove one.",
    ),
    (
        "a zone for the provider before the stack's",
        {"gcp:zone": "us-west4-a", **config()},
        'gcp:zone: "us-west4-a" is a default of the provider, which has no effect here. '
        "Set tpu-stack:zone, whose region all resources use.",
    ),
    (
        "no zone",
        config(zone=None),
        "zone is required. Set it: Zone of the TPU and the VM, for example us-central1-a. With "
        "an AI zone, the VM is in the parent zone.",
    ),
    (
        "a region instead of a zone",
        config(zone="us-central1"),
        'zone: "us-central1" is a region, not a zone. Use us-central1-b, us-central1-c or '
        "us-central1-a.",
    ),
    (
        "a zone that its region has not",
        config(zone="europe-west4-z"),
        'zone: "europe-west4-z" has no TPUs. Use europe-west4-a or europe-west4-b.',
    ),
    (
        "a slice of several machines of Compute Engine",
        compute({**HOST, "topology": "4x4"}, jobs={"enabled": True}),
        'tpu.topology: "4x4" needs a managed instance group in bulk mode, which pulumi-gcp 9.20 is '
        "the first to have, and the project has pulumi-gcp 8.34.0. Use 2x2, or install the one it "
        "needs: `tpustack provider 10`.",
    ),
    (
        "a topology that no such machine has",
        compute({**HOST, "topology": "2x4"}),
        'tpu.topology: "2x4" is not a topology of ct6e-standard-4t. '
        "Use 2x2, 4x4, 4x8, 8x8, 8x16 or 16x16.",
    ),
    (
        "a topology of a TPU VM",
        config(tpu={**VM, "topology": "2x2"}),
        'tpu.topology: "2x2" is for architecture compute; the type of another TPU decides it. '
        "Remove it.",
    ),
    (
        "v5e on Compute Engine",
        compute({"acceleratorType": "v5litepod-4"}),
        'tpu.acceleratorType: "v5litepod-4" is not available on Compute Engine. '
        f"Use {HOSTS}, or architecture vm with a type of the Cloud TPU API.",
    ),
    (
        "a machine type that Compute Engine lists and does not make",
        compute({"acceleratorType": "ct5lp-hightpu-4t"}),
        'tpu.acceleratorType: "ct5lp-hightpu-4t" is not available on Compute Engine. '
        f"Use {HOSTS}, or architecture vm with a type of the Cloud TPU API.",
    ),
    (
        "a type of the Cloud TPU API on Compute Engine",
        compute({"acceleratorType": "v5p-8"}),
        'tpu.acceleratorType: "v5p-8" is a type of the Cloud TPU API, but architecture compute '
        "needs a machine type. Use ct5p-hightpu-4t.",
    ),
    (
        "a mistyped machine type with a TPU",
        compute(
            {"acceleratorType": "ct6e-standard-4"}, training={"runOn": "tpu", "backend": "jax"}
        ),
        'tpu.acceleratorType: "ct6e-standard-4" is not a Compute Engine machine type with a TPU. '
        "Use ct6e-standard-4t, ct6e-standard-8t or ct6e-standard-1t.",
    ),
    (
        "a machine type with a TPU as a TPU VM",
        config(tpu={**VM, **HOST, "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6"}),
        'tpu.acceleratorType: "ct6e-standard-4t" is a machine type of Compute Engine. '
        "Use architecture compute, or a type of the Cloud TPU API.",
    ),
    (
        "flex-start on Compute Engine without an end",
        compute({**HOST, "capacity": "flex-start"}),
        "tpu.queued.runHours is required with tpu.capacity: flex-start. "
        "Set after how many hours Google deletes the TPU, at most 168.",
    ),
    (
        "flex-start on Compute Engine that ends at once",
        compute({**HOST, **FLEX, "queued": {"runHours": 0.1}}),
        "tpu.queued.runHours: 0.1 is shorter than flex-start allows. "
        "Use at least 0.17 (10 minutes).",
    ),
    (
        "an end of a machine that stays",
        compute({**HOST, "queued": {"runHours": 2}}),
        "tpu.queued.runHours: 2.0 contradicts tpu.capacity: on-demand, which stays until it is "
        "deleted. Set tpu.capacity: flex-start, or remove it.",
    ),
    (
        "a reservation in another zone",
        compute(
            {
                **HOST,
                "capacity": "reserved",
                "queued": {"reservation": "projects/p/locations/us-central1-b/reservations/r"},
            }
        ),
        'tpu.queued.reservation: "projects/p/locations/us-central1-b/reservations/r" is not in the '
        "stack's zone us-east5-a. Use a reservation of that zone.",
    ),
    (
        "a reservation of another form",
        compute({**HOST, "capacity": "reserved", "queued": {"reservation": "zones/z/r"}}),
        'tpu.queued.reservation: "zones/z/r" is not a reservation\'s name. '
        "Use NAME, or projects/PROJECT/locations/ZONE/reservations/NAME.",
    ),
    (
        "a machine from no reservation",
        compute({**HOST, "capacity": "reserved"}),
        "tpu.queued.reservation is required with tpu.capacity: reserved. "
        "Set the name of the reservation that provides the machine.",
    ),
    (
        "a reservation for a spot machine",
        compute({**HOST, "capacity": "spot", "queued": {"reservation": "r"}}),
        'tpu.queued.reservation: "r" contradicts tpu.capacity: spot. '
        "Set tpu.capacity: reserved, or remove it.",
    ),
    (
        "a preemptible machine with a TPU",
        compute({**HOST, "capacity": "preemptible"}),
        'tpu.capacity: "preemptible" is the legacy form of spot, which machines with a TPU '
        "don't have. Use spot.",
    ),
    (
        "TensorFlow on TPU7x",
        compute(TPU7X, zone="us-central1-c", training=ON_TENSORFLOW),
        'training.backend: "tensorflow" doesn\'t run on tpu7x, where Google supports jax '
        "and pytorch. Use jax.",
    ),
    (
        "TensorFlow for jobs on TPU7x",
        compute(TPU7X, zone="us-central1-c", jobs={"enabled": True}),
        'training.tensorflowVersion: "2.19.1" doesn\'t run on tpu7x, where Google supports jax '
        "and pytorch. Remove it.",
    ),
    (
        "a trainer on JAX with a release of TensorFlow that has no lock with it",
        compute(
            TPU7X, zone="us-central1-c", training={"runOn": "tpu", "tensorflowVersion": "2.18.0"}
        ),
        'training.tensorflowVersion: "2.18.0" is not possible: tensorflow-cpu 2.18.0, which the '
        "TPU VM would install, has no lock with JAX. Use 2.19.1.",
    ),
    (
        "a trainer on TensorFlow without a version on Compute Engine",
        compute(HOST, training={"runOn": "tpu", "backend": "tensorflow"}),
        "training.tensorflowVersion is required: the image of ct6e-standard-4t has no TensorFlow. "
        "Set the version to install, for example 2.19.1, or training.backend: jax.",
    ),
    (
        "a backend of the trainer where jobs run",
        compute(HOST, training={"runOn": "tpu", "backend": "jax"}, jobs={"enabled": True}),
        'training.backend: "jax" is for the trainer, but jobs.enabled runs jobs instead. '
        "Remove it; a job's own command chooses.",
    ),
    (
        "a trainer on JAX on a TPU VM",
        config(training={"backend": "jax"}),
        'training.backend: "jax" requires architecture compute, where each machine of the TPU '
        "runs the trainer. Remove it, and run the trainer as a job (docs/models.md#train-on-jax).",
    ),
    (
        "a backend among the trainer's arguments",
        config(training={"args": ["--model", "backend", "--backend=jax"]}),
        'training.args: "--backend=jax" chooses what the machine has to install. '
        "Set training.backend instead.",
    ),
    (
        "a trainer on a VM beside a machine of Compute Engine",
        compute(HOST, training={"tensorflowVersion": "2.19.1"}),
        'training.runOn: "vm" is for a VM that drives the TPU; with architecture compute the '
        "TPU's machines train. Set tpu.",
    ),
    (
        "a VM beside a machine of Compute Engine",
        compute(HOST, vm={"publicIp": True}),
        'vm: {"publicIp": true} is for a VM next to the TPU, which architecture compute has only '
        "for recovery.enabled. Remove the group.",
    ),
    (
        "the end of no reservation on Compute Engine",
        compute({**HOST, "capacity": "reserved", "queued": {"reservationBound": True}}),
        "tpu.queued.reservationBound: true names no reservation. Set tpu.queued.reservation, or "
        "remove it.",
    ),
    (
        "a queue on Compute Engine",
        compute({**HOST, "queued": {"waitMinutes": 5}}),
        "tpu.queued.waitMinutes: 5.0 is for a queued resource of the Cloud TPU API, which "
        "Compute Engine doesn't have. Remove it, or use architecture vm.",
    ),
    (
        "a reservation of another zone for a machine of Compute Engine",
        compute(
            {
                **HOST,
                "capacity": "reserved",
                "queued": {"reservation": "projects/p/locations/us-east5-b/reservations/mine"},
            }
        ),
        'tpu.queued.reservation: "projects/p/locations/us-east5-b/reservations/mine" is not in the '
        "stack's zone us-east5-a. Use a reservation of that zone.",
    ),
    (
        "half a reservation for a machine of Compute Engine",
        compute({**HOST, "capacity": "reserved", "queued": {"reservation": "lab/mine"}}),
        'tpu.queued.reservation: "lab/mine" is not a reservation\'s name. Use NAME, or '
        "projects/PROJECT/locations/ZONE/reservations/NAME.",
    ),
    (
        "a runtime on Compute Engine",
        compute({**HOST, "runtimeVersion": "v2-alpha-tpuv6e"}),
        'tpu.runtimeVersion: "v2-alpha-tpuv6e" is for the Cloud TPU API; Compute Engine boots '
        "Google's image for the machine type. Remove it, and set training.tensorflowVersion for "
        "TensorFlow.",
    ),
    (
        "several machines of Compute Engine",
        compute({**HOST, "slices": 2}),
        "tpu.slices: 2 is for the Cloud TPU API, which manages no machines of Compute Engine. "
        "Remove it, or use architecture vm.",
    ),
    (
        "a limit of a machine of Compute Engine",
        compute(HOST, limits={"idleMinutes": 30}),
        "limits.idleMinutes: 30.0 needs the Cloud TPU API, which doesn't manage Compute Engine "
        "machines. Remove it; limits.timeToLiveHours ends the machine.",
    ),
    (
        "a machine of Compute Engine that lives longer than Google counts",
        compute(HOST, limits={"timeToLiveHours": 2881}),
        "limits.timeToLiveHours: 2881.0 is longer than the 120 days after which Google can end a "
        "machine of Compute Engine. Use at most 2880.",
    ),
    (
        "two ends of a machine of Compute Engine",
        compute(
            {**HOST, "capacity": "flex-start", "queued": {"runHours": 1}},
            limits={"timeToLiveHours": 2},
        ),
        "limits.timeToLiveHours: 2.0 contradicts tpu.capacity: flex-start, which ends after "
        "tpu.queued.runHours. Remove it.",
    ),
    (
        "recovery of a machine of Compute Engine that Google brings back itself",
        compute(HOST, recovery={"enabled": True}),
        "recovery.enabled: true is not available for this stack: on Compute Engine it is for "
        "tpu.capacity: spot; Google itself recovers or ends machines of on-demand capacity. "
        "Remove it.",
    ),
    (
        "recovery of a machine of Compute Engine without a VM",
        compute({**HOST, "capacity": "spot"}, recovery={"enabled": True}, vm={"create": False}),
        "recovery.enabled: true is not available for this stack: vm.create: false leaves no VM "
        "for the agent. Remove one of the two.",
    ),
    (
        "recovery of a machine of Compute Engine in a network of another project",
        compute(
            {**HOST, "capacity": "spot"},
            recovery={"enabled": True},
            network={"create": False, "project": "net-project", "name": "n", "subnetwork": "s"},
        ),
        "recovery.enabled: true is not available for this stack: the agent's account may not use "
        "the subnetwork of network.project. Remove it, and run "
        "`tpustack recover --loop --stack NAME` on another computer.",
    ),
    (
        "a misspelled setting",
        config(zoen="us-central1-b"),
        'zoen: "us-central1-b" is not a setting. Did you mean zone?',
    ),
    (
        "a misspelled nested setting",
        config(tpu={**VM, "acceleratortype": "v2-8"}),
        'tpu.acceleratortype: "v2-8" is not a setting. Did you mean tpu.acceleratorType?',
    ),
    (
        "a setting like no other",
        config(bucket={"xyz": 1}),
        "bucket.xyz: 1 is not a setting. Choose from: create, encryption, forceDestroy, "
        "lifecycle, location, name, protect, softDeleteDays, versioning.",
    ),
    (
        "an unknown architecture",
        config(architecture="gpu"),
        "architecture: \"gpu\" is unknown. Use 'vm', 'node' or 'compute'.",
    ),
    (
        "a group that is none",
        config(vm="n1-standard-2"),
        'vm: "n1-standard-2" is not a map of settings. Set below it: create, machineType, '
        "capacity, terminationAction, instanceGroup, image, bootDiskGib, bootDiskType, "
        "keepBootDisk, publicIp, osLogin, serialPortLogging, shielded, opsAgent.",
    ),
    (
        "a flag that is none",
        config(bucket={"forceDestroy": "perhaps"}),
        'bucket.forceDestroy: "perhaps" is not true or false. Meaning: Let `pulumi destroy` '
        "delete the bucket and everything in it. Otherwise it keeps both.",
    ),
    (
        "a small boot disk",
        config(vm={"bootDiskGib": 5}),
        "vm.bootDiskGib: 5 is too small. Use at least 20.",
    ),
    (
        "a label that Google refuses",
        config(labels={"Team": "a"}),
        "labels: {\"Team\": \"a\"} has 'Team': 'a', but Google allows lower-case "
        "letters, digits, - and _, at most 63 of them, and keys begin with a letter. "
        "Correct it.",
    ),
    (
        "a label that is the stack's own",
        config(labels={"tpu-stack": "pr-7"}),
        'labels: {"tpu-stack": "pr-7"} has \'tpu-stack\', which the stack uses to find its own '
        "resources. Correct it.",
    ),
    (
        "more labels than Google allows",
        config(labels={f"l{number}": "" for number in range(62)}),
        f"labels: {json.dumps({f'l{number}': '' for number in range(62)})} has 62 labels, but "
        "Google allows 60 of yours. Correct it.",
    ),
    (
        "an unknown TPU",
        config(tpu={**VM, "acceleratorType": "v2-9"}),
        'tpu.acceleratorType: "v2-9" is not a TPU type that Google offers. Use v2-8, v2-32 or '
        "v2-512.",
    ),
    (
        "a TPU that the zone has not",
        config(zone="us-central1-a"),
        'zone: "us-central1-a" offers no v2-8. Use us-central1-b, us-central1-c, '
        "europe-west4-a or asia-east1-c for it; us-central1-a has v2-32, v2-128, v2-256, v2-512.",
    ),
    (
        "further zones that the TPU can't go to",
        config(
            tpu={
                **VM,
                "queued": {
                    "fallbackZones": [
                        *("us-central1-a", "us-central1-b", "us-central1-c"),
                        *("europe-west4-a", "us-central1-c"),
                    ]
                },
            }
        ),
        'tpu.queued.fallbackZones: ["us-central1-a", "us-central1-b", "us-central1-c", '
        '"europe-west4-a", "us-central1-c"] is invalid: us-central1-a offers no v2-8; '
        "us-central1-b is the stack's zone already; europe-west4-a is not in us-central1, where "
        "the bucket and the network are; us-central1-c is listed twice. Use us-central1-c.",
    ),
    (
        "further zones without the queue",
        config(
            tpu={
                **VM,
                "capacity": "spot",
                "queued": {"enabled": False, "fallbackZones": ["us-central1-c"]},
            }
        ),
        'tpu.queued.fallbackZones: ["us-central1-c"] contradicts tpu.queued.enabled: only a '
        "queued TPU moves. Remove one.",
    ),
    (
        "further zones for what is in one zone",
        config(
            tpu={
                **VM,
                "capacity": "reserved",
                "queued": {"reservation": "ours", "fallbackZones": ["us-central1-c"]},
            }
        ),
        'tpu.queued.fallbackZones: ["us-central1-c"] contradicts tpu.queued.reservation, which is '
        "in one zone. Remove one.",
    ),
    (
        "further zones for data disks",
        disks({"source": DISK, "mode": "read-only"}, queued={"fallbackZones": ["us-central1-c"]}),
        'tpu.queued.fallbackZones: ["us-central1-c"] contradicts tpu.dataDisks, which are in one '
        "zone. Remove one, or read the bucket.",
    ),
    (
        "minutes for a zone where there is only one",
        config(tpu={**VM, "queued": {"zoneMinutes": 5}}),
        "tpu.queued.zoneMinutes: 5.0 is only for a TPU with several zones. Set "
        "tpu.queued.fallbackZones, or remove it.",
    ),
    (
        "a zone without TPUs",
        config(zone="mars-north1-a"),
        'zone: "mars-north1-a" has no TPUs. Use us-south1-a, asia-northeast1-b or us-south1-ai1b.',
    ),
    (
        "a family without classic nodes",
        config(
            zone="us-central2-b",
            architecture="node",
            tpu={"acceleratorType": "v4-8", "tensorflowVersion": "2.12.1"},
        ),
        'architecture: "node" doesn\'t exist for v4-8. Use architecture vm, or one of v2-8, '
        "v2-32, v2-128, v2-256, v2-512, v3-8, v3-32, v3-64, v3-128, v3-256, v3-512, v3-1024, "
        "v3-2048.",
    ),
    (
        "a node with a runtime",
        node(runtimeVersion="tpu-vm-tf-2.18.0-se"),
        'tpu.runtimeVersion: "tpu-vm-tf-2.18.0-se" is for architecture vm; a TPU Node has a '
        "TensorFlow version. Set tpu.tensorflowVersion instead.",
    ),
    (
        "a TPU VM with a node's version",
        config(tpu={**VM, "tensorflowVersion": "2.12.1"}),
        'tpu.tensorflowVersion: "2.12.1" is for architecture node; a TPU VM has a runtime. '
        "Set tpu.runtimeVersion instead.",
    ),
    (
        "a TPU VM with a node's block",
        config(tpu={**VM, "cidrBlock": "10.240.1.0/29"}),
        'tpu.cidrBlock: "10.240.1.0/29" is for architecture node; a TPU VM has its address from '
        "the subnet. Remove it.",
    ),
    (
        "recovery of a TPU that Google deletes after a while",
        config(zone="us-west4-a", tpu={**LITE, **FLEX}, recovery={"enabled": True}),
        "recovery.enabled: true is not available for this stack: Google deletes its TPU after "
        "tpu.queued.runHours, by design. Remove it.",
    ),
    (
        "recovery by the TPU itself",
        config(tpu=VM, training={"runOn": "tpu"}, recovery={"enabled": True}),
        "recovery.enabled: true is not available for this stack: with training.runOn: tpu the "
        "agent would be lost along with the TPU. Remove it, and run `tpustack recover --loop "
        "--stack NAME` on another computer.",
    ),
    (
        "a queued node",
        node(queued={"waitMinutes": 5}),
        'tpu.queued: {"waitMinutes": 5.0} is for architecture vm; Google doesn\'t queue TPU '
        "Nodes. Remove it.",
    ),
    (
        "a node that runs the trainer",
        {**node(), "tpu-stack:training": {"runOn": "tpu"}},
        'training.runOn: "tpu" is for architecture vm; a TPU Node allows no login. Use vm.',
    ),
    (
        "a spot node",
        node(capacity="spot"),
        'tpu.capacity: "spot" is for architecture vm. Use on-demand or preemptible for a TPU Node.',
    ),
    (
        "a queue that is no group",
        config(tpu={**VM, "queued": True}),
        "tpu.queued: true is not a map of settings. Use {}, or set below it: enabled, "
        "waitMinutes, fallbackZones, zoneMinutes, validUntil, reservation, reservationBound, "
        "runHours, guaranteedHours.",
    ),
    (
        "a queue that nobody waits for",
        config(tpu={**VM, "queued": {"waitMinutes": 0}}),
        "tpu.queued.waitMinutes: 0 is too small. Use at least 1.",
    ),
    (
        "a queue's end without a zone",
        config(tpu={**VM, "queued": {"validUntil": "2026-12-31T18:00:00"}}),
        'tpu.queued.validUntil: "2026-12-31T18:00:00" is not a time with a time zone, such as Z '
        "at its end. Meaning: When Google cancels the queued resource, for example "
        "2026-12-31T18:00:00Z. Without it, the queued resource waits without a deadline.",
    ),
    (
        "a queue's end that is no time",
        config(tpu={**VM, "queued": {"validUntil": "tomorrow"}}),
        'tpu.queued.validUntil: "tomorrow" is not a time. Meaning: When Google cancels the '
        "queued resource, for example 2026-12-31T18:00:00Z. Without it, the queued resource waits "
        "without a deadline.",
    ),
    (
        "slices of a node",
        node(slices=2),
        "tpu.slices: 2 is for architecture vm; a TPU Node has none. Remove it, or use "
        "architecture vm.",
    ),
    (
        "a disk of a node",
        node(dataDisks=[{"name": "corpus", "sizeGib": 100}]),
        'tpu.dataDisks: [{"name": "corpus", "sizeGib": 100}] is for architecture vm; a TPU Node '
        "has none. Remove it, or use architecture vm.",
    ),
    (
        "tags of a node",
        node(tags=["workers"]),
        'tpu.tags: ["workers"] is for architecture vm; a TPU Node has none. Remove it, or use '
        "architecture vm.",
    ),
    (
        "more slices than there are",
        config(tpu={**VM, "slices": 257}),
        "tpu.slices: 257 is too large. Use at most 256.",
    ),
    (
        "a boot disk that the provider cannot ask for",
        config(tpu={**VM, "bootDiskGib": 200}),
        "tpu.bootDiskGib: 200 is only for a queued TPU: Google's provider has no field for it. "
        "Set tpu.queued: {}, or remove it.",
    ),
    (
        "a boot disk that is smaller than its image",
        config(tpu={**VM, "queued": {}, "bootDiskGib": 50}),
        "tpu.bootDiskGib: 50 is too small. Use at least 100.",
    ),
    (
        "checkpoints that the provider cannot ask for",
        config(tpu={**VM, "autocheckpoint": True}),
        "tpu.autocheckpoint: true is only for a queued TPU: Google's provider has no field for "
        "it. Set tpu.queued: {}, or remove it.",
    ),
    (
        "a reservation that is not used",
        config(tpu={**VM, "queued": {"reservation": "ours"}}),
        'tpu.queued.reservation: "ours" contradicts tpu.capacity: on-demand. Set tpu.capacity: '
        "reserved, or remove it.",
    ),
    (
        "a reservation that is no name",
        config(tpu={**VM, "capacity": "reserved", "queued": {"reservation": "zones/ours"}}),
        'tpu.queued.reservation: "zones/ours" is not a reservation\'s name. Use NAME, or '
        "projects/PROJECT/locations/ZONE/reservations/NAME.",
    ),
    (
        "the end of a reservation that is not named",
        config(tpu={**VM, "capacity": "reserved", "queued": {"reservationBound": True}}),
        "tpu.queued.reservationBound: true names no reservation. Set tpu.queued.reservation, or "
        "remove it.",
    ),
    (
        "a while without its length",
        config(zone="us-west4-a", tpu={**LITE, "capacity": "flex-start"}),
        "tpu.queued.runHours is required with tpu.capacity: flex-start. Set after how "
        "many hours Google deletes the TPU, at most 168.",
    ),
    (
        "a while longer than Google has",
        config(zone="us-west4-a", tpu={**LITE, **FLEX, "queued": {"runHours": 169}}),
        "tpu.queued.runHours: 169 is too large. Use at most 168.",
    ),
    (
        "a while out of the queue",
        config(zone="us-west4-a", tpu={**LITE, **FLEX, "queued": {"enabled": False}}),
        "tpu.queued.enabled: false contradicts tpu.capacity: flex-start, which is only "
        "available as a queued resource. Remove it.",
    ),
    (
        "a while of a guarantee",
        config(
            zone="us-west4-a",
            tpu={**LITE, **FLEX, "queued": {"runHours": 2, "guaranteedHours": 1}},
        ),
        "tpu.queued.guaranteedHours: 1.0 contradicts tpu.capacity: flex-start, which stays for "
        "tpu.queued.runHours. Set tpu.queued.runHours instead.",
    ),
    (
        "a while on a type that Google does not name",
        config(tpu={**VM, **FLEX}),
        'tpu.capacity: "flex-start" is for v5e and v6e, but tpu.acceleratorType is v2-8. Use spot, '
        "or a type of those.",
    ),
    (
        "an end of what stays",
        config(tpu={**VM, "queued": {"runHours": 2}}),
        "tpu.queued.runHours: 2.0 contradicts tpu.capacity: on-demand, which stays until it is "
        "deleted. Set tpu.capacity: flex-start, or remove it.",
    ),
    (
        "a guarantee for what may be taken away",
        config(tpu={**VM, "capacity": "spot", "queued": {"guaranteedHours": 24}}),
        "tpu.queued.guaranteedHours: 24.0 contradicts tpu.capacity: spot, which Google can "
        "preempt. Set tpu.capacity: on-demand or reserved, or remove it.",
    ),
    (
        "a guarantee for no time",
        config(tpu={**VM, "queued": {"guaranteedHours": 0}}),
        "tpu.queued.guaranteedHours: 0 is too small. Use more than 0.",
    ),
    (
        "a creation that waits in the queue",
        config(tpu={**VM, "queued": {}, "timeouts": {"createMinutes": 60}}),
        "tpu.timeouts.createMinutes: 60.0 is for a TPU that isn't queued. Set "
        "tpu.queued.waitMinutes instead.",
    ),
    (
        "no time to delete",
        config(tpu={**VM, "timeouts": {"deleteMinutes": 0}}),
        "tpu.timeouts.deleteMinutes: 0 is too small. Use at least 1.",
    ),
    (
        "a time that is not one of the operations'",
        config(tpu={**VM, "timeouts": {"delete": 5}}),
        "tpu.timeouts.delete: 5 is not a setting. Did you mean tpu.timeouts.deleteMinutes?",
    ),
    (
        "a tag in capitals",
        config(tpu={**VM, "tags": ["ok", "Workers"]}),
        'tpu.tags[1]: "Workers" is not a network tag (at most 63 lower-case letters, digits and '
        "hyphens, a letter first, no hyphen last). Use one like tpu-workers.",
    ),
    (
        "a scope's short name",
        config(tpu={**VM, "scopes": ["cloud-platform"]}),
        'tpu.scopes[0]: "cloud-platform" is not an access scope of Google\'s. Use URLs such as '
        "https://www.googleapis.com/auth/cloud-platform.",
    ),
    (
        "no scopes",
        config(tpu={**VM, "scopes": []}),
        "tpu.scopes: [] are empty, which Google treats as all. Remove it to use "
        "https://www.googleapis.com/auth/cloud-platform.",
    ),
    (
        "scopes that the trainer cannot work with",
        config(
            tpu={**VM, "scopes": ["https://www.googleapis.com/auth/logging.write"]},
            training={"runOn": "tpu"},
        ),
        'tpu.scopes: ["https://www.googleapis.com/auth/logging.write"] lack a scope that the '
        "trainer on the TPU VM needs (training.runOn). Add "
        "https://www.googleapis.com/auth/cloud-platform: IAM, not the scope, decides what it "
        "may do.",
    ),
    (
        "disks that are no list",
        config(tpu={**VM, "dataDisks": {"name": "corpus"}}),
        'tpu.dataDisks: {"name": "corpus"} is not a list. Meaning: Data disks of a TPU VM. '
        "Requires `architecture: vm`.",
    ),
    (
        "a disk with a misspelled size",
        disks({"name": "corpus", "sizeGb": 100}),
        "tpu.dataDisks[0].sizeGb: 100 is not a setting. Did you mean tpu.dataDisks[0].sizeGib?",
    ),
    (
        "a small disk",
        disks({"name": "corpus", "sizeGib": 1}),
        "tpu.dataDisks[0].sizeGib: 1 is too small. Use at least 10.",
    ),
    (
        "a disk of no kind",
        disks({"name": "corpus", "sizeGib": 100, "type": "pd-extreme"}),
        "tpu.dataDisks[0].type: \"pd-extreme\" is unknown. Use 'pd-balanced', "
        "'hyperdisk-balanced' or 'hyperdisk-ml'.",
    ),
    (
        "a disk that the TPU does not take",
        disks({"name": "corpus", "sizeGib": 100, "type": "hyperdisk-ml"}),
        'tpu.dataDisks[0].type: "hyperdisk-ml" is not a disk type that a v2-8 supports. Use '
        "pd-balanced.",
    ),
    (
        "a disk that is none",
        disks({"mode": "read-only"}),
        "tpu.dataDisks[0].name: (not set) and no source either. Set name and sizeGib of a new "
        "disk, or source of an existing one.",
    ),
    (
        "a disk without its size",
        disks({"name": "corpus"}),
        "tpu.dataDisks[0].sizeGib is required for a new disk. Set its size in GiB.",
    ),
    (
        "a disk that is made and there already",
        disks({"name": "corpus", "source": DISK}),
        'tpu.dataDisks[0].name: "corpus" is for a new disk, but tpu.dataDisks[0].source names '
        "an existing one. Remove one of the two.",
    ),
    (
        "a kind for a disk that is there already",
        disks({"type": "hyperdisk-ml", "source": DISK}),
        'tpu.dataDisks[0].type: "hyperdisk-ml" is for a new disk, but tpu.dataDisks[0].source '
        "names an existing one. Remove one of the two.",
    ),
    (
        "a disk's short name",
        disks({"source": "corpus"}),
        'tpu.dataDisks[0].source: "corpus" is not the full name of a disk. Use one like '
        "projects/some-project/zones/us-central1-b/disks/corpus.",
    ),
    (
        "a disk in another zone",
        disks({"source": DISK.replace("-b", "-c")}),
        'tpu.dataDisks[0].source: "projects/some-project/zones/us-central1-c/disks/corpus" is '
        "not in the TPU's zone us-central1-b. Use a disk of that zone, or a snapshot of a disk "
        "elsewhere.",
    ),
    (
        "a disk twice",
        disks({"source": DISK, "mode": "read-only"}, {"source": DISK, "mode": "read-only"}),
        'tpu.dataDisks[1].source: "projects/some-project/zones/us-central1-b/disks/corpus" is '
        "listed twice. Name each disk once.",
    ),
    (
        "a disk with a name that is none",
        disks({"name": "Corpus", "sizeGib": 100}),
        'tpu.dataDisks[0].name: "Corpus" is not a valid disk name (lower-case letters, digits '
        "and hyphens). Set one like corpus.",
    ),
    (
        "a disk with a long name",
        disks({"name": "c" * 40, "sizeGib": 100}),
        'tpu.dataDisks[0].name: "cccccccccccccccccccccccccccccccccccccccc" has 40 characters, '
        "too many after the TPU's name. Set one of at most 39.",
    ),
    (
        "a snapshot's short name",
        disks({"name": "corpus", "snapshot": "corpus-1"}),
        'tpu.dataDisks[0].snapshot: "corpus-1" is not the full name of a snapshot. Use one like '
        "projects/some-project/global/snapshots/corpus-1.",
    ),
    (
        "a disk that nobody could ever fill",
        disks({"name": "corpus", "sizeGib": 100, "mode": "read-only"}),
        'tpu.dataDisks[0].mode: "read-only" would leave the new disk empty forever. Set '
        "snapshot, source for a disk with data, or mode: read-write.",
    ),
    (
        "a disk that all hosts would write to",
        config(
            zone="europe-west4-a",
            tpu={
                **VM,
                "acceleratorType": "v3-32",
                "dataDisks": [{"name": "corpus", "sizeGib": 100}],
            },
        ),
        'tpu.dataDisks[0].mode: "read-write" is for a TPU with one host, but a v3-32 has 4. Use '
        "read-only, with a disk that already has its data.",
    ),
    (
        "a disk that all slices would write to",
        disks({"source": DISK}, slices=2),
        'tpu.dataDisks[0].mode: "read-write" is for one TPU, but there are 2 slices. Use '
        "read-only, with a disk that already has its data, or name for a new disk for each "
        "slice.",
    ),
    (
        "a disk that all slices of a request would write to",
        disks({"name": "corpus", "sizeGib": 100}, slices=2, queued={}),
        'tpu.dataDisks[0].mode: "read-write" is for one TPU, but all slices of a queued '
        "resource have the same disks. Use read-only, with a disk that already has its data.",
    ),
    (
        "a disk that cannot be shared",
        config(
            tpu={
                "acceleratorType": "v6e-8",
                "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6",
                "slices": 2,
                "dataDisks": [
                    {
                        "name": "corpus",
                        "mode": "read-only",
                        "snapshot": "projects/some-project/global/snapshots/corpus",
                    }
                ],
            },
        ),
        "tpu.dataDisks[0].type: (not set) and would be hyperdisk-balanced, which can be attached "
        "to one machine only, but there are 2. Use hyperdisk-ml.",
    ),
    (
        "more disks than a host takes",
        config(
            tpu={
                "acceleratorType": "v6e-8",
                "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6",
                "dataDisks": [{"name": f"d{n}", "sizeGib": 10} for n in range(32)],
            },
        ),
        "tpu.dataDisks: 32 disks are more than a host of a v6e-8 supports. Use at most 31.",
    ),
    (
        "a given bucket without a name",
        config(bucket={"create": False}),
        "bucket.name is required with bucket.create: false. Set the name of the bucket to use.",
    ),
    (
        "a given bucket that would be destroyed",
        config(bucket={"create": False, "name": "our-data", "forceDestroy": True}),
        "bucket.forceDestroy: true is for a bucket that the stack creates, but bucket.create is "
        "false. Remove one of the two.",
    ),
    (
        "no runtime",
        config(tpu={"acceleratorType": "v2-8"}),
        "tpu.runtimeVersion is required for architecture vm. Set one, for example "
        "tpu-vm-tf-2.16.1-se or tpu-vm-tf-2.16.1-pod-se.",
    ),
    (
        "a runtime whose name does not follow Google's pattern",
        config(tpu={**VM, "runtimeVersion": "tpu-vm-tf-2.18.1-pod"}),
        'tpu.runtimeVersion: "tpu-vm-tf-2.18.1-pod" is not a runtime that Google documents. Use '
        "tpu-vm-tf-2.14.1-pod, tpu-vm-tf-2.13.1-pod or tpu-vm-tf-2.12.1-pod.",
    ),
    (
        "a runtime that is not listed and cannot run on the TPU",
        config(
            zone="us-west4-a",
            tpu={"acceleratorType": "v5litepod-8", "runtimeVersion": "tpu-vm-tf-2.99.0-pod-se"},
        ),
        'tpu.runtimeVersion: "tpu-vm-tf-2.99.0-pod-se" does not run on v5litepod-8 (it is for v2, '
        "v3, v4). Use tpu-vm-tf-2.19.0-pod-pjrt, tpu-vm-tf-2.17.0-pod-pjrt or "
        "tpu-vm-tf-2.15.0-pod-pjrt.",
    ),
    (
        "a generation that is for Compute Engine alone",
        config(tpu={**VM, "acceleratorType": "tpu7x-8"}),
        'tpu.acceleratorType: "tpu7x-8" is of a generation that the Cloud TPU API doesn\'t '
        "support: TPU7x and later are on Compute Engine and GKE only (docs/tpu-types.md). Use "
        "architecture compute with tpu7x-standard-4t.",
    ),
    (
        "a misspelt argument of the trainer",
        config(training={"args": ["--learning_rat=0.003"]}),
        'training.args: "--learning_rat=0.003" would end the training: --learning_rat: unknown; '
        "did you mean --learning_rate. `tpu-training train-and-evaluate --help` lists all "
        "parameters.",
    ),
    (
        "a tensorflow-cpu that doesn't exist",
        config(training={"tensorflowVersion": "2.18.7"}),
        'training.tensorflowVersion: "2.18.7" is not possible: tensorflow-cpu 2.18.7, which the '
        "VM would install, doesn't exist. Use 2.21.0, 2.20.0, 2.19.1 or 2.19.0.",
    ),
    (
        "a tensorflow-tpu that doesn't exist",
        config(
            tpu={**VM, "runtimeVersion": "tpu-ubuntu2204-base"},
            training={"runOn": "tpu", "tensorflowVersion": "2.19.0"},
        ),
        'training.tensorflowVersion: "2.19.0" is not possible: tensorflow-tpu 2.19.0, which the '
        "TPU VM would install, doesn't exist. Use 2.19.1, 2.18.0, 2.17.1 or 2.17.0.",
    ),
    (
        "a tensorflow-tpu that no libtpu goes with",
        config(
            tpu={**VM, "runtimeVersion": "tpu-ubuntu2204-base"},
            training={"runOn": "tpu", "tensorflowVersion": "2.20.0"},
        ),
        'training.tensorflowVersion: "2.20.0" is not possible: tensorflow-tpu 2.20.0, which the '
        "TPU VM would install, drives no TPU (it lacks functions that libtpu calls). Use 2.19.1, "
        "2.18.0, 2.17.1 or 2.17.0.",
    ),
    (
        "an image whose Python the training does not run with",
        config(vm={"image": "debian-cloud/debian-11"}),
        'vm.image: "debian-cloud/debian-11" has Python 3.9, but the training package needs 3.10. '
        "Use a newer image.",
    ),
    (
        "a runtime whose Python the training does not run with",
        config(
            tpu={**VM, "runtimeVersion": "tpu-vm-base"},
            training={"runOn": "tpu", "tensorflowVersion": "2.19.1"},
        ),
        'tpu.runtimeVersion: "tpu-vm-base" has Python 3.8, but the training package needs 3.10. '
        "Use a newer runtime.",
    ),
    (
        "a runtime with TensorFlow whose Python the training does not run with",
        config(
            tpu={**VM, "runtimeVersion": "tpu-vm-tf-2.12.1"},
            training={"runOn": "tpu"},
        ),
        'tpu.runtimeVersion: "tpu-vm-tf-2.12.1" has Python 3.8, but the training package needs '
        "3.10. Use a newer runtime.",
    ),
    (
        "jobs with an account of their own beside gRPC that obeys them as the machines'",
        config(training={"runOn": "tpu"}, jobs={"enabled": True}),
        "jobs.asRoot: false has no effect with training.runOn: tpu on this TPU, because any job "
        "can use its gRPC as root and with the VM's service account. Set training.runOn: vm, "
        "use one slice and no -pod runtime, or set jobs.asRoot: true.",
    ),
    (
        "a TensorFlow without a wheel for the image's Python",
        config(
            vm={"image": "ubuntu-os-cloud/ubuntu-2404-lts-amd64"},
            tpu={**VM, "runtimeVersion": "tpu-vm-tf-2.14.1-pod"},
        ),
        'vm.image: "ubuntu-os-cloud/ubuntu-2404-lts-amd64" has Python 3.12, which '
        "tensorflow-cpu 2.14.1 doesn't support. Use an image with Python 3.10 or 3.11, or "
        "another training.tensorflowVersion.",
    ),
    (
        "a node older than the training",
        node(tensorflowVersion="2.11.1"),
        "training.tensorflowVersion: (not set) and TensorFlow 2.11.1 is older than the training "
        "package supports (2.12). Use a TPU with TensorFlow 2.12 or newer.",
    ),
    (
        "a runtime for other TPUs",
        config(tpu={**VM, "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6"}),
        'tpu.runtimeVersion: "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6" does not run on v2-8 (it is '
        "for v5e, v6e). Use tpu-vm-tf-2.18.0-pod-pjrt-v5p-and-below, "
        "tpu-vm-tf-2.18.0-pjrt-v5p-and-below or tpu-vm-tf-2.19.0-pod-pjrt.",
    ),
    (
        "a family that TensorFlow's worker does not know",
        config(
            tpu={
                "acceleratorType": "v6e-8",
                "runtimeVersion": "tpu-vm-tf-2.18.0-pjrt-v5e-and-v6",
            }
        ),
        'tpu.runtimeVersion: "tpu-vm-tf-2.18.0-pjrt-v5e-and-v6" serves no gRPC, and TensorFlow\'s '
        "worker script does not know v6e. Use a -pod runtime, or training.runOn: tpu.",
    ),
    (
        "a slice that its worker 0 cannot use alone",
        config(
            zone="europe-west4-a",
            tpu={"acceleratorType": "v3-32", "runtimeVersion": "tpu-vm-tf-2.18.0-se"},
            training={"runOn": "tpu"},
        ),
        'tpu.runtimeVersion: "tpu-vm-tf-2.18.0-se" serves no gRPC, so a trainer on worker 0 '
        "can't use the other 3 hosts of a v3-32. Use a -pod runtime, or set jobs.enabled to run "
        "a program on each host.",
    ),
    (
        "a runtime without TensorFlow",
        config(
            tpu={**VM, "runtimeVersion": "tpu-ubuntu2204-base"},
        ),
        "training.tensorflowVersion is required: the runtime tpu-ubuntu2204-base has "
        "no TensorFlow of its own. Set the version to install, for example 2.19.1.",
    ),
    (
        "a node without a version",
        node(tensorflowVersion=None),
        "tpu.tensorflowVersion is required for architecture node. Set one, for example 2.12.1.",
    ),
    (
        "an unknown version of a node",
        node(tensorflowVersion="2.19.1"),
        'tpu.tensorflowVersion: "2.19.1" is not a version of TPU Nodes. Use 2.12.1 or 2.12.0.',
    ),
    (
        "a version of the first nodes",
        node(tensorflowVersion="1.8"),
        'tpu.tensorflowVersion: "1.8" is no longer supported on TPU Nodes since 2019-03-11. '
        "Choose from: 2.12.1, 2.12.0.",
    ),
    (
        "a trainer's version that is none",
        config(training={"tensorflowVersion": "newest"}),
        'training.tensorflowVersion: "newest" is not a version. Use one like 2.19.1.',
    ),
    (
        "a block that is none",
        node(cidrBlock="10.240.1.x/29"),
        'tpu.cidrBlock: "10.240.1.x/29" is not an IPv4 range. Use one like 10.10.0.0/20.',
    ),
    (
        "a block without its size",
        node(cidrBlock="10.240.1.0"),
        'tpu.cidrBlock: "10.240.1.0" has no size. Add one, as in 10.240.1.0/20.',
    ),
    (
        "a block that begins in the middle",
        node(cidrBlock="10.240.1.3/29"),
        'tpu.cidrBlock: "10.240.1.3/29" does not begin at the first address of a /29. '
        "Use 10.240.1.0/29.",
    ),
    (
        "a block that is too small",
        node(cidrBlock="10.240.1.0/30"),
        'tpu.cidrBlock: "10.240.1.0/30" has 4 addresses, too few for a v2-8. Use a /29 or larger, '
        "for example 10.240.1.0/29.",
    ),
    (
        "a block that is too small for a slice",
        {
            **node(acceleratorType="v2-128", cidrBlock="10.240.1.0/29"),
            "tpu-stack:zone": "us-central1-a",
        },
        'tpu.cidrBlock: "10.240.1.0/29" has 8 addresses, too few for a v2-128. Use a /27 or '
        "larger, for example 10.240.1.0/27.",
    ),
    (
        "a public block",
        node(cidrBlock="8.8.8.0/29"),
        'tpu.cidrBlock: "8.8.8.0/29" is not private (RFC 1918). Use addresses in 10.0.0.0/8, '
        "172.16.0.0/12, 192.168.0.0/16.",
    ),
    (
        "a block inside the stack's own subnet",
        node(cidrBlock="10.10.1.0/29"),
        'tpu.cidrBlock: "10.10.1.0/29" overlaps the subnet\'s range 10.10.0.0/20. '
        "Use private addresses outside of it.",
    ),
    (
        "a block inside the default network",
        {**node(cidrBlock="10.128.1.0/29"), "tpu-stack:network": {"create": False}},
        'tpu.cidrBlock: "10.128.1.0/29" overlaps the subnet\'s range 10.128.0.0/20. '
        "Use private addresses outside of it.",
    ),
    (
        "a small subnet",
        config(network={"subnetRange": "10.10.0.0/30"}),
        'network.subnetRange: "10.10.0.0/30" is smaller than the smallest subnet of Google Cloud '
        "(/29). Use a range with a prefix of at most 29, for example 10.10.0.0/20.",
    ),
    (
        "a subnet without an address for every host",
        config(network={"subnetRange": "10.10.0.0/28"}, tpu={**VM, "slices": 12}),
        'network.subnetRange: "10.10.0.0/28" has 12 addresses for machines, but there are 13. Use '
        "a /27 or larger.",
    ),
    (
        "more hosts than the default network has addresses",
        config(
            zone="us-west4-a",
            network={"create": False},
            tpu={
                "acceleratorType": "v5litepod-256",
                "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6",
                "slices": 64,
            },
        ),
        "network.subnetRange: (not set) and would be a /20, which has 4092 addresses for machines, "
        "but there are 4097. Use a /19 or larger.",
    ),
    (
        "a network of another beside one's own",
        config(network={"name": "shared"}),
        'network.name: "shared" names an existing network, but the stack creates its own. Set '
        "network.create: false to use it, or remove it.",
    ),
    (
        "a host project without its network's name",
        config(network={"create": False, "project": "host-project"}),
        "network.name is required with network.project: host-project may share several "
        "networks. Set it, and network.subnetwork if that has another name.",
    ),
    (
        "a host project that is none",
        config(network={"create": False, "project": "Host", "name": "shared"}),
        'network.project: "Host" is not a project ID (6 to 30 lower-case letters, digits and '
        "hyphens, a letter first). Use the ID of the Shared VPC's host project.",
    ),
    (
        "the stack's own project as host project",
        config(network={"create": False, "project": "some-project", "name": "shared"}),
        'network.project: "some-project" is the stack\'s own project. Remove it, or name the host '
        "project of a Shared VPC.",
    ),
    (
        "a classic node in a Shared VPC",
        {
            **node(),
            "tpu-stack:network": {"create": False, "project": "host-project", "name": "shared"},
        },
        'network.project: "host-project" is for architecture vm; a TPU Node would need a '
        "Service Networking connection. Use architecture vm, or a network of the stack's own "
        "project.",
    ),
    (
        "an unknown machine type",
        config(vm={"machineType": "n1-highmen-1"}),
        'vm.machineType: "n1-highmen-1" is not a machine type in the catalog. Use '
        "n1-highmem-16, n1-highmem-8 or n1-highmem-4.",
    ),
    (
        "a model larger than the VM",
        config(training={"modelMemoryGib": 16}),
        'vm.machineType: "n1-standard-2" has 7.5 GiB of memory, but the model needs 16 GiB '
        "(training.modelMemoryGib). Use n2-highmem-2 or e2-highmem-2.",
    ),
    (
        "an image without its family",
        config(vm={"image": "debian-12"}),
        'vm.image: "debian-12" is not PROJECT/FAMILY. Use one like debian-cloud/debian-12.',
    ),
    (
        "a termination action of a VM that is not taken away",
        config(vm={"terminationAction": "delete"}),
        'vm.terminationAction: "delete" is for a spot VM, but vm.capacity is on-demand. Set '
        "vm.capacity: spot, or remove it.",
    ),
    (
        "a termination action that Google does not have",
        config(vm={"capacity": "spot", "terminationAction": "suspend"}),
        "vm.terminationAction: \"suspend\" is unknown. Use 'stop' or 'delete'.",
    ),
    (
        "integrity without what measures it",
        config(vm={"shielded": {"vtpm": False}}),
        "vm.shielded.integrityMonitoring: true needs the vTPM, but vm.shielded.vtpm is false. "
        "Set both to the same value.",
    ),
    (
        "a boot disk to be kept by a group that makes new ones",
        config(vm={"instanceGroup": {}, "keepBootDisk": True}),
        "vm.keepBootDisk: true contradicts vm.instanceGroup: the group creates a new boot disk "
        "for every new VM. Remove one of the two.",
    ),
    (
        "an agent on a VM without a script",
        config(vm={"opsAgent": True}, training={"runOn": "tpu"}),
        "vm.opsAgent: true is installed by the startup script, which the VM only has if it runs "
        "the trainer (training.runOn is tpu). Remove it, or set training.runOn: vm.",
    ),
    (
        "a group where nothing is said",
        config(vm={"instanceGroup": True}),
        "vm.instanceGroup: true is not a map of settings. Use {}, or set below it: "
        "initialDelaySeconds, checkIntervalSeconds, failedChecks.",
    ),
    (
        "a health check in a hurry",
        config(vm={"instanceGroup": {"checkIntervalSeconds": 1}}),
        "vm.instanceGroup.checkIntervalSeconds: 1 is too small. Use at least 5.",
    ),
    (
        "a bucket in another region",
        config(bucket={"location": "EU"}),
        'bucket.location: "EU" is not the TPU\'s region: reading across regions is slow and is '
        "billed as egress (the zone is us-central1-b). Use us-central1, or leave it out.",
    ),
    (
        "a bucket that is both kept and not",
        config(bucket={"protect": True, "forceDestroy": True}),
        "bucket.forceDestroy: true contradicts bucket.protect: true. Set one of the two to false.",
    ),
    (
        "a bucket's name in capitals",
        config(bucket={"name": "My-Bucket"}),
        'bucket.name: "My-Bucket" is not a bucket name (3 to 63 lower-case letters, digits, '
        "hyphens, dots and underscores). Set one like my-project-tpu-data.",
    ),
    (
        "a bucket's name that is a domain",
        config(bucket={"name": "data.example.com"}),
        'bucket.name: "data.example.com" has a dot: only the owner of a domain can create a '
        "bucket with its name. Set one like my-project-tpu-data.",
    ),
    (
        "a bucket's name that is Google's",
        config(bucket={"name": "goog-data"}),
        'bucket.name: "goog-data" starts with "goog" or contains "google", which Google '
        "reserves. Set one like my-project-tpu-data.",
    ),
    (
        "an owner that is no part of a name",
        config(owner="Ada Lovelace"),
        'owner: "Ada Lovelace" can\'t be part of a name (lower-case letters, digits and hyphens, '
        "no hyphen first or last). Correct it.",
    ),
    (
        "an owner with a long name",
        config(owner="ada-king-countess-of-lovelace"),
        "namePrefix: (not set) and would be 'tpu-stack-test-ada-king-countess-of-lovelace', which "
        "gives names the wrong number of characters: the service account "
        "tpu-stack-test-ada-king-countess-of-lovelace-sa has 47 (6 to 30). Set one of 3 to 27 "
        "characters.",
    ),
    (
        "an owner beside a prefix",
        config(owner="ada", namePrefix="our-stack"),
        "owner: \"ada\" has no effect, because namePrefix is 'our-stack'. Remove one of the two.",
    ),
    (
        "a prefix that is no name",
        config(namePrefix="9lives"),
        'namePrefix: "9lives" is not a valid resource name (lower-case letters, digits and '
        "hyphens, a letter first, no hyphen last). Set one like tpu-stack-dev.",
    ),
    (
        "a long prefix",
        config(namePrefix="a" * 28),
        f'namePrefix: "{"a" * 28}" gives names the wrong number of characters: the service account '
        f"{'a' * 28}-sa has 31 (6 to 30). Set one of 3 to 27 characters.",
    ),
    (
        "a wheel that is not there",
        config(training={"wheel": "dist/other.whl"}),
        'training.wheel: "dist/other.whl" doesn\'t exist. Build it with `tpustack wheel`, or set '
        "the path of one, relative to the project's root.",
    ),
    (
        "data that is not there",
        config(training={"data": "nowhere"}),
        'training.data: "nowhere" doesn\'t exist. Fill it with `tpu-training data convert '
        "--source DIR --output nowhere`, or leave training.data out if the bucket already has "
        "the data.",
    ),
    (
        "a limit that would stop every training",
        config(limits={"idleMinutes": 1}),
        "limits.idleMinutes: 1 is too small. Use at least 10.",
    ),
    (
        "a life without end",
        config(limits={"timeToLiveHours": 10000}),
        "limits.timeToLiveHours: 10000 is too large. Use at most 8760.",
    ),
    (
        "a job that is no name",
        config(training={"job": "a/b"}),
        'training.job: "a/b" is not a job name (at most 63 lower-case letters, digits, hyphens, '
        "dots, underscores). Use one like mnist-1.",
    ),
    (
        "a rule that deletes a job's last checkpoint because it is old",
        config(bucket={"lifecycle": [{"ageDays": 30}]}),
        "bucket.lifecycle[0].ageDays: 30 would delete jobs/JOB/checkpoints by age, including "
        "what a paused job needs to resume. Set a prefix with it, such as "
        "jobs/mnist-1/tensorboard/, or delete only old versions with noncurrentDays, or move to "
        "nearline instead.",
    ),
    (
        "a rule that deletes the data because it is old",
        config(bucket={"lifecycle": [{"ageDays": 30, "prefix": "data/mnist"}]}),
        "bucket.lifecycle[0].ageDays: 30 would delete data by age, including what a paused job "
        "needs to resume. Set a prefix with it, such as jobs/mnist-1/tensorboard/, or delete "
        "only old versions with noncurrentDays, or move to nearline instead.",
    ),
    (
        "a rule without a condition",
        config(bucket={"lifecycle": [{"action": "nearline"}]}),
        'bucket.lifecycle[0]: {"action": "nearline"} has no condition. Set ageDays, '
        "noncurrentDays or newerVersions.",
    ),
    (
        "a rule about old versions without versioning",
        config(bucket={"lifecycle": [{"noncurrentDays": 30}]}),
        "bucket.lifecycle[0].noncurrentDays: 30 is for noncurrent objects, which don't exist "
        "with bucket.versioning: false. Set bucket.versioning: true, or use ageDays.",
    ),
    (
        "a misspelled condition of a rule",
        config(bucket={"lifecycle": [{"agedays": 30}]}),
        "bucket.lifecycle[0].agedays: 30 is not a setting. Did you mean "
        "bucket.lifecycle[0].ageDays?",
    ),
    (
        "an unknown action of a rule",
        config(bucket={"lifecycle": [{"ageDays": 30, "action": "burn"}]}),
        "bucket.lifecycle[0].action: \"burn\" is unknown. Use 'delete', 'nearline', 'coldline' or "
        "'archive'.",
    ),
    (
        "more rules than a bucket has",
        config(bucket={"lifecycle": [{"ageDays": 30, "action": "archive"}] * 101}),
        'bucket.lifecycle: "101 rules" are too many: a bucket can have at most 100. Remove some.',
    ),
    (
        "deleted objects kept for three days",
        config(bucket={"softDeleteDays": 3}),
        "bucket.softDeleteDays: 3 is too short: Google keeps deleted objects for at least 7 "
        "days. Use 7 or more, or 0 to keep nothing.",
    ),
    (
        "a key with a letter that no name has",
        config(
            bucket={
                "encryption": {"key": "projects/p/locations/us-central1/keyRings/ü/cryptoKeys/k"}
            }
        ),
        'bucket.encryption.key: "projects/p/locations/us-central1/keyRings/ü/cryptoKeys/k" is '
        "not the full name of a key. Use "
        "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY, as `gcloud kms keys "
        "list` shows it.",
    ),
    (
        "a key by its short name",
        config(bucket={"encryption": {"key": "my-key"}}),
        'bucket.encryption.key: "my-key" is not the full name of a key. Use '
        "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY, as `gcloud kms keys "
        "list` shows it.",
    ),
    (
        "a key in another region",
        config(bucket={"encryption": {"key": "projects/p/locations/us/keyRings/r/cryptoKeys/k"}}),
        'bucket.encryption.key: "projects/p/locations/us/keyRings/r/cryptoKeys/k" is in us, but '
        "the bucket is in us-central1. Use a key in us-central1.",
    ),
    (
        "the rotation of a key that is not the stack's",
        config(
            bucket={
                "encryption": {
                    "key": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k",
                    "rotationDays": 30,
                }
            }
        ),
        "bucket.encryption.rotationDays: 30 is for a key that the stack creates, but "
        "bucket.encryption.key names an existing one. Remove one of the two.",
    ),
    (
        "rules for a bucket that is not the stack's",
        config(
            bucket={
                "create": False,
                "name": "our-data",
                "lifecycle": [{"ageDays": 30, "action": "nearline"}],
            }
        ),
        'bucket.lifecycle: [{"action": "nearline", "ageDays": 30}] is for a bucket that the '
        "stack creates, but bucket.create is false. Remove one of the two.",
    ),
    (
        "a key for a bucket that is not the stack's",
        config(bucket={"create": False, "name": "our-data", "encryption": {}}),
        "bucket.encryption: {} is for a bucket that the stack creates, but bucket.create is "
        "false. Remove one of the two.",
    ),
    (
        "a budget without an amount",
        config(budget={}),
        "budget.amount is required. Set it: Monthly budget, in whole units of the billing "
        "account's currency.",
    ),
    (
        "a billing account by its display name",
        config(budget={"amount": 500, "billingAccount": "My Billing Account"}),
        'budget.billingAccount: "My Billing Account" is not a billing account. Use one like '
        "01ABCD-234567-89EF01: `gcloud billing accounts list` shows them.",
    ),
    (
        "a budget that tells a name instead of an address",
        config(budget={"amount": 500, "emails": ["the team"]}),
        'budget.emails: "the team" is not an e-mail address. Use one like me@example.com.',
    ),
    (
        "a budget that tells too many",
        config(budget={"amount": 5, "emails": [f"{n}@example.com" for n in range(6)]}),
        'budget.emails: ["0@example.com", "1@example.com", "2@example.com", "3@example.com", '
        '"4@example.com", "5@example.com"] are too many: a budget notifies at most 5 addresses. '
        "Use the address of a group.",
    ),
    (
        "a budget that tells one address twice",
        config(budget={"amount": 5, "emails": ["a@example.com", "a@example.com"]}),
        'budget.emails: ["a@example.com", "a@example.com"] has one twice. Name each of them once.',
    ),
    (
        "a budget that never tells anything",
        config(budget={"amount": 500, "thresholds": []}),
        "budget.thresholds: [] never sends a notification. Name at least one, such as 100.",
    ),
    (
        "a threshold of nothing",
        config(budget={"amount": 500, "thresholds": [0]}),
        "budget.thresholds[0]: 0 is too small. Use at least 1.",
    ),
    (
        "a topic with a name that Google keeps for itself",
        config(budget={"amount": 500, "pubsubTopic": "google-budget"}),
        'budget.pubsubTopic: "google-budget" is not a topic name. Use one like tpu-budget, or '
        "projects/PROJECT/topics/NAME of an existing one.",
    ),
    (
        "messages to what is no address",
        config(messages={"emails": ["ada"]}),
        'messages.emails: "ada" is not an e-mail address. Use one like me@example.com.',
    ),
    (
        "messages to somebody else's topic",
        config(messages={"pubsubTopic": "projects/p/topics/t"}),
        'messages.pubsubTopic: "projects/p/topics/t" is not a topic name. Use the name of a new '
        "topic, like tpu-messages.",
    ),
    (
        "one topic made twice",
        config(messages={"pubsubTopic": "tpu"}, budget={"amount": 5, "pubsubTopic": "tpu"}),
        'messages.pubsubTopic: "tpu" is the topic of the budget, too. Use another name, because '
        "the stack creates both.",
    ),
]


def refusals(settings: dict[str, Any], root: Path) -> list[str]:
    try:
        parsed = parse(settings, "test")
    except SettingsError as error:
        return [str(problem) for problem in error.problems]
    return [str(problem) for problem in find_problems(parsed, context_of(parsed, root))]


@pytest.mark.parametrize(
    ("settings", "message"),
    [pytest.param(settings, message, id=name) for name, settings, message in WRONG],
)
def test_a_wrong_stack_is_refused_with_one_message(
    settings: dict[str, Any], message: str, root: Path
) -> None:
    assert refusals(settings, root) == [message]


def test_a_slice_without_grpc_is_for_jobs_that_run_on_each_host(root: Path) -> None:
    settings = config(
        zone="europe-west4-a",
        tpu={"acceleratorType": "v3-32", "runtimeVersion": "tpu-vm-tf-2.18.0-se"},
        training={"runOn": "tpu"},
        jobs={"enabled": True},
    )
    assert refusals(settings, root) == []


def test_an_empty_data_directory_is_refused(root: Path) -> None:
    (root / "empty").mkdir()
    (message,) = refusals(config(training={"data": "empty"}), root)
    assert message.startswith('training.data: "empty" has no files.')


def test_a_directory_without_a_data_set_is_refused(root: Path) -> None:
    (root / ".demo" / "data" / "manifest.json").unlink()
    (message,) = refusals(config(training={"data": ".demo/data"}), root)
    assert message.startswith(
        'training.data: ".demo/data" has no manifest.json, which a training needs. '
        "Fill it with `tpu-training data convert"
    )


@pytest.mark.parametrize("around", [".", "dist/..", "..", "/", ".demo/../"])
def test_the_projects_own_folder_is_no_data_set(root: Path, around: str) -> None:
    (root / "manifest.json").write_text("{}")
    assert refusals(config(training={"data": around}), root) == [
        f"training.data: {json.dumps(around)} is the project's folder or a parent of it, which "
        "would be uploaded completely. Use a folder that contains only the dataset."
    ]


KEY = "-----BEGIN RSA PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gha-creds-0123456789abcdef.json", "{}"),
        ("train/application_default_credentials.json", "{}"),
        ("labels.json", '{"type": "service_account", "private_key": "x"}'),
        ("labels.JSON", '{"type": "external_account"}'),
        ("a b.json", '{"type": "authorized_user"}'),
        ("key", KEY),
        ("train/key.txt", "-----BEGIN PRIVATE KEY-----\n"),
    ],
)
def test_credentials_are_not_uploaded(root: Path, name: str, content: str) -> None:
    path = root / ".demo" / "data" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    assert refusals(config(training={"data": ".demo/data"}), root) == [
        f'training.data: ".demo/data" has {name}, which holds credentials. Anyone who may read '
        "the bucket could read it. Remove it from the folder."
    ]


def test_a_link_out_of_the_data_is_not_followed(root: Path, tmp_path: Path) -> None:
    data = root / ".demo" / "data"
    (tmp_path / "secret").write_text("secret")
    (data / "link").symlink_to(tmp_path / "secret")
    (data / "inside").symlink_to(data / "manifest.json")
    assert refusals(config(training={"data": ".demo/data"}), root) == [
        'training.data: ".demo/data" has link, a link to a file outside of it. Anyone who may '
        "read the bucket could read it. Remove it from the folder."
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.json", '{"type": "FeatureCollection"}'),
        ("list.json", "[1]"),
        ("broken.json", "{"),
        ("certificate.pem", "-----BEGIN CERTIFICATE-----\n"),
        (".git/config", "x"),
        (".env", KEY),
    ],
)
def test_what_holds_no_credentials_or_is_hidden_stops_nothing(
    root: Path, name: str, content: str
) -> None:
    path = root / ".demo" / "data" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    settings = config(training={"data": ".demo/data"})
    assert refusals(settings, root) == []
    uploaded = data_files(parse(settings, "test"), root)
    assert (name in uploaded) == (not name.startswith("."))


def test_a_missing_wheel_is_refused(root: Path) -> None:
    for wheel in (root / "dist").iterdir():
        wheel.unlink()
    assert refusals(config(), root) == [
        "training.wheel: (not set) and there is no dist/tpu_stack_training-*.whl. "
        "Build it with `tpustack wheel`, or set the path of one."
    ]


def test_all_problems_are_reported_at_once(root: Path) -> None:
    wrong = config(
        zone="us-central1-a",
        vm={"machineType": "n9-tiny"},
        bucket={"location": "asia-east1"},
        training={"data": "nowhere"},
    )
    settings = [message.partition(":")[0] for message in refusals(wrong, root)]
    assert settings == ["zone", "vm.machineType", "bucket.location", "training.data"]


def test_the_message_names_the_stack_its_file_and_the_number_of_problems() -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"tpu-stack:zoen": "x"}, "dev")
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 problems in the settings of stack 'dev' (stacks/Pulumi.dev.yaml):"
    assert lines[-1] == "Nothing was created or changed."


def test_every_check_refuses_one_of_the_wrong_stacks(root: Path) -> None:
    refusing: set[str] = set()
    for _, values, _ in WRONG:
        with suppress(SettingsError):
            settings = parse(values, "test")
            context = context_of(settings, root)
            refusing |= {check.__name__ for check in CHECKS if list(check(settings, context))}
    assert {check.__name__ for check in CHECKS} == refusing
