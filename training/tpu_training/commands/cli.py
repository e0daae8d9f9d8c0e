"""Parse the command line into a job or a command. Loads no TensorFlow."""

import argparse
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from tpu_training import __version__
from tpu_training.commands import (
    compile,
    data,
    doctor,
    export,
    lr_range_test,
    predict,
    profile,
    report,
    serve,
    tune,
)
from tpu_training.commands.arguments import add_job_arguments, build_job
from tpu_training.commands.command import Command, add_debug
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.job.start import prepare_tensorflow
from tpu_training.models.params import describe_params
from tpu_training.models.registry import DEFAULT_MODEL, load_model

_MODES = {
    "train": "train, starting from the last checkpoint",
    "evaluate": "evaluate the last checkpoint",
    "train-and-evaluate": "train, then evaluate",
}
# Commands that load TensorFlow, beside the modes: the first one trains, the others need no TPU.
_TRAINING = "lr-range-test"
_BESIDE_TRAINING = ("compile", "data", "export", "predict", "profile", "serve", "tune")
_COMMANDS = (data, compile, tune, lr_range_test, profile, report, export, predict, serve, doctor)
# They take the parameters of train.
_LIKE_JOBS = ("lr-range-test", "compile")
_HELP_WIDTH = 80
_EXIT_CODES = (
    "exit codes: 0 done, 1 failure, 2 wrong input, 75 interrupted by SIGTERM with its progress "
    "saved (start it again)"
)


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises this package's errors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def prepare(arguments: Sequence[str]) -> None:
    """Set what TensorFlow needs before `parse`, which may import it with an own model."""
    parser = _Parser(prog="tpu-training", add_help=False, allow_abbrev=False)
    parser.add_argument("mode", nargs="?")
    parser.add_argument("--tpu")
    known = parser.parse_known_args(arguments)[0]
    trains = known.mode in _MODES or known.mode == _TRAINING
    if trains or known.mode in _BESIDE_TRAINING:
        prepare_tensorflow(known.tpu, trains)


def parse(arguments: Sequence[str]) -> Job | Command:
    """Parse `arguments`; --help exits.

    Raises:
        InputError: With every problem at once.
    """
    parser = _build_parser(_help_model(arguments))
    known, rest = parser.parse_known_args(arguments)
    if rest and "config" not in known:
        raise InputError(f"unknown argument {rest[0]}; see `{known.prog} --help`")
    if "build" not in known:
        job = build_job(known.mode, known, rest)
        return (lambda: 0) if known.check else job
    known.rest = rest
    command: Command = known.build(known)
    return command


def _help_model(arguments: Sequence[str]) -> str:
    """Return the model whose parameters --help lists."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    name: str = parser.parse_known_args(arguments)[0].model
    return name


def _build_parser(help_model: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tpu-training",
        description="TensorFlow training on Cloud TPUs, GPUs and CPUs.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    params = describe_params(load_model(help_model).params)
    for mode, description in _MODES.items():
        job = modes.add_parser(mode, help=description, description=description, allow_abbrev=False)
        add_job_arguments(job)
        add_debug(job)
    for command in _COMMANDS:
        command.add(modes)
    for mode in (*_MODES, *_LIKE_JOBS):
        _list_parameters(modes.choices[mode], params)
    return parser


def _list_parameters(parser: argparse.ArgumentParser, params: str) -> None:
    """Add the parameters to the end of --help, a line each."""
    parser.epilog = f"{params}\n\n{_EXIT_CODES}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = textwrap.fill(parser.description or "", _HELP_WIDTH)
