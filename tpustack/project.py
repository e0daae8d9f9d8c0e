"""Where the project's things lie."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKEND = "PULUMI_BACKEND_URL"
"""The variable that says where Pulumi keeps the stacks' state."""
STATE = ROOT / ".state"
DIST = ROOT / "dist"
DEMO = ROOT / ".demo"
LOCAL_CLOUD_HOME = Path(os.environ.get("LOCALCLOUD_HOME") or ROOT / ".localcloud")


def cache_folder() -> Path:
    """The user's cache folder for this project: what a second clone need not make again."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "tpu-stack"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tpu-stack"
    return Path.home() / ".cache" / "tpu-stack"
