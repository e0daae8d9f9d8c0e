"""Run a scanner, built from its Go module when it is not in the cache yet; pass its arguments on.

`python tools/scan.py actionlint` checks the workflows of this repository. `python tools/scan.py
gitleaks git` looks for secrets in every commit; false positives are in .gitleaks.toml, with their
reasons.
"""

from __future__ import annotations

import subprocess
import sys

from toolchain import gobuild, pins, processes


def main(name: str, *arguments: str) -> int:
    """Run it and return its exit code."""
    try:
        folder = gobuild.build(pins.SCANNERS[name])
    except (pins.ToolchainError, OSError) as error:
        processes.say(f"error: {pins.without_hosts(str(error))}")
        return 1
    return subprocess.run([folder / name, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
