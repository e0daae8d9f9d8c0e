"""`tpu-training profile`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpu_training.cluster.endpoint.target import Addresses, find_target
from tpu_training.commands.arguments import add_debug
from tpu_training.commands.command import refuse_rest
from tpu_training.errors import InputError


@dataclass(frozen=True)
class Profile:
    """Capture a profile of workers that are computing."""

    workers: tuple[str, ...]
    output: str
    seconds: float

    def run(self) -> int:
        """Capture it and print where it is."""
        from tpu_training.monitoring.profiler import trace_workers

        trace_workers(self.workers, self.output, self.seconds)
        print(f"profile finished logdir={self.output}", flush=True)
        return 0


def add(modes: Any) -> None:
    """Add the parser."""
    parser = modes.add_parser(
        "profile",
        help="capture a profile of TPU workers or other gRPC workers while they compute",
        description="Let workers profile themselves for some seconds, while a training runs on "
        "them, and write what TensorBoard's profiler reads.",
        allow_abbrev=False,
    )
    parser.add_argument("--worker", required=True, help="grpc://HOST:PORT, several with commas")
    parser.add_argument(
        "--output", required=True, help="gs:// URL, or a directory of the worker's own machine"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="how long (2)")
    add_debug(parser)
    parser.set_defaults(build=_build)


def _build(known: argparse.Namespace, rest: Sequence[str]) -> Profile:
    refuse_rest(rest, "profile")
    target = find_target(known.worker, None, None, {})
    problems = []
    if not isinstance(target, Addresses):
        problems.append(f"--worker={known.worker}: expected grpc://HOST:PORT")
    if not 0 < known.seconds <= 600:
        problems.append(f"--seconds={known.seconds:g}: must be above 0 and at most 600")
    if problems or not isinstance(target, Addresses):
        raise InputError("; ".join(problems))
    return Profile(target.addresses, known.output, known.seconds)
