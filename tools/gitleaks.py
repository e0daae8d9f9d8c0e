"""Run gitleaks, built from its Go module when it is not in the cache yet.

`python tools/gitleaks.py git` looks for secrets in every commit; it passes its arguments on. What
only looks like one stands in .gitleaks.toml, with its reason.
"""

from __future__ import annotations

import sys

from toolchain.pins import GITLEAKS
from toolchain.scanners import run

if __name__ == "__main__":
    sys.exit(run(GITLEAKS, sys.argv[1:]))
