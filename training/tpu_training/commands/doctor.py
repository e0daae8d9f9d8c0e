"""`tpu-training doctor env`."""

import argparse
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpu_training.commands.command import refuse_rest
from tpu_training.errors import EXIT_FAILURE


@dataclass(frozen=True)
class DoctorEnv:
    """Say what a job would train on here, and why."""

    tpu: str | None
    tpu_project: str | None
    tpu_zone: str | None
    as_json: bool

    def run(self) -> int:
        """Print what was found; 1 when a job could not start like this."""
        from tpu_training.cluster.doctor import examine

        # The one report says it all, and with --json it has to stand alone.
        logging.getLogger("tpu_training").setLevel(logging.ERROR)
        found = examine(self.tpu, self.tpu_project, self.tpu_zone, os.environ)
        print(json.dumps(found.as_json(), indent=2) if self.as_json else found, flush=True)
        return EXIT_FAILURE if found.problems else 0


def add(modes: Any) -> None:
    """Add the parser."""
    doctor = modes.add_parser("doctor", help="look at the environment", allow_abbrev=False)
    subjects = doctor.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    env = subjects.add_parser(
        "env",
        help="what a job would train on here, and why",
        description="Say what a job would train on here, and why. Exit code 1: it could not start.",
        allow_abbrev=False,
    )
    for flag in ("--tpu", "--tpu-project", "--tpu-zone"):
        env.add_argument(flag, help="as for train")
    env.add_argument("--json", action="store_true", help="print the same as JSON")
    env.set_defaults(build=_build)


def _build(known: argparse.Namespace, rest: Sequence[str]) -> DoctorEnv:
    refuse_rest(rest, "doctor env")
    return DoctorEnv(known.tpu, known.tpu_project, known.tpu_zone, known.json)
