"""Translate TensorFlow's exceptions into errors that a user can act on."""

import re

from tpu_training.errors import InputError, TrainingError
from tpu_training.errors.catalog import find_known_error
from tpu_training.errors.user_lines import user_line

# Cloud Storage's answers and names in graphs contain slashes, too, but not after a blank.
_PATHS = tuple(re.compile(start + r"[^\s'\";:,]+") for start in ("gs://", r"(?<![^\s'\"(:])/"))
# TensorFlow's decoration around the message.
_NOISE = re.compile(r"\{\{\w+ [^}]*\}\} ?| ?\[Op:\w+\]( name:)?")
_HEADINGS = ("in user code:", "Graph execution error:")
_LONGEST = 300


def translate(error: Exception) -> TrainingError:
    """Return a TrainingError with the cause, the cure and the original text."""
    text = _NOISE.sub("", f"{type(error).__name__}: {error}")
    known = find_known_error(text)
    shown = describe(error)
    line = user_line(error)
    if known is None and line:
        return InputError(f"{line}: {type(error).__name__}: {shown}")
    if known is None:
        return TrainingError(
            f"{type(error).__name__}: {shown} (not a known error; --debug shows where it occurred)"
        )
    kind = InputError if known.wrong_input else TrainingError
    paths = (found[0] for path in _PATHS if (found := path.search(text)))
    where = line or next(paths, "")
    place = f" ({where})" if where not in shown else ""
    link = f"; see {known.link}" if known.link else ""
    translated = kind(f"{known.cause}{place}: {known.cure}{link} [{shown}]")
    translated.cause = known.id
    return translated


def describe(error: Exception) -> str:
    """Return the line of an error's text that states the problem."""
    message = str(getattr(error, "message", None) or error)
    return _first_line(_NOISE.sub("", message)) or type(error).__name__


def _first_line(text: str) -> str:
    """Return the informative line: the first one, above TensorFlow's stack and graph.

    Errors in compiled functions begin with one of _HEADINGS and end with the informative line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    said = [line for line in lines if not line.startswith("[[")]
    line = said[-1] if lines[0] in _HEADINGS else lines[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
