"""How long a save holds the steps: for a copy on the devices' own host, not for the network."""

from __future__ import annotations

import json
import tempfile

from bench.result import Result
from bench.trainer.mnist import run_program

_GOAL_SECONDS = 0.5


def measure() -> list[Result]:
    """0.4 GB in 200 variables, twice a ResNet-50 with momentum."""
    with tempfile.TemporaryDirectory() as folder:
        said = run_program("bench.trainer.save", folder)
    figures: dict[str, float] = json.loads(said.splitlines()[-1])
    return [
        Result(
            "save: seconds that it holds the steps, 0.4 GB", figures["held"], "s", _GOAL_SECONDS
        ),
        Result("save: seconds until it is on the disk", figures["whole"], "s"),
    ]
