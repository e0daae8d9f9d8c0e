"""The machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def describe() -> dict[str, str | int | float]:
    """Processor, cores, memory, system and Python."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
