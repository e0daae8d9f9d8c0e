"""What the command line needs of a command."""

import argparse
from collections.abc import Callable, Sequence
from typing import Protocol

from tpu_training.errors import InputError


class Command(Protocol):
    """Something to run that is no job."""

    def run(self) -> int:
        """Do it, print the results and return the exit code. Raises TrainingError."""


# Makes a command of its parsed arguments and of those that its parser did not know.
Build = Callable[[argparse.Namespace, Sequence[str]], Command]


def refuse_rest(rest: Sequence[str], command: str) -> None:
    """Raise InputError when there are arguments that nobody knows."""
    if rest:
        raise InputError(f"unknown argument {rest[0]}; see `training {command} --help`")
