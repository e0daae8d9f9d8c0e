"""Settings by chance: right in every part at first, then some parts changed to anything else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tpu_infra.catalog.entries import Accelerator
from tpu_infra.settings.machines import FULL_SCOPE

from .generate_values import (
    ACCELERATORS,
    CAPACITIES,
    CATALOG,
    GIVEN_GIB,
    GIVEN_NETWORK,
    HOST_ZONES,
    HOSTS,
    MACHINES,
    PROJECT,
    RUNTIMES,
    SERVED,
    TOPOLOGIES,
    VERSIONS,
    VM_CAPACITIES,
    ZONES,
    Json,
    block,
    bucket,
    budget,
    data_disk,
    encryption,
    given_range,
    labels,
    rule,
    text,
)

Change = Callable[[Random, Json], None]


def stack(chance: Random) -> Json:
    """The configuration of a stack file."""
    accelerator = CATALOG.accelerators[chance.choice(ACCELERATORS)]
    node = "node" in accelerator.architectures and chance.random() < 0.4
    zone = chance.choice(accelerator.zones)
    made: Json = {
        "zone": zone,
        "architecture": "node" if node else "vm",
        "tpu": _node(chance, accelerator) if node else _tpu_vm(chance, accelerator, zone),
        "vm": _vm(chance),
        "bucket": bucket(chance, zone.rpartition("-")[0]),
        "network": _network(chance, zone.rpartition("-")[0]),
        "training": {"modelMemoryGib": 0.5, "tensorflowVersion": "2.19.1"},
        "labels": chance.choice(({}, {"team": "vision"})),
        "limits": chance.choice(({}, {}, {"timeToLiveHours": 8}, {"idleMinutes": 30})),
    }
    if chance.random() < 0.1:
        made["budget"] = budget(chance)
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))):
        chance.choice(_CHANGES)(chance, made)
    return {"gcp:project": PROJECT} | {f"tpu-stack:{key}": value for key, value in made.items()}


def compute_stack(chance: Random) -> Json:
    """The configuration of a stack file whose TPU is one or several machines of Compute Engine."""
    name = chance.choice(HOSTS)
    host = CATALOG.hosts[name]
    tpu: Json = {"acceleratorType": name, "externalIps": chance.random() < 0.2}
    tpu["capacity"] = chance.choice(("on-demand", "spot", "reserved", "flex-start"))
    if tpu["capacity"] == "reserved":
        full = f"projects/{PROJECT}/locations/{host.tpu.zones[0]}/reservations/mine"
        bound = chance.random() < 0.3
        tpu["queued"] = {"reservation": chance.choice(("mine", full)), "reservationBound": bound}
    if tpu["capacity"] == "flex-start":
        tpu["queued"] = {"runHours": chance.choice((0.17, 2.5, 168))}
    if chance.random() < 0.5:
        tpu["topology"] = chance.choice((host.tpu.topology, *host.slices))
    if chance.random() < 0.3:
        tpu |= {"bootDiskGib": chance.choice((100, 65536)), "secureBoot": chance.random() < 0.5}
    made: Json = {
        "zone": chance.choice(host.tpu.zones),
        "architecture": "compute",
        "tpu": tpu,
        "training": {"runOn": "tpu"},
        "jobs": {"enabled": True},
        "labels": chance.choice(({}, {"team": "vision"})),
    }
    if tpu["capacity"] != "flex-start" and chance.random() < 0.3:
        made["limits"] = {"timeToLiveHours": chance.choice((0.5, 8, 2880))}
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        chance.choice(_COMPUTE_CHANGES)(chance, made)
    return {"gcp:project": PROJECT} | {f"tpu-stack:{key}": value for key, value in made.items()}


def _tpu_vm(chance: Random, accelerator: Accelerator, zone: str) -> Json:
    fitting = [r for r in CATALOG.runtimes.values() if accelerator.family in r.families]
    made: Json = {
        "acceleratorType": accelerator.name,
        "runtimeVersion": chance.choice(fitting).name,
        "capacity": chance.choice(CAPACITIES),
        "externalIps": chance.random() < 0.2,
        "secureBoot": chance.random() < 0.2,
    }
    if chance.random() < 0.1:
        made["slices"] = chance.choice((2, 256))
    if chance.random() < 0.3:
        made |= _queued(chance, made["capacity"], made.get("slices", 1))
    elif made["capacity"] == "spot" and chance.random() < 0.3:
        made["queued"] = {"enabled": False}
    if accelerator.flex_start and chance.random() < 0.2:
        made |= {"capacity": "flex-start", "queued": {"runHours": chance.choice((0.5, 168))}}
    if chance.random() < 0.2:
        many = 2 if chance.random() < 0.3 else 1
        made["dataDisks"] = [
            data_disk(chance, accelerator, zone, number, made.get("slices", 1))
            for number in range(many)
        ]
    if chance.random() < 0.1:
        made["tags"] = ["tpus"]
    if chance.random() < 0.1:
        made["scopes"] = [FULL_SCOPE, "https://mail.google.com/"]
    return made


def _queued(chance: Random, capacity: str, slices: int) -> Json:
    queued: Json = {}
    if chance.random() < 0.3:
        queued["validUntil"] = "2099-12-31T18:00:00Z"
    if chance.random() < 0.3 and capacity in ("on-demand", "reserved"):
        queued["guaranteedHours"] = chance.choice((0.5, 8760))
    if chance.random() < 0.3 and capacity == "reserved":
        queued["reservation"] = "mine"
        queued["reservationBound"] = chance.random() < 0.3
    made: Json = {"queued": queued, "autocheckpoint": chance.random() < 0.2}
    if chance.random() < 0.2:
        made["bootDiskGib"] = chance.choice((100, 65536))
    return made


def _node(chance: Random, accelerator: Accelerator) -> Json:
    made: Json = {
        "acceleratorType": accelerator.name,
        "tensorflowVersion": chance.choice(SERVED),
        "capacity": chance.choice(("on-demand", "preemptible")),
    }
    if chance.random() < 0.5:
        made["cidrBlock"] = f"10.64.0.0/{accelerator.cidr_prefix}"
    return made


def _vm(chance: Random) -> Json:
    made: Json = {
        "machineType": chance.choice(MACHINES),
        "capacity": chance.choice(VM_CAPACITIES),
        "image": chance.choice(("debian-cloud/debian-12", "ubuntu-os-cloud/ubuntu-2204-lts")),
        "bootDiskGib": chance.choice((20, 50, 65536)),
        "bootDiskType": chance.choice(("pd-balanced", "pd-standard", "pd-ssd")),
        "publicIp": chance.random() < 0.5,
        "osLogin": chance.random() < 0.5,
        "serialPortLogging": chance.random() < 0.9,
        "opsAgent": chance.random() < 0.2,
    }
    if chance.random() < 0.3:
        made["instanceGroup"] = _managed(chance)
    elif chance.random() < 0.3:
        made["keepBootDisk"] = True
    return made


def _managed(chance: Random) -> Json:
    ranges = {
        "initialDelaySeconds": (0, 3600),
        "checkIntervalSeconds": (5, 300),
        "failedChecks": (1, 10),
    }
    return {
        name: chance.choice((*ends, chance.randint(*ends)))
        for name, ends in ranges.items()
        if chance.random() < 0.7
    }


def _network(chance: Random, region: str) -> Json:
    given: Json = {"create": False, "name": GIVEN_NETWORK, "tags": ["egress"]}
    given["subnetRange"] = str(given_range(region))
    if chance.random() < 0.5:
        given["subnetwork"] = GIVEN_NETWORK
    return chance.choice(({}, {}, {"subnetRange": "172.20.0.0/24"}, {"create": False}, given))


def _set(section: str, name: str, value: Callable[[Random], object]) -> Change:
    def change(chance: Random, made: Json) -> None:
        made[section] = {**made[section], name: value(chance)}

    return change


def _top(name: str, value: Callable[[Random], object]) -> Change:
    def change(chance: Random, made: Json) -> None:
        made[name] = value(chance)

    return change


def _data_disks(chance: Random, made: Json) -> None:
    """Disks as another TPU would have them, or with something that no disk can have."""
    other = CATALOG.accelerators[chance.choice(ACCELERATORS)]
    zone = chance.choice((made["zone"], chance.choice(ZONES)))
    most = CATALOG.accelerators.get(made["tpu"]["acceleratorType"], other).data_disks
    many = chance.choice((most, most + 1)) if chance.random() < 0.05 else chance.choice((1, 1, 2))
    disks = [
        data_disk(chance, other, zone, number, chance.choice((1, 2))) for number in range(many)
    ]
    name, value = chance.choice(
        (
            ("mode", chance.choice(("read-write", "read-only"))),
            ("type", chance.choice(("pd-balanced", "hyperdisk-balanced", "hyperdisk-ml"))),
            ("name", text(chance, 8) if chance.random() < 0.7 else "d" * chance.randint(20, 50)),
            ("sizeGib", chance.choice((GIVEN_GIB, 65536))),
            ("source", "corpus"),
        )
    )
    if name not in disks[0] and chance.random() < 0.7:
        value = disks[0].get(name, value)
    made["tpu"] = {**made["tpu"], "dataDisks": [{**disks[0], name: value}, *disks[1:]]}


_COMPUTE_CHANGES: tuple[Change, ...] = (
    _top("zone", lambda c: c.choice([*HOST_ZONES, "us-west1-b", "us-central1-x", "mars-north1-a"])),
    _top("limits", lambda c: {"timeToLiveHours": c.choice((12, 2881, 8760))}),
    _top("labels", labels),
    _top("training", lambda c: {"runOn": "tpu", "tensorflowVersion": "2.19.1"}),
    _set("tpu", "acceleratorType", lambda c: c.choice([*HOSTS, "ct6e-standard-2t", "v6e-8"])),
    _set("tpu", "acceleratorType", lambda c: c.choice(("ct5lp-hightpu-4t", "ct6e-standard-16t"))),
    _set("tpu", "topology", lambda c: c.choice([*TOPOLOGIES, "3x3", "4x4x1", "1x2"])),
    _set("tpu", "capacity", lambda c: c.choice((*CAPACITIES, "flex-start"))),
    _set("tpu", "queued", lambda c: c.choice(({}, {"runHours": 0.1}, {"runHours": 169}))),
    _set("tpu", "queued", lambda c: {"reservation": text(c, 5)}),
    _set("tpu", "bootDiskGib", lambda c: c.choice((10, 65536, 65537))),
    _set("tpu", "tags", lambda c: [text(c, 4)]),
    _set("tpu", "scopes", lambda c: [FULL_SCOPE, c.choice(("cloud-platform", "https://x.org/"))]),
)

_CHANGES: tuple[Change, ...] = (
    _top("zone", lambda c: c.choice([*ZONES, "us-central1-d", "mars-north1-a"])),
    _top("architecture", lambda c: c.choice(("vm", "node"))),
    _top("namePrefix", lambda c: text(c, 10) if c.random() < 0.7 else "a" * c.randint(1, 40)),
    _top("namePattern", lambda c: f"{{stack}}-{text(c, 3)}{'a' * c.randint(1, 40)}-{{name}}"),
    _top("labels", labels),
    _set("tpu", "acceleratorType", lambda c: c.choice([*ACCELERATORS, "v2-9", "v9-8"])),
    _set("tpu", "runtimeVersion", lambda c: c.choice([*RUNTIMES, "tpu-vm-tf-9.9.9"])),
    _set("tpu", "tensorflowVersion", lambda c: c.choice([*VERSIONS, "9.9", None])),
    _set("tpu", "cidrBlock", block),
    _set("tpu", "capacity", lambda c: c.choice((*CAPACITIES, "flex-start"))),
    _set("tpu", "tags", lambda c: [text(c, 4)]),
    _set("tpu", "scopes", lambda c: [FULL_SCOPE, c.choice(("cloud-platform", "https://x.org/"))]),
    _set("tpu", "slices", lambda c: c.randint(1, 256)),
    _set("tpu", "queued", lambda c: c.choice(({}, {"guaranteedHours": 2}, {"reservation": "r"}))),
    _set("tpu", "queued", lambda c: {"reservation": text(c, 5)}),
    _data_disks,
    _set("vm", "machineType", lambda c: c.choice([*MACHINES, "n1-standard-3", "x1-mega-2"])),
    _set("vm", "capacity", lambda c: c.choice(VM_CAPACITIES)),
    _set("vm", "terminationAction", lambda c: c.choice(("stop", "delete"))),
    _set("vm", "shielded", lambda c: {"vtpm": c.random() < 0.5, "secureBoot": c.random() < 0.5}),
    _set("vm", "shielded", lambda c: {"vtpm": False, "integrityMonitoring": c.random() < 0.5}),
    _set("vm", "instanceGroup", _managed),
    _set("bucket", "name", lambda c: text(c, 12) if c.random() < 0.7 else "a" * c.randint(1, 70)),
    _set(
        "bucket", "name", lambda c: c.choice(("192.168.5.4", "a..b", "a.-b", "my-goog1e", "goog"))
    ),
    _set("bucket", "softDeleteDays", lambda c: c.choice((0, 1, 6, 7, 90))),
    _set("bucket", "lifecycle", lambda c: [rule(c) for _ in range(c.choice((1, 2, 100, 101)))]),
    _set("bucket", "encryption", lambda c: encryption(c, c.choice(ZONES).rpartition("-")[0])),
    _top("network", lambda c: {"subnetRange": block(c)}),
    _set("training", "runOn", lambda c: c.choice(("vm", "tpu"))),
    _top("budget", budget),
)
