"""What must be true when a job has lived through a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table


@dataclass
class Outcome:
    """How it ended; None: not known.

    Attributes:
        wanted: steps that the job was to do.
        steps: steps that it says it has done.
        missed: faults that could not be put in force.
        faults: faults that were.
        loss, undisturbed: the loss on the test set, and that of a job without faults.
        changes: what a `pulumi up` changes afterwards.
        resources, processes: what is left after `pulumi destroy`.
        ledger: what is wrong with the job's ledger.
        goodput: share of the wall time in steps that count.
        lost_steps: steps that were done again.
        starts: how often the trainer was started.
        seconds: wall time by part.
    """

    wanted: int
    steps: int | None = None
    faults: int = 0
    missed: list[str] = field(default_factory=list)
    loss: float | None = None
    undisturbed: float | None = None
    changes: int | None = None
    resources: dict[str, int] | None = None
    processes: int | None = None
    ledger: Sequence[str] = ()
    goodput: float | None = None
    lost_steps: int | None = None
    starts: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Return what is not as it must be, one sentence each."""
        checks = [
            (self.steps == self.wanted, f"the job did {self.steps} steps, not {self.wanted}"),
            (not self.missed, "not every fault could be put in force: " + "; ".join(self.missed)),
            (self.changes == 0, f"`pulumi up` afterwards changes {self.changes} resources"),
            (self.resources == {}, f"resources are left: {self.resources}"),
            (self.processes == 0, f"{self.processes} processes are left"),
            (not self.ledger, "the ledger: " + "; ".join(self.ledger)),
            (
                self.undisturbed in (None, self.loss),
                f"the loss is {self.loss!r}, that of an undisturbed job {self.undisturbed!r}",
            ),
        ]
        return [said for good, said in checks if not good]

    def table(self) -> Table:
        """Return the figures."""
        rows: list[tuple[str, object]] = [
            ("steps", f"{self.steps} of {self.wanted}"),
            ("faults", self.faults),
            ("starts of the trainer", self.starts),
            ("steps done again", self.lost_steps),
            ("goodput", None if self.goodput is None else f"{self.goodput:.1%}"),
            ("loss on the test set", self.loss),
            ("the same without faults", self.undisturbed),
            ("changes by `pulumi up`", self.changes),
            ("resources left", sum((self.resources or {}).values())),
            ("processes left", self.processes),
        ]
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in rows:
            if value is not None:
                table.add_row(name, str(value))
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {**asdict(self), "problems": self.problems()}
