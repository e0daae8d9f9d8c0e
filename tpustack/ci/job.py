"""The run that every command of the pipeline works in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from infra.catalog import Catalog
from tpustack.ci.checks import StackError
from tpustack.ci.result import Result, failed
from tpustack.engine.backend import Backend
from tpustack.errors import TpustackError
from tpustack.recovery.locks import LockedError, locked_message

# Each preview is an engine, a Python and a provider, some 300 MB together.
_SIDE_BY_SIDE = 8


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        backend: the stacks.
        root: the folder of Pulumi.yaml.
        output: the folder of plans, texts and results.
        report: gets lines of progress.
        catalog: prices and types.
    """

    backend: Backend
    root: Path
    output: Path
    report: Callable[[str], None]
    catalog: Catalog = field(default_factory=Catalog)

    def line(self, stack: str) -> Callable[[str], None]:
        """Return a listener for the engine's output about one stack."""

        def report(line: str) -> None:
            if line.strip():
                self.report(f"{stack}: {line.rstrip()}")

        return report


def explained(stack: str, work: Callable[[], Result]) -> Result:
    """Do the work and time it; an expected error becomes a failed stack."""
    started = monotonic()
    try:
        result = work()
    except LockedError as error:
        result = failed(stack, locked_message(stack, error.locks))
    except (StackError, TpustackError) as error:
        result = failed(stack, str(error))
    return replace(result, seconds=monotonic() - started)


def side_by_side(stacks: Sequence[str], work: Callable[[str], Result]) -> list[Result]:
    """Do the work for every stack at the same time."""
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        return list(pool.map(lambda stack: explained(stack, lambda: work(stack)), stacks))
