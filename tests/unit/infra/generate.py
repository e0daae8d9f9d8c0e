"""Settings by chance: right in every part at first, then some parts changed to anything else."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network
from random import Random
from typing import Any

from infra.catalog import Catalog
from infra.catalog.model import Accelerator

CATALOG = Catalog()
PROJECT = "tpu-stack-local"
ACCELERATORS = sorted(CATALOG.accelerators)
ZONES = sorted({zone for a in CATALOG.accelerators.values() for zone in a.zones})
RUNTIMES = sorted(CATALOG.runtimes)
VERSIONS = sorted(CATALOG.node_versions)
SERVED = sorted(v for v, entry in CATALOG.node_versions.items() if entry.ended is None)
MACHINES = sorted(CATALOG.machine_types)
CAPACITIES = ("on-demand", "spot", "preemptible", "reserved")
_LETTERS = "abgoe019-_.A Ü/"
Json = dict[str, Any]


def stack(chance: Random) -> Json:
    """The configuration of a stack file."""
    accelerator = CATALOG.accelerators[chance.choice(ACCELERATORS)]
    node = "node" in accelerator.architectures and chance.random() < 0.4
    made: Json = {
        "zone": chance.choice(accelerator.zones),
        "architecture": "node" if node else "vm",
        "tpu": _node(chance, accelerator) if node else _tpu_vm(chance, accelerator),
        "vm": {
            "machineType": chance.choice(MACHINES),
            "capacity": chance.choice(("on-demand", "spot", "preemptible")),
            "bootDiskGib": chance.choice((20, 50, 65536)),
            "bootDiskType": chance.choice(("pd-balanced", "pd-standard", "pd-ssd")),
            "publicIp": chance.random() < 0.5,
        },
        "bucket": {},
        "network": chance.choice(({}, {"subnetRange": "172.20.0.0/24"}, {"create": False})),
        "training": {"modelMemoryGib": 0.5, "tensorflowVersion": "2.19.1"},
        "labels": chance.choice(({}, {"team": "vision"})),
    }
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))):
        chance.choice(_CHANGES)(chance, made)
    return {"gcp:project": PROJECT} | {f"tpu-stack:{key}": value for key, value in made.items()}


def _tpu_vm(chance: Random, accelerator: Accelerator) -> Json:
    fitting = [r for r in CATALOG.runtimes.values() if accelerator.family in r.families]
    made: Json = {
        "acceleratorType": accelerator.name,
        "runtimeVersion": chance.choice(fitting).name,
        "capacity": chance.choice(CAPACITIES),
        "externalIps": chance.random() < 0.2,
        "secureBoot": chance.random() < 0.2,
    }
    if chance.random() < 0.3:
        made["queued"] = {}
    if chance.random() < 0.1:
        made["slices"] = chance.choice((2, 256))
    if chance.random() < 0.1:
        made["tags"] = ["tpus"]
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


def _text(chance: Random, longest: int) -> str:
    return "".join(chance.choice(_LETTERS) for _ in range(chance.randint(1, longest)))


def _block(chance: Random) -> str:
    """A range somewhere, often near what is there; sometimes none at all."""
    if chance.random() < 0.1:
        return chance.choice(("10.64.0.0", "10.64.0.0/33", "10.64.0/24", "fd00::/64", "x"))
    first = chance.choice(
        (chance.getrandbits(32), (10 << 24) + chance.getrandbits(24), (10 << 24) + (10 << 16))
    )
    prefix = chance.randint(8, 32)
    block = IPv4Network((first, prefix), strict=False)
    return f"{IPv4Network((first, 32))[0]}/{prefix}" if chance.random() < 0.1 else str(block)


def _set(section: str, name: str, value: Callable[[Random], object]) -> Callable[..., None]:
    def change(chance: Random, made: Json) -> None:
        made[section] = {**made[section], name: value(chance)}

    return change


def _top(name: str, value: Callable[[Random], object]) -> Callable[..., None]:
    def change(chance: Random, made: Json) -> None:
        made[name] = value(chance)

    return change


def _labels(chance: Random) -> Json:
    if chance.random() < 0.2:
        return {f"label-{number}": "" for number in range(chance.randint(60, 66))}
    return {_text(chance, 5): _text(chance, 5), "k" * chance.randint(60, 65): "v"}


_CHANGES: tuple[Callable[..., None], ...] = (
    _top("zone", lambda c: c.choice([*ZONES, "us-central1-d", "mars-north1-a"])),
    _top("architecture", lambda c: c.choice(("vm", "node"))),
    _top("namePrefix", lambda c: _text(c, 10) if c.random() < 0.7 else "a" * c.randint(1, 40)),
    _top("labels", _labels),
    _set("tpu", "acceleratorType", lambda c: c.choice([*ACCELERATORS, "v2-9", "v9-8"])),
    _set("tpu", "runtimeVersion", lambda c: c.choice([*RUNTIMES, "tpu-vm-tf-9.9.9"])),
    _set("tpu", "tensorflowVersion", lambda c: c.choice([*VERSIONS, "9.9", None])),
    _set("tpu", "cidrBlock", _block),
    _set("tpu", "capacity", lambda c: c.choice(CAPACITIES)),
    _set("tpu", "tags", lambda c: [_text(c, 4)]),
    _set("tpu", "slices", lambda c: c.randint(1, 256)),
    _set("tpu", "queued", lambda c: c.choice(({}, {"guaranteedHours": 2}, {"reservation": "r"}))),
    _set("vm", "machineType", lambda c: c.choice([*MACHINES, "n1-standard-3", "x1-mega-2"])),
    _set("vm", "capacity", lambda c: c.choice(("on-demand", "spot", "preemptible"))),
    _set("vm", "terminationAction", lambda c: c.choice(("stop", "delete"))),
    _set("vm", "hostMaintenance", lambda c: c.choice(("migrate", "terminate"))),
    _set("vm", "shielded", lambda c: {"vtpm": c.random() < 0.5}),
    _set("bucket", "name", lambda c: _text(c, 12) if c.random() < 0.7 else "a" * c.randint(1, 70)),
    _set(
        "bucket", "name", lambda c: c.choice(("192.168.5.4", "a..b", "a.-b", "my-goog1e", "goog"))
    ),
    _set("bucket", "softDeleteDays", lambda c: c.choice((0, 7, 90))),
    _top("network", lambda c: {"subnetRange": _block(c)}),
    _set("training", "runOn", lambda c: c.choice(("vm", "tpu"))),
)
