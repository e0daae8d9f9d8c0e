"""Write the trainer's facts about TPUs from the catalog: `make catalog`.

`tpu_training` is a package of its own and must not import `tpu_infra`, so `tpu-training compile`
reads sizes, peaks and prices from a file. Never edit it by hand.
"""

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Accelerator, Chip, Price

ROOT = Path(__file__).parent.parent
FILE = ROOT / "training" / "tpu_training" / "compile" / "tpus.json"


def content(catalog: Catalog) -> str:
    """Return the content of the file, a line for each chip and each type."""
    chips = {name: _chip(chip) for name, chip in catalog.chips.items()}
    types = {name: _type(catalog, one) for name, one in catalog.accelerators.items()}
    for name, host in catalog.hosts.items():
        types[name] = _type(catalog, host.tpu, tensorflow="tensorflow" in host.frameworks)
        # There TensorFlow drives only the chips of its own machine.
        for topology in host.slices:
            tpu = host.tpu_of(topology)
            types[f"{name}:{topology}"] = _type(catalog, tpu, tensorflow=False)
    return (
        '{\n"_": "Written by `make catalog` from infra/tpu_infra/catalog: edit the facts there.",\n'
        f'"chips": {_lines(chips)},\n"types": {_lines(types)}\n}}\n'
    )


def main() -> int:
    """Write the file and return the exit code."""
    FILE.write_text(content(Catalog()), encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


def _chip(chip: Chip) -> dict[str, Any]:
    return {
        "peakTflops": chip.peak_tflops,
        "hbmGbps": chip.hbm_gbps,
        "iciGbps": chip.ici_gbps,
        "clockMhz": chip.clock_mhz,
        "devices": chip.devices,
        "sources": [f"{source.url}, {source.date}" for source in chip.sources],
    }


def _type(catalog: Catalog, tpu: Accelerator, *, tensorflow: bool = True) -> dict[str, Any]:
    return {
        "family": tpu.family,
        "topology": tpu.topology,
        "chips": tpu.chips,
        "hosts": tpu.hosts,
        "tensorflow": tensorflow,
        "onDemand": _cheapest(catalog, tpu, "on-demand"),
        "spot": _cheapest(catalog, tpu, "spot"),
    }


def _cheapest(catalog: Catalog, tpu: Accelerator, capacity: str) -> list[Any] | None:
    """Return the lowest price of an hour, its region and its source's date; None without one."""
    regions = dict.fromkeys(zone.rpartition("-")[0] for zone in tpu.zones)
    prices = [(catalog.prices.tpu(tpu, region, capacity), region) for region in regions]
    known: list[tuple[Price, str]] = [(price, region) for price, region in prices if price]
    if not known:
        return None
    price, region = min(known, key=lambda one: one[0].amount)
    return [
        float(price.amount.quantize(Decimal("0.00001"))),
        region,
        price.source.date.isoformat(),
    ]


def _lines(entries: dict[str, Any]) -> str:
    rows = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
    return "{\n" + ",\n".join(rows) + "\n}"


if __name__ == "__main__":
    sys.exit(main())
