"""Errors that end a command with one message.

Everything else that is raised is a mistake of ours, and ends with a traceback.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.settings.base import Problem


class TpustackError(Exception):
    """A failure that its message explains; exit code 1."""

    exit_code = 1


class UsageError(TpustackError):
    """Wrong input; exit code 2."""

    exit_code = 2


class Missing(UsageError):
    """What was named is not there: of a stack, that it is not deployed."""


class Denied(TpustackError):
    """Google knows the caller, and refuses."""


def refuse(problems: Sequence["Problem"]) -> None:
    """Raise UsageError with all problems, if there are any."""
    if problems:
        raise UsageError("\n".join(str(problem) for problem in problems))


def require(*modules: str) -> None:
    """Raise TpustackError if a module is not installed that only a part of the commands needs."""
    missing = [module.partition(".")[0] for module in modules if not _is_installed(module)]
    if missing:
        raise TpustackError(
            f"not installed in this environment: {', '.join(missing)}. In a clone of the project, "
            "`make setup` installs everything and .venv/bin/tpustack runs with it; elsewhere "
            "`tpu-stack[demo]` does"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def diagnostics(text: str) -> str:
    """Extract why the engine failed from the Automation API's dump of everything it wrote."""
    out, _, err = text.rpartition("\n stderr:")
    _, found, rest = out.partition("Diagnostics:")
    return (rest if found else err).strip() or text.strip()
