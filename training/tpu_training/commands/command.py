"""What the command line needs of a command that is no job."""

import argparse
from collections.abc import Callable
from typing import Any

# Does it, prints the results and returns the exit code. Raises TrainingError.
Command = Callable[[], int]
# Makes a command of its parsed arguments; `rest` are those that its parser did not know. Raises
# InputError.
Build = Callable[[argparse.Namespace], Command]


def add_command(
    modes: Any, name: str, build: Build, *, help: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add the parser of the command `name`, which `build` makes, and return it."""
    parser: argparse.ArgumentParser = modes.add_parser(
        name, help=help, description=description, allow_abbrev=False
    )
    parser.set_defaults(build=build, prog=parser.prog)
    add_debug(parser)
    return parser


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Add --debug."""
    parser.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's log")
