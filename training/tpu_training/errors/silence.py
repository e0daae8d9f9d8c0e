"""Keep what libraries print past Python's logging off the terminal."""

import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# TensorFlow's own variable: 2 shows errors only.
_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def quiet_libraries() -> None:
    """Let TensorFlow log errors alone and Google's libraries warn of nothing, from now on."""
    os.environ.setdefault(_LEVEL, "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"google\.")


@contextmanager
def native_output_hidden() -> Iterator[None]:
    """Discard what C++ writes to stdout and stderr meanwhile; Python's output too.

    For calls in the main thread alone: whatever other threads print is lost.
    """
    if os.environ.get(_LEVEL, "0") < "2":
        yield
        return
    _flush()
    kept = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "wb") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        _flush()
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)


def _flush() -> None:
    """Write out the buffers of Python and of C, each to where it belongs."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
