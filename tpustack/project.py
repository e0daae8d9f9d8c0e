"""Where the project lies, and what is built and kept in its folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tpustack.errors import UsageError

BACKEND = "PULUMI_BACKEND_URL"
"""The variable that says where Pulumi keeps the stacks' state."""
_NAME = re.compile(r"^name: tpu-stack$", re.MULTILINE)


def root() -> Path:
    """Return the project's folder: the nearest at or above the current one, else the checkout.

    Raises:
        UsageError: when the command runs outside any checkout of the project.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if _is_project(folder):
            return folder
    raise UsageError(
        f"neither {here} nor a folder above it is a checkout of tpu-stack (its Pulumi.yaml is "
        "missing). Change into a clone of the project and run the command there"
    )


def _is_project(folder: Path) -> bool:
    try:
        return bool(_NAME.search((folder / "Pulumi.yaml").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def state() -> Path:
    """Return the folder of the local stacks' state."""
    return root() / ".state"


def demo() -> Path:
    """Return the folder where the demo keeps its data and its figures."""
    return root() / ".demo"


def local_cloud_home() -> Path:
    """Return the folder of the local cloud."""
    return Path(os.environ.get("LOCALCLOUD_HOME") or root() / ".localcloud")


def cache_folder() -> Path:
    """Return the user's cache folder for this project: what a second clone need not make again."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "tpu-stack"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tpu-stack"
    return Path.home() / ".cache" / "tpu-stack"
