"""`tpu-training lr-range-test`: find the learning rates that are worth training with."""

import argparse
from functools import partial
from typing import Any

from tpu_training.commands.arguments import add_job_arguments, build_job
from tpu_training.commands.command import Command, add_command
from tpu_training.errors import EXIT_FAILURE, InputError
from tpu_training.job.job import Job
from tpu_training.job.start import find_workers, with_converted_data

_FEWEST_STEPS = 20
# The trust ratio of lars divides its rates by about 1000.
_HIGHEST, _LARS_HIGHEST = 10.0, 100.0


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "lr-range-test",
        _build,
        help="find a good learning rate (Leslie Smith's test)",
        description="Train a new model, raising the learning rate with each step until the loss "
        "diverges; then train shortly at rates around the lowest loss, and suggest the best. "
        "Writes a plot, a CSV and a JSON file to lr_range_test/ in the model directory, and the "
        "same for TensorBoard. Takes the parameters of train.",
    )
    add_job_arguments(parser)
    parser.add_argument("--min-rate", type=float, default=1e-6, help="first rate (1e-6)")
    parser.add_argument("--max-rate", type=float, help="last rate (10, with lars 100)")
    parser.add_argument("--sweep-steps", type=int, default=150, help="number of steps (150)")
    parser.add_argument(
        "--trial-steps", type=int, default=100, help="steps of each training after that (100)"
    )
    parser.add_argument(
        "--smoothing", type=float, default=0.9, help="smoothing of the loss, 0 to below 1 (0.9)"
    )
    parser.add_argument("--no-plot", action="store_true", help="don't draw the PNG")


def _build(known: argparse.Namespace) -> Command:
    problems = []
    highest = _HIGHEST if known.max_rate is None else known.max_rate
    if not 0 < known.min_rate < highest <= _LARS_HIGHEST:
        problems.append(
            f"--min-rate={known.min_rate:g} --max-rate={highest:g}: expected two rates above 0, "
            f"the first one lower, the second at most {_LARS_HIGHEST:g}"
        )
    for flag, steps in (("sweep", known.sweep_steps), ("trial", known.trial_steps)):
        if steps < _FEWEST_STEPS:
            problems.append(f"--{flag}-steps={steps}: must be at least {_FEWEST_STEPS}")
    if not 0 <= known.smoothing < 1:
        problems.append(f"--smoothing={known.smoothing:g}: must be at least 0 and below 1")
    if problems:
        raise InputError("; ".join(problems))
    job = build_job("lr-range-test", known, known.rest)
    return partial(_test, job, known)


def _test(job: Job, known: argparse.Namespace) -> int:
    """Sweep, write the results to the model directory; 1 when no rate can be suggested."""
    if not known.no_plot:
        from tpu_training.errors import require_plots

        require_plots("the plot", ", or leave the plot out with --no-plot")
    job = with_converted_data(job)
    workers, wait = find_workers(job)
    from tpu_training.job.lr_range_test import Sweep, connect_and_run

    highest = known.max_rate or (_LARS_HIGHEST if job.params.optimizer == "lars" else _HIGHEST)
    sweep = Sweep(known.min_rate, highest, known.sweep_steps, known.smoothing, known.trial_steps)
    verdict = connect_and_run(workers, wait, job, sweep, plot=not known.no_plot)
    return EXIT_FAILURE if verdict.suggestion is None else 0
