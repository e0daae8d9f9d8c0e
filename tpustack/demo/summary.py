"""The demo's figures, as a table and as `.demo/summary.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass
class Summary:
    """The demo's figures; a figure that a step did not reach is None.

    Attributes:
        test_accuracy: share of the test images that the model classifies correctly, 0 to 1.
        steps_per_second: training steps a second, without start-up and evaluation.
        replicas: replicas in sync.
        endpoint: the TPU's, as the stack exports it.
        architecture: `vm` or `node`.
        data: which images it trained on.
        seconds: wall time per phase and in all.
        peak_memory_mib: largest resident memory of all processes together, MiB.
        second_up_changes: resources that a second `pulumi up` would not leave as they are.
        resources_left: resources that the cloud holds after destroy.
        processes_left: processes of the demo that still run after it.
    """

    architecture: str
    test_accuracy: float | None = None
    steps_per_second: float | None = None
    replicas: int | None = None
    endpoint: str | None = None
    data: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_mib: float | None = None
    second_up_changes: int | None = None
    resources_left: int | None = None
    processes_left: int | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def show(self, console: Console, metrics: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Print the training's result and where its things lie in the bucket."""
        job = outputs["job_url"]
        rows = [
            ("test accuracy", f"{self.test_accuracy:.2%}" if self.test_accuracy else "–"),
            ("steps/s", f"{self.steps_per_second:.1f}" if self.steps_per_second else "–"),
            ("replicas in sync", str(self.replicas)),
            ("strategy", str(metrics.get("strategy", "–"))),
            ("endpoint", str(self.endpoint)),
            ("data", str(self.data)),
            ("metrics", f"{job}/metrics.json"),
            ("checkpoints", f"{job}/checkpoints/"),
            ("TensorBoard events", f"{job}/tensorboard/"),
        ]
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
