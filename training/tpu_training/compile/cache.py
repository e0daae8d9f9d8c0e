"""Answers of the compiler, kept in the user's cache folder. Loads no TensorFlow.

An entry is a file named after all that decides its content, so it is never out of date. It appears
complete or not at all, whoever else writes it at the same time.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from tpu_training.compile.decode import decode

# Another number for files of another form.
_FORMAT = 1

T = TypeVar("T")

logger = logging.getLogger(__name__)


def folder() -> Path:
    """Return the folder of the entries."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tpu-stack" / "compile"


def load(key: str, kind: type[T]) -> T | None:
    """Return the entry `key`; None if there is none that can be used.

    An entry that is damaged, or that another version wrote, is set aside with a line in the log.
    """
    path = folder() / f"{key}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, expected {_FORMAT}")
        return decode(kind, content["entry"])
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _set_aside(path, error)
        return None


def save(key: str, entry: Any) -> None:
    """Keep the dataclass `entry`. A folder that can't be written only costs the time next time."""
    content = {"format": _FORMAT, "entry": dataclasses.asdict(entry)}
    try:
        folder().mkdir(parents=True, exist_ok=True)
        _replace(folder() / f"{key}.json", json.dumps(content, indent=1))
    except OSError as error:
        logger.warning("compile: the answer is not kept in %s (%s)", folder(), error.strerror)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _set_aside(path: Path, error: Exception) -> None:
    aside = path.with_suffix(".damaged")
    try:
        os.replace(path, aside)
    except OSError:
        return  # Another process was faster.
    logger.warning("compile: set %s aside and compile again: it can't be read (%s)", aside, error)
