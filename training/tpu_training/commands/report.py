"""`tpu-training report`: write the report of a training that runs or has ended."""

import argparse
from functools import partial
from typing import Any

from tpu_training.commands.command import Command, add_command


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "report",
        _build,
        help="write a training's report as JSON",
        description="Write report.json to the model directory from what the "
        "training has written so far. Every training does so at its end.",
    )
    parser.add_argument(
        "--model-dir", required=True, help="directory or gs:// URL of the training's results"
    )


def _build(known: argparse.Namespace) -> Command:
    return partial(_write, known.model_dir)


def _write(model_dir: str) -> int:
    from tpu_training.monitoring.measurements import write_report

    print(f"report finished report={write_report(model_dir)}", flush=True)
    return 0
