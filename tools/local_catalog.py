"""Write the local cloud's data files on TPUs and machine types from the catalog: `make catalog`.

The local cloud is a package of its own and must not import `tpu_infra`, so it reads what it offers
from files. Never edit them by hand.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Accelerator, Source

ROOT = Path(__file__).parent.parent
DATA = ROOT / "localcloud" / "localcloud" / "data"
# Google's TPU types and the families of the catalog have other names for one generation.
_GENERATIONS = {"v5e": "v5litepod"}


def files(catalog: Catalog) -> dict[str, str]:
    """Return the content of every generated file, by name."""
    return {
        "compute-machine-types.yaml": _machine_types(catalog),
        "compute-tpu-machines.yaml": _hosts(catalog),
        "tpu-accelerators.yaml": _accelerators(catalog),
        "tpu-runtimes.yaml": _runtimes(catalog),
    }


def main() -> int:
    """Write the files and return the exit code."""
    for name, content in files(Catalog()).items():
        (DATA / name).write_text(content, encoding="utf-8")
        print(f"wrote {(DATA / name).relative_to(ROOT)}")
    return 0


def _header(about: str, sources: Iterable[Source]) -> list[str]:
    return [
        "# Written by `make catalog` from infra/tpu_infra/catalog: edit the facts there.",
        f"# {about}",
        "# Sources:",
        *(f"#   {source.url}, {source.date}" for source in dict.fromkeys(sources)),
    ]


def _accelerators(catalog: Catalog) -> str:
    types = catalog.accelerators
    lines = _header(
        "TPU types by generation and size; a type without `zones` has those of its generation.",
        (source for one in types.values() for source in one.sources),
    )
    generations: dict[str, list[Accelerator]] = {}
    for one in types.values():
        generations.setdefault(_split(one.name)[0], []).append(one)
    for generation, members in generations.items():
        zones = Counter(one.zones for one in members).most_common(1)[0][0]
        lines += [
            f"{generation}:",
            f"  disks: [{', '.join(members[0].disk_types)}]",
            f"  diskCount: {members[0].data_disks}",
            *(["  flexStart: true"] if members[0].flex_start else []),
            f"  zones: [{', '.join(zones)}]",
            "  sizes:",
        ]
        for one in members:
            own = f", zones: [{', '.join(one.zones)}]" if one.zones != zones else ""
            shape = f"topology: {one.topology}, hosts: {one.hosts}{own}"
            lines.append(f"    {_split(one.name)[1]}: {{{shape}}}")
    return _text(lines)


def _runtimes(catalog: Catalog) -> str:
    runtimes, nodes = catalog.runtimes.values(), catalog.node_versions.values()
    offered = [node for node in nodes if node.ended is None]
    lines = _header(
        "Runtime versions of TPU VMs with the generations that each runs on; TensorFlow versions "
        "of classic nodes.",
        [*(runtime.source for runtime in runtimes), *(node.source for node in offered)],
    )
    lines.append("runtimes:")
    for runtime in sorted(runtimes, key=lambda runtime: runtime.name):
        generations = [_GENERATIONS.get(family, family) for family in runtime.families]
        lines.append(f"  {runtime.name}: [{', '.join(generations)}]")
    lines.append("nodes:")
    lines += [f'  - "{node.version}"' for node in offered]
    return _text(lines)


def _machine_types(catalog: Catalog) -> str:
    lines = _header(
        "Machine types with vCPUs of their own: how many, and memory in GiB.",
        (one.source for one in catalog.machine_types.values()),
    )
    lines += [
        f"{name}: {{vcpus: {one.vcpus}, memory: {one.memory_gib:g}}}"
        for name, one in catalog.machine_types.items()
    ]
    return _text(lines)


def _hosts(catalog: Catalog) -> str:
    lines = _header(
        "Machine types with a TPU: vCPUs, memory in GiB, topology, those of several machines, the "
        "type that libraries know, boot disks, chips and what they count against, zones.",
        (source for host in catalog.hosts.values() for source in host.tpu.sources),
    )
    for name, host in catalog.hosts.items():
        tpu = host.tpu
        same = (
            one.name
            for one in catalog.accelerators.values()
            if (one.family, one.topology) == (tpu.family, tpu.topology)
        )
        # TPU7x, which the Cloud TPU API lacks, is named by the rule of v5p: by its cores.
        kind = next(same, f"{tpu.family}-{tpu.cores}")
        lines += [
            f"{name}:",
            f"  {{vcpus: {host.vcpus}, memory: {host.memory_gib}, topology: {tpu.topology},",
            f"   slices: [{', '.join(host.slices)}],",
            f"   type: {kind}, disks: [{', '.join(tpu.disk_types)}], chips: {tpu.chips},",
            f"   quotas: {{{', '.join(f'{key}: {one}' for key, one in host.quotas.items())}}},",
            f"   zones: [{', '.join(tpu.zones)}]}}",
        ]
    return _text(lines)


def _split(name: str) -> tuple[str, str]:
    generation, _, size = name.rpartition("-")
    return generation, size


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
