"""The local Google Cloud as seen from outside: its command line and its environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpustack.errors import TpustackError
from tpustack.project import LOCAL_CLOUD_HOME


class LocalCloudCommand:
    """Runs `python -m localcloud` on one home folder."""

    def __init__(self, home: Path = LOCAL_CLOUD_HOME) -> None:
        self.home = home

    def arguments(self, *arguments: str) -> list[str]:
        """The command as an argument list."""
        return [sys.executable, "-m", "localcloud", *arguments, "--home", str(self.home)]

    def run(self, *arguments: str) -> str:
        """Run a subcommand and give its output.

        Raises:
            TpustackError: with what it wrote to stderr when it fails.
        """
        done = subprocess.run(
            self.arguments(*arguments), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise TpustackError(f"the local cloud's `{arguments[0]}` failed: {done.stderr.strip()}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Port, resources and processes of the running cloud."""
        loaded: dict[str, Any] = json.loads(self.run("status", "--json"))
        return loaded

    def environment(self) -> dict[str, str]:
        """The variables that lead Google's clients to the local cloud."""
        loaded: dict[str, str] = json.loads(self.run("env", "--json"))
        return loaded

    def is_running(self) -> bool:
        """Whether it answers."""
        done = subprocess.run(self.arguments("status"), capture_output=True, check=False)
        return done.returncode == 0


def pass_on(arguments: Sequence[str]) -> int:
    """Run `python -m localcloud` with the terminal's own input and output."""
    return subprocess.run([sys.executable, "-m", "localcloud", *arguments], check=False).returncode
