"""Run scanners of ours, each built from its Go module when it is not in the cache yet."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from toolchain import gobuild
from toolchain.errors import ToolchainError, without_hosts
from toolchain.pins import Module
from toolchain.progress import say


def run(scanner: Module, arguments: Sequence[str]) -> int:
    """Run it and return its exit code."""
    try:
        folder = gobuild.build(scanner)
    except (ToolchainError, OSError) as error:
        say(f"failed: {without_hosts(str(error))}")
        return 1
    return subprocess.run([folder / scanner.name, *arguments], check=False).returncode
