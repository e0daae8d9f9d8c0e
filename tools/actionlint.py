"""Run actionlint, built from its Go module when it is not in the cache yet.

`python tools/actionlint.py` checks the workflows of this repository; it passes its arguments on.
"""

from __future__ import annotations

import subprocess
import sys

from toolchain import gobuild
from toolchain.errors import ToolchainError, without_hosts
from toolchain.pins import ACTIONLINT
from toolchain.progress import say


def main() -> int:
    """Run it and return its exit code."""
    try:
        folder = gobuild.build(ACTIONLINT)
    except (ToolchainError, OSError) as error:
        say(f"failed: {without_hosts(str(error))}")
        return 1
    return subprocess.run([folder / ACTIONLINT.name, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
