"""Run a scanner, built from its Go module when it is not in the cache yet; pass its arguments on.

`python tools/scan.py actionlint` checks the workflows of this repository. `python tools/scan.py
gitleaks git` looks for secrets in every commit; false positives are in .gitleaks.toml, with their
reasons.
"""

from __future__ import annotations

import subprocess
import sys

from toolchain import gobuild
from toolchain.pins import SCANNERS, ToolchainError, without_hosts
from toolchain.processes import say


def main(name: str, *arguments: str) -> int:
    """Run it and return its exit code."""
    try:
        folder = gobuild.build(SCANNERS[name])
    except (ToolchainError, OSError) as error:
        say(f"failed: {without_hosts(str(error))}")
        return 1
    return subprocess.run([folder / name, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
