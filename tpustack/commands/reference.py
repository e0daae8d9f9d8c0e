"""`tpustack settings` and `catalog`: every setting as text or page, the catalog as tables.

Both are made from what the checks use, so that no list of settings or types is kept twice. Prices
are of the catalog, in US dollars; what has no price in a region is shown as unknown, never as 0.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tpu_core.words import money
from tpu_infra import cost
from tpu_infra.catalog import Catalog, entries
from tpu_infra.checks.context import nearest, one_of, without_tpus
from tpu_infra.settings import StackSettings, base, parse
from tpustack import console, errors

# What the page says before its tables; a text file, since mkdocs takes every .md for a page.
_INTRODUCTION = Path(__file__).with_name("settings.txt")
# The model calls it `project`; stack files set the provider's own key.
PROJECT: Final = "project"


@dataclass(frozen=True)
class Setting:
    """One setting. A group that may be missing as a whole is a setting too."""

    path: str
    """As in a stack file below `tpu-stack:`, such as `tpu.acceleratorType`."""
    type: str
    """string, integer, number, boolean, object, list of string, …"""
    required: bool
    default: Any
    """None: nothing is set."""
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    description: str

    @property
    def group(self) -> str:
        """The first part of the path, or nothing."""
        return self.path.partition(".")[0] if "." in self.path else ""


def all_settings() -> list[Setting]:
    """Return every setting in the order of the model."""
    schema = StackSettings.model_json_schema()
    return [*_settings(schema, schema["$defs"], "")]


def groups() -> dict[str, str]:
    """Return the groups of settings and what each is about."""
    schema = StackSettings.model_json_schema()
    found = {name: resolved(entry, schema["$defs"]) for name, entry in schema["properties"].items()}
    return {
        name: schema["$defs"][entry["$ref"].rpartition("/")[2]]["description"]
        for name, entry in found.items()
        if "properties" in entry
    }


def _settings(
    section: Mapping[str, Any], definitions: Mapping[str, Any], path: str
) -> Iterator[Setting]:
    for name, entry in section["properties"].items():
        whole = resolved(entry, definitions)
        full = f"{path}{name}"
        grouped = "properties" in whole
        optional = any(way.get("type") == "null" for way in entry.get("anyOf", ()))
        if not grouped or optional:
            yield Setting(
                parse.PROJECT_KEY if full == PROJECT else full,
                _kind(whole),
                name in section.get("required", ()),
                whole.get("default"),
                tuple(whole.get("enum", ())),
                whole.get("minimum"),
                whole.get("maximum"),
                base.one_line(entry.get("description")),
            )
        if grouped:
            yield from _settings(whole, definitions, f"{full}.")
        if reference := whole.get("items", {}).get("$ref"):
            yield from _settings(
                definitions[reference.rpartition("/")[2]], definitions, f"{full}[]."
            )


def resolved(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with what it refers to, and without the `null` of optional settings."""
    merged = dict(entry)
    for way in (entry, *entry.get("anyOf", ())):
        if way.get("type") == "null":
            continue
        if reference := way.get("$ref"):
            merged = {**definitions[reference.rpartition("/")[2]], **merged}
        merged = {**way, **merged}
    return merged


def _kind(entry: Mapping[str, Any]) -> str:
    if entry["type"] == "array":
        return f"list of {entry['items'].get('type', 'object')}"
    if entry.get("format") == "date-time":
        return "date and time"
    return str(entry["type"])


def facts(setting: Setting) -> str:
    """Return type, choices, range and default in a few words."""
    words = [setting.type]
    if setting.choices:
        words.append(f"one of {', '.join(setting.choices)}")
    words += [_limits(setting), "required" if setting.required else _default(setting)]
    return ", ".join(filter(None, words))


def settings_page() -> str:
    """Return the page docs/settings.md: a heading and an anchor for each setting."""
    settings = all_settings()
    parts = [_INTRODUCTION.read_text(encoding="utf-8"), "## The stack {#the-stack}\n"]
    # A group that may be missing is a setting, too: it has the heading of its group.
    others = groups()
    alone = (one for one in settings if not one.group and one.path not in others)
    parts += map(_section, alone)
    for group, about in others.items():
        parts += [f"## {group} {{#{group}}}\n", f"{about}\n"]
        parts += [_section(setting) for setting in settings if setting.group == group]
    return "\n".join(parts)


def _section(setting: Setting) -> str:
    allowed = " or ".join(f"`{choice}`" for choice in setting.choices) or _limits(setting)
    default = "required" if setting.required else _default(setting, "`")
    words = " \u00b7 ".join(filter(None, (setting.type, allowed, default)))
    return f"### {setting.path} {{#{anchor(setting.path)}}}\n\n{words}\n\n{setting.description}\n"


def anchor(path: str) -> str:
    """Return the anchor of a setting: tpu-capacity of tpu.capacity."""
    return re.sub(r"[.:]", "-", path.replace("[]", ""))


def _limits(setting: Setting) -> str:
    if setting.minimum is None or setting.maximum is None:
        return ""
    return " to ".join(f"{limit:.10g}" for limit in (setting.minimum, setting.maximum))


