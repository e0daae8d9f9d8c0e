"""Find the line of a user's own file that an error comes from."""

import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PACKAGE = str(Path(__file__).parents[1])
# The last is this package's command, which pip writes.
_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/__autograph_generated_file",
    "/bin/tpu-training",
)


def user_line(error: BaseException) -> str:
    """Return FILE:LINE of the innermost line outside libraries and this package; "" without one."""
    return users_line(_frames(error))


def users_line(frames: Iterable[tuple[str, int]]) -> str:
    """Return the first FILE:LINE of `frames` outside libraries and this package, or ""."""
    return next((f"{file}:{line}" for file, line in frames if _is_users(file)), "")


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield files and lines, the innermost first.

    AutoGraph runs a translated copy of a user's file and keeps the original lines beside the
    error. An operation that fails in a step has them in its text.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        yield error.filename, error.lineno
    if converted := getattr(error, "ag_error_metadata", None):
        yield from ((frame.filename, frame.lineno) for frame in converted.translated_stack)
    yield from ((file, int(line)) for file, line in reversed(_FRAME.findall(str(error))))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield frame.filename, frame.lineno or 0


def _is_users(file: str) -> bool:
    ours = (_PACKAGE, sysconfig.get_path("stdlib"), "<")
    return not file.startswith(ours) and not any(part in file for part in _LIBRARIES)
