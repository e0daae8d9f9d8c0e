"""`pulumi preview` as somebody who only deploys runs it, against a bare program in `.venv`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.result import Result
from bench.rows.preview import against_bare
from tpustack.project import root


def measure() -> list[Result]:
    """This stack in the environment of `make setup-deploy`, the bare program in the full one."""
    environment = _deploy_environment(root() / ".bench" / "deploy")
    return against_bare("preview: deploy environment", environment, goal=0.7)


def _deploy_environment(folder: Path) -> Path:
    """Make the environment; it stays for the next time."""
    tool = str(root() / "tools" / "make_venv.py")
    subprocess.run([sys.executable, tool, "--deploy", "--into", str(folder)], check=True)
    return folder
