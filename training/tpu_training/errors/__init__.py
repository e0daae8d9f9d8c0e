"""Errors that a user can act on. Each message says what is wrong, where, and how to fix it.

Exit codes: 2 for wrong input, 1 for a failure, 75 (EX_TEMPFAIL of sysexits.h) for "start me again".
"""

import importlib
from collections.abc import Sequence
from typing import Any

EXIT_FAILURE = 1
EXIT_WRONG_INPUT = 2
# systemd counts an exit by SIGTERM as clean and does not restart the job. 75 counts as a failure
# for Restart=on-failure, so an interrupted job starts again and resumes.
EXIT_START_AGAIN = 75


class TrainingError(Exception):
    """A failure while the job runs: endpoint, permission, network, divergence."""

    exit_code = EXIT_FAILURE
    cause = ""
    """An ID of the catalog of errors, or a word of its own: what a supervisor decides by."""


class InputError(TrainingError):
    """The user has to change something: a flag, a value, a file."""

    exit_code = EXIT_WRONG_INPUT


class ParamsError(InputError):
    """All wrong flags and values of a command line and its configuration file."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Join `problems` into one message; keep the list in `self.problems`."""
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class DataError(InputError):
    """A data file or its manifest is missing, corrupt or inconsistent."""


class CheckpointError(InputError):
    """A checkpoint belongs to another model."""


class LeaseError(TrainingError):
    """Another process trains in the same model directory."""

    cause = "lease"


class LoweringError(InputError):
    """A step holds something that a TPU's compiler does not take."""


class EndpointError(TrainingError):
    """The TPU's endpoint can't be found or does not answer."""

    cause = "endpoint"


class TpuStateError(EndpointError):
    """The TPU exists, but waiting will not make it ready."""

    cause = "tpu-state"


class AccessError(TrainingError):
    """A role, an access scope or an API is missing."""

    cause = "permission"


class DivergedError(TrainingError):
    """The loss is no longer a finite number."""

    cause = "loss-diverged"


class Interrupted(TrainingError, SystemExit):
    """The job received SIGTERM; its progress is saved and it should be started again.

    A program that does not catch it ends with its exit code, as the command line does.
    """

    code = exit_code = EXIT_START_AGAIN


def require(module: str, package: str, extra: str, purpose: str, otherwise: str = "") -> Any:
    """Import `module`; InputError that says what to install when it is not there, or broken.

    `otherwise` ends the sentence with what can be done without it.
    """
    try:
        return importlib.import_module(module)
    # Incompatible versions of libraries fail with arbitrary errors.
    except Exception as error:
        raise InputError(
            f"{purpose} needs {package}: pip install 'tpu-stack-training[{extra}]'{otherwise} "
            f"({error})"
        ) from error
