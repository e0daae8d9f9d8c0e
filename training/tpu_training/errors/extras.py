"""Libraries that only some data sets need."""

import importlib
from typing import Any

from tpu_training.errors import InputError


def require(module: str, package: str, extra: str, purpose: str) -> Any:
    """Import `module`; InputError that says what to install when it is not there, or broken."""
    try:
        return importlib.import_module(module)
    # Those that don't suit each other's versions fail with errors of their own.
    except Exception as error:
        raise InputError(
            f"{purpose} needs {package}: pip install {package}, or tpu-stack-training[{extra}] "
            f"({error})"
        ) from error
