"""What checks look at besides the settings."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tpu_infra.catalog import Catalog
from tpu_infra.cost import Estimate, of_stack
from tpu_infra.names import Names
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import Problem


@dataclass(frozen=True)
class Context:
    """The stack's name, the project's root folder, the catalog and the names of the resources.

    `provider` is the version of pulumi-gcp that will declare them. `preempted` returns which of the
    TPUs Google has taken away (infra/tpu_infra/advice.py).
    """

    stack: str
    root: Path
    catalog: Catalog
    names: Names
    provider: str = field(default_factory=lambda: version("pulumi-gcp"))
    preempted: Callable[[], Mapping[str, str]] = dict
    _costs: list[tuple[StackSettings, Estimate]] = field(
        default_factory=list, repr=False, compare=False
    )

    def cost_of(self, settings: StackSettings) -> Estimate:
        """Return what a stack costs; it is computed once."""
        for known, estimate in self._costs:
            if known is settings:
                return estimate
        estimate = of_stack(settings, self.stack, self.catalog)
        self._costs.append((settings, estimate))
        return estimate


def nearest(value: str, known: Iterable[str]) -> str:
    """Return the cure for an unknown name: the names most like it, or a few of all."""
    names = list(known)
    close = difflib.get_close_matches(value, names, cutoff=0.5)
    return f"Use {one_of(close)}" if close else f"Choose from: {', '.join(names[:8])}"


UNVERIFIED = "unverified on real hardware"


def unverified(*what: str, anchor: str = "") -> str:
    """Return the warning of what is unverified, and where the evidence is."""
    return f"{UNVERIFIED}: {'; '.join(what)}. Details: docs/verification.md{anchor}"


def without_tpus(setting: str, zone: str, zones: Iterable[str]) -> Problem:
    """Return the problem with a zone without TPUs; `zones` have some, the best of them first."""
    known = list(zones)
    is_region = any(each.rpartition("-")[0] == zone for each in known)
    region = zone if is_region else zone.rpartition("-")[0]
    near = [each for each in known if each.rpartition("-")[0] == region]
    why = "is a region, not a zone" if is_region else "has no TPUs"
    return Problem(setting, zone, why, f"Use {one_of(near[:3])}" if near else nearest(zone, known))


def one_of(names: Iterable[str]) -> str:
    """Return `a`, `a or b` or `a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
