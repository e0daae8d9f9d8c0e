"""Values of single settings by chance, and what is in the project already when a stack comes."""

from __future__ import annotations

from ipaddress import IPv4Network
from random import Random
from typing import Any

from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Accelerator

CATALOG = Catalog()
PROJECT = "tpu-stack-local"
ACCELERATORS = sorted(CATALOG.accelerators)
ZONES = sorted({zone for a in CATALOG.accelerators.values() for zone in a.zones})
HOSTS = sorted(CATALOG.hosts)
HOST_ZONES = sorted({zone for host in CATALOG.hosts.values() for zone in host.tpu.zones})
TOPOLOGIES = sorted({one for host in CATALOG.hosts.values() for one in host.slices})
REGIONS = sorted({zone.rpartition("-")[0] for zone in (*ZONES, *HOST_ZONES)})
RUNTIMES = sorted(CATALOG.runtimes)
VERSIONS = sorted(CATALOG.node_versions)
SERVED = sorted(v for v, entry in CATALOG.node_versions.items() if entry.ended is None)
MACHINES = sorted(CATALOG.machine_types)
CAPACITIES = ("on-demand", "spot", "preemptible", "reserved")
VM_CAPACITIES = ("on-demand", "spot", "preemptible")
# What is there already: a snapshot, a network with a subnetwork and a key in every region, a topic,
# and a disk of a kind that the TPU takes.
GIVEN_NETWORK = "lab"
GIVEN_GIB = 100
GIVEN_SNAPSHOT = f"projects/{PROJECT}/global/snapshots/corpus-1"
GIVEN_TOPIC = f"projects/{PROJECT}/topics/alerts"
BILLING_ACCOUNT = "0A1B2C-3D4E5F-607182"
_LETTERS = "abgoe019-_.A Ü/"
Json = dict[str, Any]


def given_disk(zone: str) -> str:
    """A disk with data on it."""
    return f"projects/{PROJECT}/zones/{zone}/disks/corpus"


def given_range(region: str) -> IPv4Network:
    """The range of the given network's subnetwork: a /16, for the largest stacks are large."""
    return IPv4Network(f"10.{200 + REGIONS.index(region)}.0.0/16")


def given_key(region: str) -> str:
    """A key of Cloud KMS."""
    return f"projects/{PROJECT}/locations/{region}/keyRings/lab/cryptoKeys/data"


def text(chance: Random, longest: int) -> str:
    """Letters that names may have, and some that they may not."""
    return "".join(chance.choice(_LETTERS) for _ in range(chance.randint(1, longest)))


def block(chance: Random) -> str:
    """A range somewhere, often near what is there; sometimes none at all."""
    if chance.random() < 0.1:
        return chance.choice(("10.64.0.0", "10.64.0.0/33", "10.64.0/24", "fd00::/64", "x"))
    first = chance.choice(
        (chance.getrandbits(32), (10 << 24) + chance.getrandbits(24), (10 << 24) + (10 << 16))
    )
    prefix = chance.randint(8, 32)
    found = IPv4Network((first, prefix), strict=False)
    return f"{IPv4Network((first, 32))[0]}/{prefix}" if chance.random() < 0.1 else str(found)


def labels(chance: Random) -> Json:
    """A label of any letters, or very many."""
    if chance.random() < 0.2:
        return {f"label-{number}": "" for number in range(chance.randint(60, 66))}
    return {text(chance, 5): text(chance, 5), "k" * chance.randint(60, 65): "v"}


def data_disk(
    chance: Random, accelerator: Accelerator, zone: str, number: int, slices: int
) -> Json:
    """A disk that so many TPUs of that type can have in that zone."""
    kind = chance.choice(accelerator.disk_types)
    alone = accelerator.hosts * slices == 1
    if not alone and kind == "hyperdisk-balanced":
        kind = "hyperdisk-ml"
    form = chance.choice(("new", "copy", "given") if alone else ("copy", "given"))
    if form == "given" and number == 0:
        return {"source": given_disk(zone), "mode": "read-only"}
    made: Json = {"name": f"data-{number}", "type": kind}
    if form == "new":
        return {**made, "sizeGib": chance.choice((10, 500, 65536))}
    made |= {"snapshot": GIVEN_SNAPSHOT, "mode": "read-only"}
    return made if chance.random() < 0.5 else {**made, "sizeGib": GIVEN_GIB}


def bucket(chance: Random, region: str) -> Json:
    """What only concerns the bucket, mostly nothing."""
    made: Json = {}
    if chance.random() < 0.2:
        made["versioning"] = chance.random() < 0.7
        made["lifecycle"] = [rule(chance) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.1:
        made["location"] = region
    if chance.random() < 0.2:
        made["encryption"] = encryption(chance, region)
    return made


def rule(chance: Random) -> Json:
    """A rule of a bucket's lifecycle, which may contradict the rest."""
    found: Json = {"action": chance.choice(("delete", "nearline", "coldline", "archive"))}
    conditions: Json = {
        "prefix": chance.choice(("jobs/mnist-1/tensorboard/", "logs/")),
        "ageDays": chance.choice((1, 36500)),
        "noncurrentDays": chance.choice((1, 36500)),
        "newerVersions": chance.choice((1, 1000)),
    }
    names = chance.sample(sorted(conditions), chance.randint(1, 3))
    return found | {name: conditions[name] for name in names}


def encryption(chance: Random, region: str) -> Json:
    """A key of the stack's own or a given one, sometimes by a wrong name."""
    if chance.random() < 0.5:
        return chance.choice(({}, {"rotationDays": chance.choice((1, 36500))}))
    return {"key": given_key(region) if chance.random() < 0.8 else text(chance, 12)}


def budget(chance: Random) -> Json:
    """A budget, sometimes for nobody and nothing."""
    made: Json = {"amount": chance.choice((1, 10**9))} if chance.random() < 0.9 else {}
    some: Json = {
        "scope": chance.choice(("project", "stack")),
        "thresholds": [50, 1000],
        "emails": ["a@example.com", chance.choice(("b@example.com", "b", "b@@c.d", "b c@d.e"))],
        "pubsubTopic": chance.choice(("tpu-budget", GIVEN_TOPIC, text(chance, 6), "goog-topic")),
        "billingAccount": chance.choice((BILLING_ACCOUNT, "0a1b2c", text(chance, 6))),
    }
    if chance.random() < 0.1:
        some["emails"] = [f"{letter}@example.com" for letter in "abcdef"]
    return made | {name: value for name, value in some.items() if chance.random() < 0.3}
