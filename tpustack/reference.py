"""Reference texts: the settings as a page and as text, the catalog as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra.catalog import Catalog
from infra.catalog.entries import Accelerator, Price, Proof, is_in
from infra.cost import UNKNOWN, dollars
from infra.settings.reference import Setting, all_settings, groups

_INTRODUCTION = """\
# Settings

<!-- Made by `make docs` from infra/settings; a test keeps the two equal. -->

A stack is one file, `stacks/Pulumi.STACK.yaml`. Below `config:` it has Google's project and the
settings of this page, each with `tpu-stack:` before its first part:

```yaml
config:
  gcp:project: my-tpus
  tpu-stack:zone: us-central1-a
  tpu-stack:tpu:
    acceleratorType: v5litepod-4
    runtimeVersion: tpu-vm-tf-2.16.1-pod-pjrt
    capacity: spot
```

`tpustack init NAME` asks for what such a file needs and offers what the catalog allows; options
answer in advance:

```console
$ tpustack init mine --project my-tpus --zone us-central1-a --accelerator-type v5litepod-4 \\
    --capacity spot --backend file
stacks/Pulumi.mine.yaml is written. It costs $1.09 an hour.
tpu-vm-tf-2.16.1-pod-pjrt has TensorFlow 2.16.1: test your model with that version.
The stack mine is made and selected; its state is in ~/.pulumi.
Next:
  pulumi preview
  pulumi up
```

