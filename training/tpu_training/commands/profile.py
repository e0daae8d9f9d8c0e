"""`tpu-training profile`: capture a profile of workers that are computing."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from tpu_training.cluster.endpoint import Addresses, find_target
from tpu_training.commands.command import Command, add_command
from tpu_training.errors import InputError


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "profile",
        _build,
        help="capture a profile of TPU workers or other gRPC workers while they compute",
        description="Have workers profile themselves for some seconds while a training runs on "
        "them, and write the profile for TensorBoard.",
    )
    parser.add_argument(
        "--worker", required=True, help="grpc://HOST:PORT, several separated by commas"
    )
    parser.add_argument(
        "--output", required=True, help="gs:// URL, or a directory on the worker's own machine"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of the profile (2)")


def _build(known: argparse.Namespace) -> Command:
    target = find_target(known.worker, None, None, {})
    problems = []
    if not isinstance(target, Addresses):
        problems.append(f"--worker={known.worker}: expected grpc://HOST:PORT")
    if not 0 < known.seconds <= 600:
        problems.append(f"--seconds={known.seconds:g}: must be above 0 and at most 600")
    if problems or not isinstance(target, Addresses):
        raise InputError("; ".join(problems))
    return partial(_capture, target.addresses, known.output, known.seconds)


def _capture(workers: Sequence[str], output: str, seconds: float) -> int:
    from tpu_training.monitoring.profiler import trace_workers

    trace_workers(workers, output, seconds)
    print(f"profile finished logdir={output}", flush=True)
    return 0
