"""Libraries that only some commands need."""

import importlib
from typing import Any

from tpu_training.errors import InputError


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


def require_plots(purpose: str, otherwise: str = "") -> None:
    """Raise InputError where matplotlib or Pillow, which it draws with, is not installed."""
    for module, package in (("PIL", "pillow"), ("matplotlib", "matplotlib")):
        require(module, package, "plots", purpose, otherwise)