It also chooses where Pulumi keeps the stack's state (`--backend`: a bucket or this machine) and
what encrypts its secrets (`--secrets-provider`), logs in there and makes the stack
([state](state.md#where-the-state-is)). Git ignores the file: it is one person's.

`tpustack check` says everything that is wrong with a stack file, or with all of them, without
engine or cloud. It exits with 0 if all is fine and with 2 if not; warnings are of what is allowed
and may surprise:

```console
$ tpustack check --stack mine
mine: fine
  warning: not proven on a real TPU (docs/tpu.md#what-stays-unproven): a VM that drives it by ...
```

`tpustack settings` prints this reference. A name that is not here is an error; so are settings
next to `config:` or in another namespace, numbers and flags in quotes within a group, and
[secrets](gitops.md#from-an-empty-project-to-the-first-green-pipeline).

`Pulumi.yaml` declares what its format can say: the type of the first parts, and their defaults. It
takes every name without a default for required, so `namePrefix` cannot stand there; neither can
`gcp:project`, which is the provider's, nor what is inside a group. The engine checks that much
before the program runs, and says only the first thing that is wrong; `tpustack check` says all.
"""


def facts(setting: Setting) -> str:
    """Return type, choices, range and default in a few words."""
    words = [setting.type]
    if setting.choices:
        words.append(f"one of {', '.join(setting.choices)}")
    if setting.minimum is not None and setting.maximum is not None:
        words.append(f"{setting.minimum:g} to {setting.maximum:g}")
    if setting.required:
        words.append("required")
    elif default := _default(setting):
        words.append(f"default {default}")
    return ", ".join(words)


def settings_page() -> str:
    """Return the page docs/settings.md."""
    settings = all_settings()
    parts = [
        _INTRODUCTION,
        "## The stack\n",
        *_table([s for s in settings if not s.group]),
    ]
    for group, about in groups().items():
        parts += [f"\n## {group}\n", f"{about}\n"]
        parts += _table([setting for setting in settings if setting.group == group])
    return "\n".join(parts) + "\n"


def _table(settings: Sequence[Setting]) -> Iterator[str]:
    yield "| setting | type | range | default | meaning |"
    yield "|---|---|---|---|---|"
    for setting in settings:
        allowed = ", ".join(f"`{choice}`" for choice in setting.choices)
        if setting.minimum is not None and setting.maximum is not None:
            allowed = f"{setting.minimum:g} to {setting.maximum:g}"
        default = f"`{text}`" if (text := _default(setting)) else ""
        cells = (
            f"`{setting.path}`",
            setting.type,
            allowed,
            "required" if setting.required else default,
            setting.description.replace("|", "\\|"),
        )
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _default(setting: Setting) -> str:
    if setting.default in (None, [], {}):
        return ""
    return setting.default if isinstance(setting.default, str) else json.dumps(setting.default)


# The catalog by zone and type, as rows for people and records for programs.

Row = tuple[str, ...]
Record = dict[str, Any]


@dataclass(frozen=True)
class Listing:
    """Rows, the first of them the heading; `left` columns are text, the others numbers."""

    rows: tuple[Row, ...]
    left: int
    records: tuple[Record, ...]


def by_zone(catalog: Catalog) -> Listing:
    """List the families of TPUs and their sizes in every zone."""
    zones: dict[str, dict[str, list[str]]] = {}
    for tpu in catalog.accelerators.values():
        for zone in tpu.zones:
            zones.setdefault(zone, {}).setdefault(tpu.family, []).append(tpu.name)
    rows = [
        (zone, family, names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}")
        for zone, families in sorted(zones.items())
        for family, names in families.items()
    ]
    records = tuple(_tpu_record(tpu, catalog, tpu.zones) for tpu in catalog.accelerators.values())
    return Listing((("zone", "family", "types"), *rows), 3, records)


def accelerators(catalog: Catalog, zone: str | None, kind: str | None) -> Listing:
    """List TPU types with their hardware and their price an hour, zone by zone."""
    heading = ("type", "zone", "topology", "chips", "cores", "hosts", "HBM GiB", "CIDR")
    rows: list[Row] = [(*heading, "on demand", "spot")]
    records = []
    for tpu in catalog.accelerators.values():
        zones = tuple(other for other in tpu.zones if zone in (None, other))
        if not zones or kind not in (None, tpu.name, tpu.family):
            continue
        records.append(_tpu_record(tpu, catalog, zones))
        for here in zones:
            numbers = map(str, (tpu.chips, tpu.cores, tpu.hosts, tpu.hbm_gib))
            prefix = f"/{tpu.cidr_prefix}" if tpu.cidr_prefix else "-"
            prices = map(_shown, _tpu_prices(tpu, catalog, here).values())
            rows.append((tpu.name, here, tpu.topology, *numbers, prefix, *prices))
    return Listing(tuple(rows), 3, tuple(records))


def runtimes(catalog: Catalog, zone: str | None, kind: str | None) -> Listing:
    """List the software of TPU VMs and classic nodes, its TensorFlow, and the TPUs that run it."""
    families = {
        tpu.family
        for tpu in catalog.accelerators.values()
        if kind in (None, tpu.name, tpu.family) and (zone is None or zone in tpu.zones)
    }
    rows: list[Row] = [("runtime", "TensorFlow", "architecture", "gRPC", "proof", "families")]
    records: list[Record] = []
    for runtime in catalog.runtimes.values():
        if families.intersection(runtime.families):
            found = (runtime.name, runtime.tensorflow, "vm", runtime.serves_grpc, runtime.families)
            records.append(_runtime_record(*found, runtime.proof))
    for version in catalog.node_versions.values():
        if version.ended is None and families.intersection(version.families):
            found = (version.version, version.version, "node", True, version.families)
            records.append(_runtime_record(*found, Proof.DOCUMENTED))
    for record in records:
        serves = "yes" if record["servesGrpc"] else "no"
        own = record["tensorflow"] or "-"
        names = ", ".join(record["families"])
        rows.append((record["name"], own, record["architecture"], serves, record["proof"], names))
    return Listing(tuple(rows), 6, tuple(records))


def machines(catalog: Catalog, zone: str | None, kind: str | None) -> Listing:
    """List machine types of the VM; with a zone, with their price an hour there."""
    priced = ("on demand", "spot") if zone else ()
    rows: list[Row] = [("machine", "vCPUs", "GiB", *priced)]
    records: list[Record] = []
    for machine in catalog.machine_types.values():
        series = machine.name.rpartition("-")[0]
        if kind not in (None, machine.name, series, series.partition("-")[0]):
            continue
        prices = [
            catalog.prices.machine(machine, _region(zone), spot=spot) if zone else None
            for spot in (False, True)
        ]
        cells = map(_shown, prices) if zone else ()
        rows.append((machine.name, str(machine.vcpus), f"{machine.memory_gib:g}", *cells))
        record = {"name": machine.name, "vcpus": machine.vcpus, "memoryGib": machine.memory_gib}
        if zone:
            record |= {"onDemand": _exact(prices[0]), "spot": _exact(prices[1])}
        records.append(record)
    return Listing(tuple(rows), 1, tuple(records))


def prices(catalog: Catalog, zone: str | None, kind: str | None) -> Listing:
    """List the prices as their sources have them."""
    rows: list[Row] = [
        ("of", "where", "unit", "source of", "on demand", "spot", "preemptible"),
    ]
    records: list[Record] = []
    wanted = {kind}
    for tpu in catalog.accelerators.values():
        if kind in (tpu.name, tpu.family):
            wanted |= {tpu.name, tpu.family} if kind == tpu.family else {tpu.family}
    for entry in catalog.prices.entries():
        everywhere = entry.regions == ("all",)
        if zone and not everywhere and not is_in(_region(zone), entry.regions):
            continue
        if kind and wanted.isdisjoint(entry.of):
            continue
        amounts = (entry.on_demand, entry.spot, entry.preemptible)
        cells = ("-" if amount is None else f"${amount}" for amount in amounts)
        day = entry.source.date.isoformat()
        names = entry.of if len(entry.of) == 1 else (f"{entry.of[0]} to {entry.of[-1]}",)
        first, *more = entry.regions
        where = f"{first} and {len(more)} more" if more else first
        rows.append((*names, where, entry.unit, day, *cells))
        records.append(
            {
                "of": list(entry.of),
                "regions": list(entry.regions),
                "unit": entry.unit,
                "onDemand": entry.on_demand,
                "spot": entry.spot,
                "preemptible": entry.preemptible,
                "source": {"url": entry.source.url, "date": day},
            }
        )
    return Listing(tuple(rows), 4, tuple(records))


def _tpu_record(tpu: Accelerator, catalog: Catalog, zones: tuple[str, ...]) -> Record:
    return {
        "name": tpu.name,
        "family": tpu.family,
        "topology": tpu.topology,
        "chips": tpu.chips,
        "cores": tpu.cores,
        "hosts": tpu.hosts,
        "hbmGib": tpu.hbm_gib,
        "architectures": list(tpu.architectures),
        "cidrPrefix": tpu.cidr_prefix,
        "zones": [
            {"zone": zone, **{way: _exact(price) for way, price in hours.items()}}
            for zone in zones
            for hours in (_tpu_prices(tpu, catalog, zone),)
        ],
        "sources": [{"url": source.url, "date": f"{source.date}"} for source in tpu.sources],
    }


def _tpu_prices(tpu: Accelerator, catalog: Catalog, zone: str) -> dict[str, Price | None]:
    ways = {"onDemand": "on-demand", "spot": "spot"}
    return {name: catalog.prices.tpu(tpu, _region(zone), way) for name, way in ways.items()}


def _runtime_record(
    name: str,
    tensorflow: str | None,
    architecture: str,
    grpc: bool,
    families: tuple[str, ...],
    proof: Proof,
) -> Record:
    return {
        "name": name,
        "tensorflow": tensorflow,
        "architecture": architecture,
        "servesGrpc": grpc,
        "proof": proof.value,
        "families": list(families),
    }


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


def _shown(price: Price | None) -> str:
    return dollars(price.amount, 4) if price else UNKNOWN


def _exact(price: Price | None) -> str | None:
    return f"{price.amount.normalize():f}" if price else None


def type_names(catalog: Catalog, table: str) -> Iterator[str]:
    """Yield the values of `--type` for a table."""
    if table != "machines":
        for tpu in catalog.accelerators.values():
            yield from (tpu.name, tpu.family)
    if table == "machines":
        for name in catalog.machine_types:
            yield from (name, name.rpartition("-")[0], name.partition("-")[0])
    if table == "prices":
        for entry in catalog.prices.entries():
            yield from entry.of
