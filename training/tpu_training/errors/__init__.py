"""Errors that a person can act on. Each is one message: what is wrong, where, and the cure.

Exit codes: 2 for wrong input, 1 for a failure, 75 (EX_TEMPFAIL of sysexits.h) for "start me again".
"""

from collections.abc import Sequence

EXIT_FAILURE = 1
EXIT_WRONG_INPUT = 2
# systemd counts death by SIGTERM as a clean stop and does not restart after it, but 75 is a failure
# to Restart=on-failure, so an interrupted job starts again and resumes.
EXIT_START_AGAIN = 75


class TrainingError(Exception):
    """A failure of the world around the job: endpoint, permission, network, divergence."""

    exit_code = EXIT_FAILURE


class InputError(TrainingError):
    """The person who started the job has to change something: a flag, a value, a file."""

    exit_code = EXIT_WRONG_INPUT


class ParamsError(InputError):
    """Every wrong flag and value of one command line and its configuration file."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Join `problems` into one message; the list itself stays in `self.problems`."""
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class DataError(InputError):
    """A data file or its manifest is missing, corrupt or not what was announced."""


class CheckpointError(InputError):
    """A checkpoint belongs to another model."""


class EndpointError(TrainingError):
    """The TPU's endpoint can't be found or nobody answers there."""


class TpuStateError(EndpointError):
    """The TPU exists and will not become ready by waiting."""


class AccessError(TrainingError):
    """A role, an access scope or an API is missing."""


class DivergedError(TrainingError):
    """The loss is no longer a finite number."""


class Interrupted(TrainingError):
    """SIGTERM came: what was learned is saved, and the job wants to be started again."""

    exit_code = EXIT_START_AGAIN
