"""Errors that end a command with one message.

Everything else that is raised is a mistake of ours, and ends with a traceback.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_infra.settings.base import Problem

# The first Python that the locked TensorFlow has no wheel for.
WITHOUT_TENSORFLOW = (3, 13)


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
        why = f"not installed in this environment: {', '.join(missing)}. "
        if "tensorflow" in missing and sys.version_info >= WITHOUT_TENSORFLOW:
            have = ".".join(map(str, sys.version_info[:2]))
            why += f"TensorFlow 2.19.1 has no wheel for Python {have}. Use Python 3.10 to 3.12. "
        raise TpustackError(
            why + "In a clone of the project, `make setup` installs everything and "
            ".venv/bin/tpustack runs with it; elsewhere `uvx tpustack` or `tpu-stack[demo]` does"
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
