"""Reference texts: the settings as a page and as text, the catalog as tables.

Both are made from what the checks use, so that no list of settings or types is kept twice. Prices
are of the catalog, in US dollars; what has no price in a region is shown as unknown, never as 0.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import cost
from infra.catalog import Catalog, entries
from infra.settings.reference import Setting, all_settings, groups

# What the page says before its tables; a text file, since mkdocs takes every .md for a page.
_INTRODUCTION = Path(__file__).with_name("settings.txt")


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
        _INTRODUCTION.read_text(encoding="utf-8"),
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
    """List the families of TPUs and their sizes in every zone.

    The catalog has the types of a family from small to large.
    """
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
    """List the software of TPU VMs and classic nodes, its TensorFlow, and the TPUs that run it.

    Versions of classic nodes that Google no longer offers are left out.
    """
    families = {
        tpu.family
        for tpu in catalog.accelerators.values()
        if kind in (None, tpu.name, tpu.family) and (zone is None or zone in tpu.zones)
    }
    found = [
        (one.name, one.tensorflow, "vm", one.serves_grpc, one.proof, one.families)
        for one in catalog.runtimes.values()
    ]
    found += [
        (one.version, one.version, "node", True, entries.Proof.DOCUMENTED, one.families)
        for one in catalog.node_versions.values()
        if one.ended is None
    ]
    rows: list[Row] = [("runtime", "TensorFlow", "architecture", "gRPC", "proof", "families")]
    records: list[Record] = []
    for name, tensorflow, architecture, grpc, proof, own in found:
        if families.isdisjoint(own):
            continue
        serves = "yes" if grpc else "no"
        rows.append((name, tensorflow or "-", architecture, serves, proof.value, ", ".join(own)))
        records.append(
            {
                "name": name,
                "tensorflow": tensorflow,
                "architecture": architecture,
                "servesGrpc": grpc,
                "proof": proof.value,
                "families": list(own),
            }
        )
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
    """List the prices as their sources have them.

    A source may price a family, a type or a part of a machine, so `kind` matches each of them.
    """
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
        if zone and not everywhere and not entries.is_in(_region(zone), entry.regions):
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


def _tpu_record(tpu: entries.Accelerator, catalog: Catalog, zones: tuple[str, ...]) -> Record:
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


def _tpu_prices(
    tpu: entries.Accelerator, catalog: Catalog, zone: str
) -> dict[str, entries.Price | None]:
    ways = {"onDemand": "on-demand", "spot": "spot"}
    return {name: catalog.prices.tpu(tpu, _region(zone), way) for name, way in ways.items()}


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


def _shown(price: entries.Price | None) -> str:
    return cost.dollars(price.amount, 4) if price else cost.UNKNOWN


def _exact(price: entries.Price | None) -> str | None:
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