def _default(setting: Setting, quote: str = "") -> str:
    if setting.default in (None, [], {}):
        return ""
    default = setting.default
    text = default if isinstance(default, str) else json.dumps(default)
    return f"default {quote}{text}{quote}"


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
    for tpu in _with_hosts(catalog):
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
    """List the software of TPU VMs and TPU Nodes, its TensorFlow, and the TPUs that run it.

    Versions of TPU Nodes that Google no longer offers are left out.
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
    return money(price.amount, 4) if price else cost.UNKNOWN


def _exact(price: entries.Price | None) -> str | None:
    return f"{price.amount.normalize():f}" if price else None


def type_names(catalog: Catalog, table: str) -> Iterator[str]:
    """Yield the values of `--type` for a table."""
    if table == "machines":
        for name in catalog.machine_types:
            yield from (name, name.rpartition("-")[0], name.partition("-")[0])
        return
    for tpu in _with_hosts(catalog) if table == "accelerators" else catalog.accelerators.values():
        yield from (tpu.name, tpu.family)


def _with_hosts(catalog: Catalog) -> tuple[entries.Accelerator, ...]:
    """Return the types of the Cloud TPU API, then the machine types of Compute Engine."""
    return (*catalog.accelerators.values(), *(host.tpu for host in catalog.hosts.values()))


# The commands.


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [one.path for one in all_settings() if one.path.startswith(incomplete)]


def looked_up(name: str) -> list[Setting]:
    """Return the setting of this name, with those in it. Raises UsageError."""
    settings, name = all_settings(), name.removeprefix(f"{parse.NAMESPACE}:")
    found = [one for one in settings if f"{one.path}.".startswith((f"{name}.", f"{name}["))]
    if not found:
        known = [*(one.path for one in settings), *groups()]
        # Who knows only the last part of a name means that one.
        ends = [path for path in known if path.lower().rpartition(".")[2] == name.lower()]
        cure = f"Use {one_of(ends)}" if ends else nearest(name, known)
        errors.refuse([base.Problem("NAME", name, "is no setting", cure)])
    return found


@click.command("settings")
@click.argument("name", required=False, shell_complete=_names)
@click.option("--json", "as_json", is_flag=True, help="Print the reference as JSON.")
@click.option("--markdown", "as_page", is_flag=True, help="Print the page docs/settings.md.")
def settings_command(name: str | None, as_json: bool, as_page: bool) -> None:
    """List every setting of a stack file: type, default, range and description.

    With NAME, such as tpu.capacity or tpu: only that setting, or that group.
    """
    if as_page and (as_json or name):
        raise click.UsageError(
            f"{'--json' if as_json else 'NAME'} and --markdown exclude each other"
        )
    settings = looked_up(name) if name else all_settings()
    if as_json:
        console.echo_json({"settings": [vars(setting) for setting in settings]})
    elif as_page:
        click.echo(settings_page(), nl=False)
    else:
        columns = console.columns()
        for setting in settings:
            click.echo(cost.wrapped(f"{setting.path}  ({facts(setting)})", columns, rest="  "))
            narrow = columns and min(columns, 96)
            click.echo(cost.wrapped(setting.description, narrow, "    ", "    "))


# The columns that a narrow terminal does without, in this order.
_OPTIONAL = ("CIDR", "topology", "cores", "HBM GiB", "proof", "architecture")
_TABLES = {"accelerators": accelerators, "runtimes": runtimes, "machines": machines}


@click.command("catalog")
@click.argument("table", type=click.Choice(list(_TABLES)), default="accelerators")
@click.option(
    "--zone",
    shell_complete=console.zones,
    help="Only what this zone has, for example us-central1-b.",
)
@click.option(
    "--type",
    "kind",
    shell_complete=console.accelerators,
    help="Only this type or family, for example v3-32, v3 or n2-highmem.",
)
@console.as_json("table")
def catalog_command(table: str, zone: str | None, kind: str | None, as_json: bool) -> None:
    """Browse the catalog: TPU types (by zone), runtimes and machine types, in US dollars.

    Every fact and its source is in infra/tpu_infra/catalog.
    """
    catalog = Catalog()
    errors.refuse(_catalog_problems(catalog, table, zone, kind))
    if table == "accelerators" and zone is None and kind is None:
        listing = by_zone(catalog)
    else:
        listing = _TABLES[table](catalog, zone, kind)
    if as_json:
        console.echo_json({table: listing.records})
    elif len(listing.rows) == 1:  # Only the heading: type and zone exist, but not together.
        errors.refuse(
            [base.Problem("--zone", zone, f"has no {kind}", f"Leave it out to see where {kind} is")]
        )
    else:
        lines = cost.aligned(listing.rows, listing.left, console.columns(), _OPTIONAL)
        click.echo("\n".join(lines))


def _catalog_problems(
    catalog: Catalog, table: str, zone: str | None, kind: str | None
) -> list[base.Problem]:
    zones = dict.fromkeys(sorted(z for tpu in catalog.accelerators.values() for z in tpu.zones))
    types = dict.fromkeys(type_names(catalog, table))
    problems = []
    if zone is not None and zone not in zones:
        problems.append(without_tpus("--zone", zone, zones))
    if kind is not None and kind not in types:
        why = f"is nothing that the catalog's {table} have"
        problems.append(base.Problem("--type", kind, why, nearest(kind, types)))
    return problems
