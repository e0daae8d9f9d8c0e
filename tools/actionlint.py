"""Run actionlint, built from its Go module when it is not in the cache yet.

`python tools/actionlint.py` checks the workflows of this repository; it passes its arguments on.
"""

from __future__ import annotations

import sys

from toolchain.pins import ACTIONLINT
from toolchain.scanners import run

if __name__ == "__main__":
    sys.exit(run(ACTIONLINT, sys.argv[1:]))
