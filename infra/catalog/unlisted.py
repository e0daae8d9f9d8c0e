"""What the catalog does not list and Google may offer all the same, by Google's rules for names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from infra.catalog.model import Accelerator, Proof, Runtime, Source

_TENSORFLOW = re.compile(
    r"tpu-vm-tf-(?P<version>(?P<major>\d+)\.(?P<minor>\d+)\.\d+)(?P<pod>-pod)?"
    r"(?P<api>-pjrt|-se)?(-[a-z0-9-]+)?"
)
_BARE = re.compile(r"(tpu-ubuntu\d{4}|tpu-vm|v\d+-alpha)(-[a-z0-9]+)*")
_MACHINE = re.compile(r"(?P<series>[a-z]\d+[a-z]?-(?P<kind>[a-z]+))(-\d+g?(-\w+)*)?")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-(ai\d+)?[a-z]")
# From this release on the name of a runtime says which device API it has.
_NAMES_API = (2, 15)


def is_zone(name: str) -> bool:
    """Return whether a name has the form of Google's zones."""
    return bool(_ZONE.fullmatch(name))


def accelerator(name: str, known: Mapping[str, Accelerator]) -> Accelerator | None:
    """Return a size that the catalog does not list, of a generation whose table is not complete."""
    generation, _, size = name.rpartition("-")
    smallest = next((a for a in known.values() if a.name.startswith(f"{generation}-")), None)
    if smallest is None or not smallest.open_sizes or not size.isdecimal():
        return None
    hosts, left = divmod(int(size), smallest.cores)
    if left or not hosts or size.startswith("0"):
        return None
    return replace(
        smallest,
        name=name,
        topology="",
        chips=smallest.chips * hosts,
        cores=int(size),
        hosts=hosts,
        hbm_gib=smallest.hbm_gib * hosts,
        listed=False,
    )


def runtime(name: str, source: Source) -> Runtime | None:
    """Return a runtime that the catalog does not list, if its name follows Google's pattern."""
    if found := _TENSORFLOW.fullmatch(name):
        new = (int(found["major"]), int(found["minor"])) >= _NAMES_API
        if new != bool(found["api"]):
            return None
        served = found["pod"] is not None
        return Runtime(name, found["version"], (), served, source, Proof.INFERRED, listed=False)
    if name.startswith("tpu-vm-tf") or not _BARE.fullmatch(name):
        return None
    return Runtime(name, None, (), False, source, Proof.INFERRED, listed=False)


def may_be_machine_type(name: str, series: Collection[str], kinds: Collection[str]) -> bool:
    """Return whether a name has the form of Google's machine types, of a series not listed."""
    found = _MACHINE.fullmatch(name)
    return found is not None and found["series"] not in series and found["kind"] in kinds
