"""`tpu-training doctor env`: say what a job would train on here, and why."""

import argparse
import json
import logging
import os
from functools import partial
from typing import Any

from tpu_training.commands.command import Command, add_command
from tpu_training.errors import EXIT_FAILURE


def add(modes: Any) -> None:
    """Add the parser."""
    doctor = modes.add_parser("doctor", help="examine the environment", allow_abbrev=False)
    subjects = doctor.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    env = add_command(
        subjects,
        "env",
        _build,
        help="what a job would train on here, and why",
        description="Report what a job would train on here, and why. Exit code 1: a job could not "
        "start.",
    )
    for flag in ("--tpu", "--tpu-project", "--tpu-zone"):
        env.add_argument(flag, help="as for train")
    env.add_argument("--json", action="store_true", help="print the same as JSON")


def _build(known: argparse.Namespace) -> Command:
    return partial(_examine, known.tpu, known.tpu_project, known.tpu_zone, known.json)


def _examine(tpu: str | None, project: str | None, zone: str | None, as_json: bool) -> int:
    from tpu_training.cluster.doctor import examine

    # The one report says it all, and with --json it has to stand alone.
    logging.getLogger("tpu_training").setLevel(logging.ERROR)
    found = examine(tpu, project, zone, os.environ)
    print(json.dumps(found.as_json(), indent=2) if as_json else found, flush=True)
    return EXIT_FAILURE if found.problems else 0
