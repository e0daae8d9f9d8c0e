"""Make sure that this machine has the Pulumi engine, its Python host and the gcp provider.

Print the folder to put on PATH to standard output, and everything else to standard error. It needs
only Python itself, so that it can run before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from types import FrameType

from toolchain import choose, pins, processes


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python tools/install.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print every part and its origin")
    parser.add_argument(
        "--language", action="append", choices=pins.LANGUAGES, help="run its programs, too"
    )
    arguments = parser.parse_args()
    for number in processes.STOPS:
        signal.signal(number, _interrupt)
    started = time.monotonic()
    try:
        result = choose.toolchain(arguments.language or ())
    except KeyboardInterrupt:
        processes.say("interrupted. No process keeps running, and no unfinished file is left.")
        return 130
    except (pins.ToolchainError, OSError) as error:
        processes.say(f"error: {pins.without_hosts(str(error))}")
        return 1
    if not arguments.json:
        result.tell()
    seconds = time.monotonic() - started
    print(json.dumps(result.as_json(seconds), indent=2) if arguments.json else result.bin)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Clean up the same way for every signal, and ignore an impatient second one."""
    for stop in processes.STOPS:
        signal.signal(stop, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
