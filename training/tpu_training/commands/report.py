"""`tpu-training report`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpu_training.commands.arguments import add_debug
from tpu_training.commands.command import refuse_rest


@dataclass(frozen=True)
class WriteReport:
    """Write the report of a training that runs or has ended."""

    model_dir: str

    def run(self) -> int:
        """Write it and print where it is."""
        from tpu_training.monitoring.report.write import write_report

        print(f"report finished report={write_report(self.model_dir)}", flush=True)
        return 0


def add(modes: Any) -> None:
    """Add the parser."""
    parser = modes.add_parser(
        "report",
        help="write a training's report: HTML and JSON",
        description="Write report.html and report.json to the model directory, from what a "
        "training has written so far. Every training does so at its end.",
        allow_abbrev=False,
    )
    parser.add_argument("--model-dir", required=True, help="results' directory or gs:// URL")
    add_debug(parser)
    parser.set_defaults(build=_build)


def _build(known: argparse.Namespace, rest: Sequence[str]) -> WriteReport:
    refuse_rest(rest, "report")
    return WriteReport(known.model_dir)
